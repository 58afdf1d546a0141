#!/usr/bin/env bash
# Trains what outputs/sweeps lacks of the runs in the table, then writes it: SEEDS, 0,1,2 of all; further settings go to all.
# Three hours of a core, an hour more for every seed of Pong and half of Breakout. One thread to a rank, as those runs had that the table keeps.
set -euo pipefail
cd "$(dirname "$0")/../.."
seeds="seed=${SEEDS:-0,1,2}"
for world_size in 1 4; do
  .venv/bin/python -m ddppo.train -m experiment=published_scores "$seeds" "dist.world_size=$world_size" \
    dist.threads_per_rank=1 env.backend=sync "$@"
done
for game in pong breakout; do
  .venv/bin/python -m ddppo.train -m "experiment=$game" "$seeds" "sweep=outputs/sweeps/$game" dist.threads_per_rank=1 "$@"
done
.venv/bin/python -m experiments.published_scores.table outputs/sweeps/{published_scores,pong,breakout}
