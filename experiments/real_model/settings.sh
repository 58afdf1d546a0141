# Settings that the commands of this experiment share. `source` it in the repository's root.
play=(env=cloud ppo=cloud env.chaos=false env.max_turns=5 ppo.rollout_steps=256 model=hf model.turn_tokens=48
  model.obs_tokens=96 "model.system='Answer with one command line.'" "model.shots=[]")
# Tasks that are demonstrated or practised, for env.tasks.
trained=$(python -c "
import yaml
tasks = yaml.safe_load(open('experiments/real_model/tasks.yaml'))
print(','.join(tasks['demonstrated'] + tasks['practised']))")
# GRPO: 6 groups of 8 rollouts, one pass over them in 4 minibatches, adapters of rank 16.
grpo=(env.num_envs=48 ppo.group_size=8 ppo.num_epochs=1 ppo.num_minibatches=4 ppo.learning_rate=3e-4 ppo.lr_schedule=none
  ppo.entropy_coef=0 ppo.total_steps=30000 model.lora_rank=16 dist.world_size=2 eval.final_episodes=0
  checkpoint.every_steps=3000 log.tensorboard=false log.rollouts=all)
