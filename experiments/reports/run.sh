#!/bin/sh
# What reports say of made-up studies, before and after: `experiments/reports/run.sh` (about 20 minutes on two cores).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
"$python" -m tests.study.fuzz each=4 seed=31 workers=2 csv=experiments/reports/after.csv
"$python" -m tests.study.fuzz each=16 seed=99 workers=2 only=speeds csv=experiments/reports/speeds.csv
# The same studies and the same judge, over the code before.
before=$(mktemp -d)
git worktree add --detach "$before/tree" 905c80ac
cp tests/study/fuzz.py tests/study/planted.py tests/study/disturbed.py "$before/tree/tests/study/"
here=$PWD
(cd "$before/tree" && PYTHONPATH=. "$python" -m tests.study.fuzz each=4 seed=31 workers=2 csv="$here/experiments/reports/before.csv")
git worktree remove --force "$before/tree"
