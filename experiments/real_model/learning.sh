#!/usr/bin/env bash
# All steps of the experiment: the model, its success untrained, a supervised start, GRPO, success after each, the tables.
# A GPU: bash experiments/real_model/learning.sh device=cuda (see README.md).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.
here=experiments/real_model work=${WORK:-/tmp/real_model}
mkdir -p "$work"
source $here/settings.sh
[ -e "$work/smollm2" ] || python $here/prepare.py "$work/smollm2"

success() { # name, play seed, episodes of a task, settings
  python $here/success.py out="$work/$1_$2.jsonl" play_seed="$2" episodes="$3" "${play[@]}" \
    "env.tasks=[warm-up,beginner]" env.num_envs=19 ppo.group_size=19 model.lora_rank=0 "${@:4}"
}
success text 0 2 model.hf_path="$work/smollm2" model.chat=text "model.system=''"
success shots 0 1 model.hf_path="$work/smollm2" ppo.rollout_steps=1024 model.system=null model.shots=null

python $here/supervised.py out="$work/supervised" "${play[@]}" model.hf_path="$work/smollm2"
python -m ddppo.train "${play[@]}" "env.tasks=[$trained]" model.hf_path="$work/supervised" "${grpo[@]}" \
  hydra.run.dir="$work/grpo" "$@"
for seed in 0 1; do
  success supervised $seed 4 model.hf_path="$work/supervised"
  success grpo $seed 4 model.hf_path="$work/supervised" run="$work/grpo"
done
hard=("env.tasks=[intermediate,advanced,expert]" env.num_envs=15 ppo.group_size=15)  # printed only
success hard_supervised 0 1 model.hf_path="$work/supervised" "${hard[@]}"
success hard_grpo 0 1 model.hf_path="$work/supervised" run="$work/grpo" "${hard[@]}"

python $here/table.py run="$work/grpo" text="$work/text_0.jsonl" shots="$work/shots_0.jsonl" \
  supervised="$work/supervised_0.jsonl,$work/supervised_1.jsonl" grpo="$work/grpo_0.jsonl,$work/grpo_1.jsonl"
