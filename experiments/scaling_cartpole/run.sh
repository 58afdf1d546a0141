#!/usr/bin/env bash
# Strong and weak scaling of CartPole: runs what outputs/sweeps/scaling_cartpole lacks, then writes report/ beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
python -m ddppo.train -m experiment=scaling/cartpole
python -m ddppo.train -m experiment=scaling/cartpole_weak
python -m ddppo.report outputs/sweeps/scaling_cartpole out=experiments/scaling_cartpole/report
