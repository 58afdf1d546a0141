"""GRPO with a Llama of 100 million random weights on a device: tokens per second and memory.

    python experiments/devices/text_on_gpu.py [out=<file>] [device=cuda] [envs=64] [tokens=256] [only=<text>]

The task has no meaning for random weights: episodes are two turns of at most model.turn_tokens tokens, and shorter ones
are worth more, so that every group has a spread to learn from. Each run is `ddppo.train`
with model=hf ppo=grpo_hf, three iterations; numbers are those of the last one. The tokenizer is of single bytes.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parents[2]
SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "100M": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
}
VOCABULARY = 16384


def written(folder, size):
    """Write a Llama of random weights and a tokenizer of bytes; return the number of weights."""
    from tests.domains.text.chat_models import tokenizer_of

    torch.manual_seed(0)
    sizes = SIZES[size]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=sizes["num_attention_heads"] // 2, max_position_embeddings=2048,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokenizer = tokenizer_of()
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main():
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    device, size = words.get("device", "cuda"), words.get("size", "100M")
    envs, tokens = int(words.get("envs", 64)), int(words.get("tokens", 256))
    sys.path.insert(0, str(HERE))
    turn = tokens // 2 - 40  # two turns, a prompt and an answer
    found = {}
    ways = {
        "bfloat16, all weights": ("model.precision=bfloat16", "model.lora_rank=0"),
        "bfloat16, LoRA of rank 8": ("model.precision=bfloat16",),
        "float32, LoRA of rank 8": (),
        "tf32, LoRA of rank 8": ("matmul_precision=tf32",) if device != "cpu" else (),
    }
    with tempfile.TemporaryDirectory() as folder:
        num_weights = written(f"{folder}/model", size)
        print(f"{num_weights:,} weights, {envs} environments, {tokens} tokens, {device}", flush=True)
        for name, more in ways.items():
            if words.get("only", "") not in name:
                continue
            run = Path(folder) / name.replace(" ", "_").replace(",", "")
            command = [
                sys.executable, "-m", "ddppo.train", "env=gym",
                "env.id=tests.domains.text.text_tasks:tests/BytesPartsRepeat-v0", f"env.num_envs={envs}",
                "env.max_turns=2",
                "model=hf", f"model.hf_path={folder}/model", "model.chat=text", f"model.turn_tokens={turn}",
                "model.obs_tokens=20", "ppo=grpo_hf", f"ppo.rollout_steps={tokens}", "ppo.num_minibatches=4",
                f"ppo.total_steps={2 * envs * tokens}", "log.progress=none", "log.tensorboard=false",
                "eval.final_episodes=0", f"device={device}", *more, f"hydra.run.dir={run}",
            ]  # fmt: skip
            # At the limit it says where it is, and ends.
            command = ["timeout", "--signal=ABRT", words.get("limit_s", "150"), *command]
            environ = os.environ | {"PYTHONFAULTHANDLER": "1"}
            done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, env=environ)
            if done.returncode:
                print(f"{name}: failed with {done.returncode}\n{done.stderr[-3000:]}", flush=True)
                continue
            last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
            row = {
                key: last.get(of)
                for key, of in {
                    "typed_tokens_per_s": "rollout/tokens_per_s", "t_generate": "rollout/t_generate",
                    "t_iter": "time/t_iter", "t_rollout": "time/t_rollout", "t_learn": "time/t_learn",
                    "steps": "rollout/steps", "batch": "rollout/inference_batch", "memory": "dist/device_memory",
                }.items()
            }  # fmt: skip
            found[name] = row | {"num_weights": num_weights, "envs": envs, "tokens": tokens}
            print(f"{name:28}", {k: v if v is None else round(v, 3) for k, v in row.items()}, flush=True)
            if "out" in words:
                Path(words["out"]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
