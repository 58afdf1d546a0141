"""How long the gradient of a minibatch of 256 observations of Atari takes, eager and compiled, on one thread.

PYTHONPATH=. python experiments/pixels/compiled.py > experiments/pixels/compiled.csv      # each compiles for a minute
"""

import statistics
import time
from collections.abc import Callable

import torch
from ddppo.ppo.step import EagerStep

from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.loop.compute import example, worst_error
from ddppo.models.build import build_model
from ddppo.ppo.compiled import CompiledStep
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from experiments.pixels.precision import MODELS, ROUNDS, ROWS


def measure(size: int, settings: dict, precision: str) -> tuple[float, float, float]:
    """Return milliseconds of processor time, eager and compiled, and the error of the compiled gradient."""
    spec = EnvSpec(ArraySpec((4, size, size), "uint8"), ActionSpec("discrete", (6,)))
    model_config = settings_of("model", activation="relu", shared_trunk=True, precision=precision, **settings)
    config, group = PPOSettings(), Group()
    model = build_model(spec, model_config, 0, torch.float32)
    parameters = FlatParameters(model)
    sync = FlatSync(model, parameters, group)
    optimizer = torch.optim.Adam([parameters.vector], fused=True)
    eager = EagerStep(
        config,
        model.distribution,
        parameters.vector,
        optimizer,
        at=sync.model,
        backward_=sync.backward_,
        scale=None,
    )
    minibatch = example(spec, model, ROWS, torch.Generator().manual_seed(0))
    compiled = CompiledStep(config, model, optimizer, group.sum_, num_rows=ROWS)
    error = worst_error(compiled, spec, model, config)
    took = milliseconds(
        lambda: eager.take([minibatch], ROWS), lambda: compiled.take([minibatch], ROWS), (eager, compiled)
    )
    return *took, error


def milliseconds(
    eager: Callable[[], None], compiled: Callable[[], None], steps: tuple[EagerStep, CompiledStep]
) -> tuple[float, float]:
    """Return the medians of ROUNDS turns of each after two that warm up."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 2):
        for step, take, times in zip(steps, (eager, compiled), took, strict=True):
            step.begin(1e-6, 0.2)
            start = time.process_time()
            take()
            times.append(1000 * (time.process_time() - start))
    return statistics.median(took[0][2:]), statistics.median(took[1][2:])


def main() -> None:
    torch.set_num_threads(1)
    print("model,precision,eager_ms,compiled_ms,ratio,error")
    for name, (size, settings) in MODELS.items():
        for precision in ("float32", "bfloat16"):
            eager, compiled, error = measure(size, settings, precision)
            print(
                f"{name},{precision},{eager:.1f},{compiled:.1f},{eager / compiled:.2f},{error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
