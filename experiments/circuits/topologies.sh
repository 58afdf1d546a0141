#!/usr/bin/env bash
# Inference in every rank (ddp) against one agent that acts for all its observers (central_inference), with the graph
# network, on a small and a large circuit: runs what outputs/sweeps/circuits_rates lacks, then writes topologies.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
train=(python -m ddppo.train -m experiment=circuits/rates "env.circuit=tof_3,gf2^4_mult" "seed=${SEEDS:-0,1,2}" "$@")
"${train[@]}" distributed=ddp dist.world_size=1,2
"${train[@]}" distributed=central_inference dist.world_size=1 dist.observers=1,2,4
"${train[@]}" distributed=central_inference dist.world_size=2 dist.observers=1,2
PYTHONPATH=. python experiments/circuits/topologies.py outputs/sweeps/circuits_rates
