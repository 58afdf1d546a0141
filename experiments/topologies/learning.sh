#!/usr/bin/env bash
# Four ranks (or observers) step CartPole and LunarLander in every topology, three seeds: runs what the two sweeps lack,
# then writes learning_cartpole/ and learning_lunarlander/ beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."

spread() {  # how a task is spread over four that step
  local sweep=$1
  shift
  local train=(python -m ddppo.train -m experiment=topologies/learning "sweep=$sweep" "$@")
  "${train[@]}" distributed=ddp dist.world_size=4
  "${train[@]}" distributed=sync_actors,async_actors,env_workers,env_workers_hetero dist.world_size=5
  "${train[@]}" distributed=multi_learner dist.world_size=6 dist.num_learners=2
  "${train[@]}" distributed=central_inference dist.world_size=1 env.num_workers=4
}

cartpole=outputs/sweeps/topologies_learning_cartpole
lunarlander=outputs/sweeps/topologies_learning_lunarlander
spread $cartpole env=cartpole target_return=475
python -m ddppo.train -m experiment=topologies/learning sweep=$cartpole env=cartpole target_return=475 \
  distributed=device dist.world_size=4
spread $lunarlander env=lunarlander target_return=200 ppo.total_steps=300000
for sweep in $cartpole $lunarlander; do
  python -m ddppo.report $sweep out=experiments/topologies/"${sweep#outputs/sweeps/topologies_}"
done
