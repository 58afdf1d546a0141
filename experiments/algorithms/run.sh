#!/usr/bin/env bash
# REINFORCE of a user's own, and GRPO on tasks of text, each under several topologies, three seeds: runs what
# outputs/sweeps/algorithms_* lack, then writes the tables and the figure beside this file. `run.sh own` and
# `run.sh cloud` run one of the two.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

# The user's module is the one that docs/guide/algorithm.md prints, the same file for all topologies.
mkdir -p outputs/algorithms/my_pkg
awk '/^```$/ && found {exit} found; /^```python$/ {found = 1}' docs/guide/algorithm.md > outputs/algorithms/my_pkg/algos.py
export PYTHONPATH="$PWD:$PWD/outputs/algorithms"

quiet=(log.tensorboard=false log.progress=none)
# One thread in each rank: torch sums a product of matrices over two threads in another order than over one.
first_iterations=(dist.threads_per_rank=1 dtype=float32,float64 seed=0 checkpoint.every_steps=1 checkpoint.keep=20 eval.final_episodes=0 eval.every_steps=0)

train_own() {
  local train=(python -m ddppo.train -m env=cartpole algorithm=my_pkg.algos:Reinforce "${quiet[@]}" "$@")
  "${train[@]}" distributed=ddp
  "${train[@]}" distributed=ddp,sync_actors,async_actors,multi_learner,env_workers,central_inference dist.world_size=4
}
own() {
  train_own seed=0,1,2 sweep=outputs/sweeps/algorithms_own  # 100,000 steps
  train_own seed=0,1,2 algorithm.total_steps=200000 sweep=outputs/sweeps/algorithms_own
  train_own "${first_iterations[@]}" algorithm.total_steps=2000 sweep=outputs/sweeps/algorithms_own_first
}

train_cloud() {
  local train=(python -m ddppo.train -m env=cloud "env.tasks=[warm-up,beginner]" env.chaos=false "${quiet[@]}" "$@")
  "${train[@]}" distributed=ddp
  "${train[@]}" distributed=sync_actors,env_workers dist.world_size=3
}
cloud() {
  train_cloud "${first_iterations[@]}" ppo.total_steps=6000 sweep=outputs/sweeps/algorithms_cloud_first
  local seed
  for seed in 0 1 2; do
    train_cloud seed=$seed ppo.total_steps=60000 eval.every_steps=10000 eval.episodes=38 eval.final_episodes=114 \
      sweep=outputs/sweeps/algorithms_cloud
  done
}

for part in ${@:-own cloud}; do
  $part
done
python experiments/algorithms/table.py
