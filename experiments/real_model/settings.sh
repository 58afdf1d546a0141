# Settings that the commands of this experiment share. `source` it in the repository's root.
play=(env=cloud ppo=cloud env.chaos=false env.max_turns=5 ppo.rollout_steps=320 model=hf model.turn_tokens=48
  model.obs_tokens=96 "model.system='Answer with one command line.'" "model.shots=[]")
# Tasks that are demonstrated or practised, for env.tasks.
trained=$(python -c "
import yaml
tasks = yaml.safe_load(open('experiments/real_model/tasks.yaml'))
print(','.join(tasks['demonstrated'] + tasks['practised']))")
