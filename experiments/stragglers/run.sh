#!/usr/bin/env bash
# Two workloads, each by ddp and by every rule of ddp_preempt, three seeds, and the times of both with longer steps: runs
# what outputs/sweeps/stragglers_* lack, then writes table.csv, table.md, curves.csv and figure.svg beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."

study() {  # by all rules in turn, so that what else the machine does is alike for all; a cap that suits it, and a recipe
  local cap=$1
  shift
  for seed in 0 1 2; do
    local train=(python -m ddppo.train -m dist.world_size=4 "seed=$seed" "$@")
    "${train[@]}" distributed=ddp
    "${train[@]}" distributed=ddp_preempt dist.sync_frac=.4,.6,.8
    "${train[@]}" distributed=ddp_preempt dist.preempt_rule=throughput
    "${train[@]}" distributed=ddp_preempt dist.sync_frac=1 dist.rollout_time_cap_s="$cap"
  done
}

times=(eval.every_steps=0 eval.final_episodes=0 target_return=null ppo.total_steps=5000)  # nothing is evaluated
study .1 experiment=stragglers/cartpole 'env.slow_ranks={0: .001, 1: .001, 2: .001, 3: .01}'
study .1 experiment=stragglers/tails
study .3 experiment=stragglers/cartpole 'env.slow_ranks={0: .003, 1: .003, 2: .003, 3: .03}' \
  sweep=outputs/sweeps/stragglers_long "${times[@]}"
study .4 experiment=stragglers/tails env.kwargs.step_time_s=.005 sweep=outputs/sweeps/stragglers_tails5 "${times[@]}"
python experiments/stragglers/table.py
