#!/usr/bin/env bash
# Do small transformers learn the warm-up and beginner tasks of the cloud? GRPO with the curriculum and without, and PPO
# beside it: runs what outputs/sweeps/cloud_learning lacks, then writes learning.md, .csv and .svg.
set -euo pipefail
cd "$(dirname "$0")/../.."
train=(python -m ddppo.train -m env=cloud "env.tasks=[warm-up,beginner]" env.chaos=false "seed=${SEEDS:-0,1,2}"
  eval.every_steps=25000 eval.episodes=38 eval.final_episodes=114 sweep=outputs/sweeps/cloud_learning log.tensorboard=false "$@")
"${train[@]}" ppo.algorithm=grpo curriculum.name=tiers,uniform
"${train[@]}" ppo.algorithm=ppo curriculum.name=tiers
PYTHONPATH=. python experiments/cloud/learning.py outputs/sweeps/cloud_learning
