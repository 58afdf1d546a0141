#!/usr/bin/env bash
# GRPO on tasks of text, and REINFORCE of a user's own, each under several topologies, three seeds: runs what
# outputs/sweeps/algorithms_* lack, then writes the tables and the figure beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

# The user's module is the one that docs/guide/algorithm.md prints, the same file for all topologies.
mkdir -p outputs/algorithms/my_pkg
awk '/^```$/ && found {exit} found; /^```python$/ {found = 1}' docs/guide/algorithm.md > outputs/algorithms/my_pkg/algos.py
export PYTHONPATH="$PWD:$PWD/outputs/algorithms"

quiet=(log.tensorboard=false log.progress=none)
every_iteration=(dtype=float32,float64 seed=0 checkpoint.every_steps=1 checkpoint.keep=20 eval.final_episodes=0 eval.every_steps=0)

own() {
  local train=(python -m ddppo.train -m env=cartpole algorithm=my_pkg.algos:Reinforce "${quiet[@]}" "$@")
  "${train[@]}" distributed=ddp
  "${train[@]}" distributed=ddp,sync_actors,async_actors,multi_learner,env_workers,central_inference dist.world_size=4
}
own seed=0,1,2 sweep=outputs/sweeps/algorithms_reinforce
own "${every_iteration[@]}" algorithm.total_steps=2000 sweep=outputs/sweeps/algorithms_reinforce_exact

cloud() {
  local train=(python -m ddppo.train -m env=cloud "env.tasks=[warm-up,beginner]" env.chaos=false "${quiet[@]}" "$@")
  "${train[@]}" distributed=ddp
  "${train[@]}" distributed=sync_actors,env_workers dist.world_size=3
}
cloud "${every_iteration[@]}" ppo.total_steps=6000 sweep=outputs/sweeps/algorithms_cloud_exact
for seed in 0 1 2; do
  cloud seed=$seed ppo.total_steps=60000 eval.every_steps=10000 eval.episodes=38 eval.final_episodes=114 \
    sweep=outputs/sweeps/algorithms_cloud
done
python experiments/algorithms/table.py
