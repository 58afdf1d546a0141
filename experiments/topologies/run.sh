#!/usr/bin/env bash
# Four workloads in every topology, three seeds: runs what outputs/sweeps/topologies_* lack, then writes cheap/, slow/,
# large/ and tails/ beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
for workload in cheap slow large tails; do
  train=(python -m ddppo.train -m experiment=topologies/$workload)
  "${train[@]}"
  "${train[@]}" distributed=multi_learner dist.world_size=4,6,8
  "${train[@]}" distributed=central_inference dist.world_size=1 env.backend=pool env.num_workers=1,3,5
  if [ $workload = cheap ]; then
    "${train[@]}" distributed=device dist.world_size=2,4,6
  fi
  python -m ddppo.report outputs/sweeps/topologies_$workload out=experiments/topologies/$workload
done
