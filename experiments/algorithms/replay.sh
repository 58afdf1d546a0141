#!/usr/bin/env bash
# DQN on CartPole, by one process and with actors at their own pace, and SAC on Pendulum and HalfCheetah: runs what
# outputs/sweeps/algorithms_* lack, then writes dqn.json and sac.json beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"

train() { python -m ddppo.train -m log.tensorboard=false log.progress=none "$@"; }

dqn() { train env=cartpole algorithm=dqn eval.every_steps=10000 "$@"; }
dqn seed=0,1,2,3,4,5 sweep=outputs/sweeps/algorithms_dqn
narrow() { dqn 'model.hidden_sizes=[128,128]' "$@"; }
narrow seed=0,1,2,3,4,5,6,7,8,9 sweep=outputs/sweeps/algorithms_dqn_narrow
narrow seed=3,4 algorithm.target_period_updates=200 sweep=outputs/sweeps/algorithms_dqn_narrow_slow_target
narrow seed=2,4,5 algorithm.target_period_updates=200 algorithm.updates_per_step=0.5 \
  sweep=outputs/sweeps/algorithms_dqn_narrow_more_updates
narrow seed=5 algorithm.updates_per_step=0.5 sweep=outputs/sweeps/algorithms_dqn_narrow_both
narrow seed=0,1,2 distributed=async_actors dist.world_size=4 sweep=outputs/sweeps/algorithms_dqn_async
train env=pendulum algorithm=sac seed=0,1,2 eval.every_steps=5000 sweep=outputs/sweeps/algorithms_sac
train env=halfcheetah algorithm=sac_halfcheetah seed=0 eval.every_steps=20000 eval.episodes=5 \
  sweep=outputs/sweeps/algorithms_sac_halfcheetah
# The best policies of DQN's runs, in 100 episodes that training did not evaluate with.
for sweep in outputs/sweeps/algorithms_dqn{,_narrow,_async}; do
  python -m ddppo.evaluate $sweep/*/ checkpoint=best episodes=100 seed=1000 out=$sweep/best.json
done
PYTHONPATH=. python experiments/algorithms/replay.py outputs/sweeps
