#!/usr/bin/env bash
# Trains what outputs/sweeps lacks of the runs in the table, then writes it: SEEDS, 0,1,2 of all; further settings go to all.
set -euo pipefail
cd "$(dirname "$0")/../.."
seeds="seed=${SEEDS:-0,1,2}"
for world_size in 1 4; do
  .venv/bin/python -m ddppo.train -m experiment=robots "$seeds" "dist.world_size=$world_size" "$@"
  .venv/bin/python -m ddppo.train -m experiment=learning_classic env=lunarlander "$seeds" \
    "dist.world_size=$world_size" sweep=outputs/sweeps/lunarlander "$@"
done
.venv/bin/python -m experiments.published_scores.table outputs/sweeps/robots outputs/sweeps/lunarlander
