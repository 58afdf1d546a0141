"""Tokens per second that a model of Hugging Face types, with random weights and without a task.

    PYTHONPATH=. python experiments/text_generation/tokens_per_s.py [tiny] [100M] [float32|bfloat16]

Each of 8 rows has a prompt of another length, up to 32 tokens fewer than 256 or 1,024. Then it types 32 tokens; after
16 tokens four rows have ended their turns. Timed is the typing, the median of three times, in seconds of the processor
and on one thread, so that other programs of the machine hardly count.
"""

import statistics
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.hf_policy import HuggingFacePolicy
from ddppo.envs.probing.probe import probe
from tests.domains.text.chat_models import tokenizer_of

NETS = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "100M": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
}
ROWS, TYPED = 8, 32


def policy(net: str, precision: str) -> HuggingFacePolicy:
    """Return a Llama of random weights with half as many heads of keys as of queries, and LoRA of rank 8."""
    torch.manual_seed(0)
    sizes = NETS[net]
    config = transformers.LlamaConfig(
        vocab_size=16384,
        num_key_value_heads=sizes["num_attention_heads"] // 2,
        max_position_embeddings=2048,
        **sizes,
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer_of().save_pretrained(folder)  # of bytes; the model types any of its 16,384 tokens here
        more = {} if precision == "float32" else {"precision": precision}
        spec = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/BytesRepeat-v0"))
        return HuggingFacePolicy(spec, settings_of("model", name="hf", hf_path=folder, **more))


@torch.inference_mode()
def tokens_per_s(model: HuggingFacePolicy, length: int) -> float:
    cache, rows = model.cache(ROWS, length), np.arange(ROWS)
    counts = np.linspace(length // 4, length - TYPED, ROWS).astype(np.int64)
    tokens = np.random.default_rng(0).integers(0, 16384, (ROWS, length))
    cache.extend(rows, tokens[:, : counts.max()], counts)
    cache.extend(rows, tokens[:, :1], np.ones_like(rows))  # where rows are moved after a prompt
    began, typed = time.process_time(), 0
    for step in range(TYPED - 1):
        some = rows if step < TYPED // 2 else rows[::2]
        cache.extend(some, tokens[some, step, None], np.ones_like(some))
        typed += len(some)
    return typed / (time.process_time() - began)


def main() -> None:
    words = sys.argv[1:]
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    precision = next((word for word in words if word in ("float32", "bfloat16")), "float32")
    print(f"torch {torch.__version__}, one thread, {precision}")
    for net in [word for word in words if word in NETS] or NETS:
        model = policy(net, precision).eval()
        for length in (256, 1024):
            found = [tokens_per_s(model, length) for _ in range(3)]
            print(
                f"{net:5} rows of {length:5,} tokens: {statistics.median(found):8,.0f} tokens/CPU s",
                flush=True,
            )


if __name__ == "__main__":
    main()
