#!/usr/bin/env bash
# Disturbs a run `kills` times by SIGKILL, and by a full disk, truncated checkpoints and frozen processes besides:
# experiments/chaos/run.sh [kills] [task] [settings]. Results appear beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
kills=${1:-100} task=${2:-lunarlander}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
code=0
PYTHONPATH=. .venv/bin/python -m tests.fault.chaos "$folder/chaos" kills="$kills" task="$task" seed=7 "${@:3}" || code=$?
cp "$folder/chaos/faults.csv" "experiments/chaos/$task.csv"
cp "$folder/chaos/result.json" "experiments/chaos/$task.json"
exit $code
