#!/usr/bin/env bash
# Strong scaling of a task whose step sleeps 2 ms: runs what outputs/sweeps/scaling_slept_env lacks, then writes report/
# beside this file and compares W = 8 with what the model fitted to W = 1, 2 and 4 predicts for it.
set -euo pipefail
cd "$(dirname "$0")/../.."
python -m ddppo.train -m experiment=scaling/slept_env
python -m ddppo.report outputs/sweeps/scaling_slept_env out=experiments/scaling_slept_env/report
python -m ddppo.predict outputs/sweeps/scaling_slept_env fit_on=1,2,4 world_sizes=8 | tee experiments/scaling_slept_env/held_out.txt
