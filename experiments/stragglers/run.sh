#!/usr/bin/env bash
# Two workloads, each by ddp and by every rule of ddp_preempt, three seeds, and the times of one with longer steps: runs
# what outputs/sweeps/stragglers_* lack, then writes table.csv, table.md, curves.csv and figure.svg beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
study() {  # a workload, and a time cap that suits it
  local train=(python -m ddppo.train -m "experiment=stragglers/$1" dist.world_size=4 "${@:3}")
  "${train[@]}" distributed=ddp
  "${train[@]}" distributed=ddp_preempt dist.sync_frac=.4,.6,.8
  "${train[@]}" distributed=ddp_preempt dist.preempt_rule=throughput
  "${train[@]}" distributed=ddp_preempt dist.sync_frac=1 dist.rollout_time_cap_s="$2"
}

study cartpole .1 'env.slow_ranks={0: .001, 1: .001, 2: .001, 3: .01}'
study tails .1
study cartpole .3 'env.slow_ranks={0: .003, 1: .003, 2: .003, 3: .03}' sweep=outputs/sweeps/stragglers_long \
  ppo.total_steps=5000 eval.every_steps=0 eval.final_episodes=0 target_return=null
python experiments/stragglers/table.py
