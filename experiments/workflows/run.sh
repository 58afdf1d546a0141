#!/usr/bin/env bash
# Does a search over the 120 orders find one that beats the six presets, and what does inheriting policies save? Runs
# what outputs/sweeps/workflows lacks, then writes searches.csv, presets.csv and the tables.
set -euo pipefail
cd "$(dirname "$0")/../.."
episodes=${EPISODES:-20000}
train=(python -m ddppo.train -m experiment=workflows sweep=outputs/sweeps/workflows
  eval.final_episodes=1000 checkpoint.every_steps=0 log.tensorboard=false "$@")
seeds="seed=${SEEDS:-0,1,2}"
"${train[@]}" "$seeds" "search.budget_episodes=$episodes" search.settle_iterations=0 search.inherit=nearest,nothing
"${train[@]}" "$seeds" "search.budget_episodes=$((3 * episodes))"
"${train[@]}" "$seeds" search.name=null "ppo.total_steps=$((episodes * 100))" \
  env.order=critical_first,enterprise_focus,user_priority,operational_focus,balanced,reverse
"${train[@]}" seed=0 search.name=null "ppo.total_steps=$((3 * episodes * 100))" \
  env.order=critical_first,enterprise_focus,user_priority,operational_focus,balanced,reverse
python -m experiments.workflows.table outputs/sweeps/workflows
