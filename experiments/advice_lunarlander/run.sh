#!/bin/sh
# The advice, and the full sweeps that it is compared with. Run from the checkout; about 15 minutes on 2 cores.
set -e
here=experiments/advice_lunarlander
python -m ddppo.advise env=lunarlander >$here/advice.txt
target="target_return=200 eval.every_steps=25000 eval.episodes=20 eval.final_episodes=20"
for seed in 0 1 2; do  # W in turn for each seed, so that a busy minute hits all
    python -m ddppo.train -m env=lunarlander dist.world_size=1,2,4 seed=$seed ppo.total_steps=500000 $target \
        checkpoint.every_steps=0 sweep=outputs/sweeps/advice_lunarlander
    python -m ddppo.train -m env=lunarlander env.backend=sync dist.world_size=1,2,4 seed=$seed ppo.total_steps=500000 \
        $target checkpoint.every_steps=0 sweep=outputs/sweeps/advice_lunarlander_sync
done
for name in advice_lunarlander advice_lunarlander_sync; do
    python -m ddppo.report outputs/sweeps/$name
    cp outputs/sweeps/$name/report/per_run.csv $here/$name.csv  # here without its last column, the paths
done
