#!/usr/bin/env bash
# How well does PPO defend? Three seeds against each attacker: runs what outputs/sweeps/cage2 lacks, then writes
# learning.md, .csv and .svg.
set -euo pipefail
cd "$(dirname "$0")/../.."
python -m ddppo.train -m env=cage2 "env.red=${RED:-b_line,meander}" "seed=${SEEDS:-0,1,2}" ppo.total_steps=5_000_000 \
  eval.every_steps=500_000 eval.episodes=100 eval.final_episodes=1000 sweep=outputs/sweeps/cage2 log.tensorboard=false "$@"
python -m experiments.cage2.learning outputs/sweeps/cage2
