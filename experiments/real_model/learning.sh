#!/usr/bin/env bash
# All steps of the experiment: the model, its success untrained, a supervised start, GRPO, success after each, the tables.
# A GPU: bash experiments/real_model/learning.sh device=cuda (see README.md).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=.
here=experiments/real_model work=${WORK:-/tmp/real_model} episodes=${EPISODES:-4}
mkdir -p "$work"
source $here/settings.sh
[ -e "$work/smollm2" ] || python $here/prepare.py "$work/smollm2"

success() { # name, settings
  python $here/success.py out="$work/$1.jsonl" episodes="$episodes" "${play[@]}" "env.tasks=[warm-up,beginner]" \
    env.num_envs=19 ppo.group_size=19 model.lora_rank=0 "${@:2}"
}
success untrained_text model.hf_path="$work/smollm2" model.chat=text "model.system=''"
success untrained_shots model.hf_path="$work/smollm2" ppo.rollout_steps=1024 model.system=null model.shots=null

python $here/supervised.py out="$work/supervised" "${play[@]}" model.hf_path="$work/smollm2"
success supervised model.hf_path="$work/supervised"

python -m ddppo.train "${play[@]}" "env.tasks=[$trained]" model.hf_path="$work/supervised" "${grpo[@]}" \
  hydra.run.dir="$work/grpo" "$@"
success grpo model.hf_path="$work/supervised" run="$work/grpo"

python $here/table.py run="$work/grpo" text="$work/untrained_text.jsonl" shots="$work/untrained_shots.jsonl" \
  supervised="$work/supervised.jsonl" grpo="$work/grpo.jsonl"
