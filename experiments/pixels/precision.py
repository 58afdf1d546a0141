"""How long a minibatch of 256 observations of Atari takes, forward and backward, by model and precision, on one thread.

python experiments/pixels/precision.py > experiments/pixels/precision.csv
"""

import os
import statistics
import time
from pathlib import Path

import torch

from ddppo.config.variants import settings_of
from ddppo.models.actor_critic import random_obs
from ddppo.models.build import build_model
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
SMALL = [[16, 4, 2], [32, 4, 2], [32, 3, 2]]
MODELS = {  # name, pixels of height and width, settings
    "cnn (Nature)": (84, {"name": "cnn", "conv_layers": NATURE, "hidden_sizes": [512]}),
    "cnn (42 x 42)": (42, {"name": "cnn", "conv_layers": SMALL, "hidden_sizes": [256]}),
    "resnet": (84, {"name": "resnet", "hidden_sizes": [256]}),
}
ROWS, ROUNDS = 256, 9


def milliseconds(size: int, settings: dict, precision: str) -> float:
    """Return the median of ROUNDS minibatches after two that warm up."""
    spec = EnvSpec(ArraySpec((4, size, size), "uint8"), ActionSpec("discrete", (6,)))
    config = settings_of("model", activation="relu", shared_trunk=True, precision=precision, **settings)
    model = build_model(spec, config, 0, torch.float32)
    obs = random_obs(spec, ROWS, torch.float32, torch.Generator().manual_seed(0))
    took = []
    for _ in range(ROUNDS + 2):
        start = time.process_time()
        params, values = model(obs)
        (params.square().mean() + values.square().mean()).backward()
        took.append(1000 * (time.process_time() - start))
    return statistics.median(took[2:])


def main() -> None:
    torch.set_num_threads(1)
    flags = Path("/proc/cpuinfo").read_text().split()
    has = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    print(
        f"# {os.cpu_count()} cores, {' and '.join(has) or 'no bfloat16 in hardware'}, torch {torch.__version__}"
    )
    print("model,float32_ms,bfloat16_ms,ratio")
    for name, (size, settings) in MODELS.items():
        exact, rounded = (milliseconds(size, settings, precision) for precision in ("float32", "bfloat16"))
        print(f"{name},{exact:.1f},{rounded:.1f},{exact / rounded:.2f}", flush=True)


if __name__ == "__main__":
    main()
