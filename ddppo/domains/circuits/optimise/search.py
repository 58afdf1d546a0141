"""The search for a smaller circuit: rounds of walks until time, steps or patience are over."""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddppo.domains.circuits.optimise.walk import Progress
from ddppo.domains.circuits.optimise.workers import Workers
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import Cost, measures
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.found import replayed
from ddppo.errors import ConfigError, TrainingError
from ddppo.processes.signals import StopRequest
from ddppo.terminal import warn

_ROUND_STEPS = 1000  # of one walk, a fraction of a second: then walks tell each other what they found
_SAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How long: seconds of the clock, and steps of every walk. inf is no limit."""

    seconds: float
    steps: float


@dataclass(slots=True)
class Best:
    """The best circuit so far, and when it became better.

    rewrites lead to it from `start`. improvements: cost, gates, cx, depth and number of rewrites of each best, and the
    steps of all walks and the seconds until it was there.
    """

    start: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...] = ()
    improvements: list[dict[str, float]] = field(default_factory=list)

    def hear(self, told: Mapping[int, Progress], rewriter: Rewriter, cost: Cost, seconds: float) -> None:
        """Take the least costly of what walks tell, of the first of them where several are. Raises ConfigError."""
        for progress in told.values():
            if progress.rewrites is None or progress.cost >= self.cost:
                continue
            self.circuit, self.rewrites = replayed(rewriter, self.start, progress.rewrites), progress.rewrites
            self.cost = float(cost(self.circuit))
            if self.cost != progress.cost:
                raise ConfigError(
                    f"the cost of one circuit was {progress.cost:g} in a worker and {self.cost:g} here: it has to "
                    "follow from the circuit alone"
                )
            steps = sum(each.num_steps for each in told.values())
            said = {"cost": self.cost, **measures(self.circuit), "num_rewrites": len(self.rewrites)}
            self.improvements.append({**said, "env_steps": steps, "wall_s": round(seconds, 3)})


def search(
    workers: Workers, best: Best, rewriter: Rewriter, cost: Cost, budget: Budget, stop: StopRequest
) -> int:
    """Walk until the budget is spent, or a signal asks for the end; return how many rewrites were tried."""
    began = time.monotonic()
    until, left, said = began + budget.seconds, budget.steps, began
    told: dict[int, Progress] = {}
    while left > 0 and time.monotonic() < until and not stop.requested:
        try:
            told |= workers.go(int(min(_ROUND_STEPS, left)), until)
        except TrainingError as e:
            if not best.rewrites:
                raise
            warn(f"{e}; the search ends with what was found")
            break
        left -= _ROUND_STEPS
        now = time.monotonic()
        best.hear(told, rewriter, cost, now - began)
        if now - said >= _SAY_S:
            said = now
            _say(best, sum(progress.num_rewrites for progress in told.values()), now - began, until - now)
    return sum(progress.num_rewrites for progress in told.values())


def _say(best: Best, num_rewrites: int, seconds: float, left_s: float) -> None:
    counts = ", ".join(f"{what} {number}" for what, number in measures(best.circuit).items())
    ends = "" if math.isinf(left_s) else f", {max(0.0, left_s):.0f} s left"
    print(
        f"{seconds:5.0f} s: best cost {best.cost:g} ({counts}), {num_rewrites:,} rewrites tried, "
        f"{num_rewrites / seconds:,.0f}/s{ends}",
        file=sys.stderr,
        flush=True,
    )
