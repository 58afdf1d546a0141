"""What one published point tells: the overhead of an iteration it implies, and where the same system would end.

A speedup S at W0 workers says how much longer an iteration took than S = W0 would have allowed, h = W0 / S - 1 ideal
iterations, and nothing about how that grows. The truth of a synchronous system lies mostly between none at all,
S(W) = W / (1 + h), and growth in proportion, h(W) = sigma (W - 1) with sigma = h / (W0 - 1), which is Amdahl's law.
Weak scaling is meant, as published: a worker keeps its batch.
"""

from ddppo.errors import ConfigError
from ddppo.study.predict.usl import Usl


def overhead(world_size: int, speedup: float) -> float:
    """Return h = W / S - 1 in ideal iterations, negative if superlinear. Raises ConfigError for what cannot be one."""
    if world_size < 2 or not speedup > 0:
        rule = "needs at least 2 workers and a speedup above 0"
        raise ConfigError(f"published world_size={world_size}, speedup={speedup:g}: {rule}")
    return world_size / speedup - 1


def text(world_size: int, speedup: float) -> str:
    """Return what the point implies and what it cannot say."""
    w, h, e = world_size, overhead(world_size, speedup), speedup / world_size
    said = f"{speedup:g} times at {w} workers: efficiency {100 * e:.1f} %, overhead {h:.3f} of an ideal iteration.\n"
    if h <= 0:
        return said + "Superlinear: more than W workers' worth; no overhead to extrapolate."
    sigma = h / (w - 1)
    amdahl = Usl(1.0, sigma, 0.0)
    grown = f"{amdahl.fps(2 * w):,.1f} and {amdahl.fps(8 * w):,.1f} times, never above {1 / sigma:,.0f}"
    return (
        f"{said}If the overhead stays as it is (bandwidth-bound sums), {2 * w} workers are {2 * w / (1 + h):,.1f} "
        f"times as fast as one and {8 * w} are {8 * w / (1 + h):,.1f} times.\nIf it grows with W (rings bound by "
        f"latency, a shared resource), {grown}; half the workers are wasted beyond W={1 + 1 / sigma:,.0f}.\nOne point "
        "cannot say which: that needs times per rank at two or more W (give a sweep folder instead)."
    )
