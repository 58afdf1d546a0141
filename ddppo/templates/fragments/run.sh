#!/bin/sh
# Starts {{ world_size }} ranks on this machine. Modules of your own are found in the folder where you type `sh run.sh`.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec {{ python }} -m torch.distributed.run --standalone --nproc-per-node {{ world_size }} "$(dirname "$0")/main.py"
