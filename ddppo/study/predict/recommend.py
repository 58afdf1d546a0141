"""Which W: the shortest time to target, the least cost, and the most speed at an efficiency that is still worth it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan

import numpy as np

from ddppo.errors import ConfigError
from ddppo.study.columns import aligned, whole
from ddppo.study.predict.model import FittedModel
from ddppo.study.runs import Run


@dataclass(frozen=True, slots=True)
class Study:
    """What choosing W takes: runs, and seconds until the target was reached at each W (inf: not by most seeds)."""

    runs: Sequence[Run]
    time_to_target_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """One W. hours until the target, or for the same environment steps where no target is known; cost as the price.

    efficiency is of throughput. measured says whether W was run; pareto whether no other W is both faster and cheaper.
    """

    world_size: int
    fps: float
    efficiency: float
    hours: float
    cost: float
    measured: bool
    pareto: bool = False


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The choices; None where no W qualifies. basis says what hours are hours of, remarks what was assumed."""

    fastest: Choice | None
    cheapest: Choice | None
    efficient: Choice | None
    efficiency_floor: float
    price_per_worker_hour: float
    table: tuple[Choice, ...]
    basis: str
    remarks: tuple[str, ...]

    def text(self, *, table: bool = True) -> str:
        """Return the recommendation in words, and the table it rests on."""
        floor = f"{100 * self.efficiency_floor:g} %"
        lines = [f"Hours are {self.basis}."]
        if self.fastest is None:
            lines.append("No W is known to reach the target: train longer, or lower target_return.")
        else:
            lines.append(f"Shortest time: {_said(self.fastest)}.")
        if self.efficient is None:
            lines.append(f"Efficiency of at least {floor}: no W that reaches the target keeps it.")
        else:
            lines.append(f"Fastest at an efficiency of at least {floor}: {_said(self.efficient)}.")
        if self.cheapest is not None:
            lines.append(f"Least cost: {_said(self.cheapest)}.")
        if not table:
            return "\n".join(lines)
        cells = [["W", "FPS", "E", "hours", "cost"]]
        cells += [
            [str(c.world_size), whole(c.fps), f"{c.efficiency:.3f}", _hours(c.hours), _hours(c.cost)]
            for c in self.table
        ]
        marks = ["measured" if c.measured else "predicted" for c in self.table]
        marks = [mark + (", Pareto" if c.pareto else "") for mark, c in zip(marks, self.table, strict=True)]
        numbers = aligned(cells, (7, 12, 8, 11, 11))
        lines += ["", *(f"{n}  {mark}" for n, mark in zip(numbers, ["", *marks], strict=True))]
        lines.append(
            f"Cost is W * hours * {self.price_per_worker_hour:g} per worker-hour. Pareto: no other W is both faster "
            "and cheaper."
        )
        return "\n".join([*lines, *self.remarks])


def recommend(
    study: Study,
    model: FittedModel | None = None,
    *,
    efficiency_floor: float = 0.7,
    price_per_worker_hour: float = 1.0,
    world_sizes: Sequence[int] | None = None,
) -> Recommendation:
    """Choose among the measured W, and others that the model predicts: `world_sizes`, or 2^k to twice the largest.

    Where T_W is measured it decides. A predicted W takes as many environment steps as its measured neighbour, T_W =
    steps / FPS(W): sample efficiency unchanged, which strong scaling gives by construction and weak scaling does not;
    so under weak scaling only measured W are compared once a target is set. Raises ConfigError for a floor outside
    0 to 1 or a negative price.
    """
    if not 0.0 <= efficiency_floor <= 1.0:
        raise ConfigError(f"efficiency_floor={efficiency_floor:g}: must be from 0 to 1")
    if price_per_worker_hour < 0.0:
        raise ConfigError(f"price_per_worker_hour={price_per_worker_hour:g}: must be at least 0")
    if not study.runs:
        raise ConfigError("there are no runs to choose from")
    fps = {w: _fps(study.runs, w) for w in sorted({r.world_size for r in study.runs})}
    measured = set(fps)
    remarks: list[str] = []
    times = {w: t for w, t in study.time_to_target_s.items() if w in measured and not isnan(t)}
    rule = study.runs[0].rule
    predictable = rule == "strong" or not times
    if world_sizes is None:
        world_sizes = [2**i for i in range((2 * max(measured)).bit_length())]
    if model is not None and predictable:
        for w in (w for w in world_sizes if w not in measured and model.divides(w)):
            fps[w] = model.predict([w])[0].fps
    elif model is not None and set(world_sizes) - measured:
        remarks.append(
            "Not predicted: time to target at W not measured. Under weak scaling the batch grows with W, and how many "
            "more steps learning then takes is known only from runs."
        )
    hours, basis = _hours_by_world_size(study.runs, fps, times, remarks)
    if len(fps) > len(measured) and times:
        remarks.append(
            "Predicted W: throughput is predicted, steps to the target are taken as measured at the nearest W (strong "
            "scaling learns from the same batch at every W)."
        )
    base = model.predict([1])[0].fps if model is not None and 1 not in fps else fps[min(fps)] / min(fps)
    if 1 in fps:
        base = fps[1]
    choices = [
        Choice(w, fps[w], fps[w] / (w * base), hours[w], price_per_worker_hour * w * hours[w], w in measured)
        for w in sorted(fps)
    ]
    table = tuple(_with_pareto(c, choices) for c in choices)
    reaching = [c for c in table if isfinite(c.hours)]
    worth_it = [c for c in reaching if c.efficiency >= efficiency_floor]
    return Recommendation(
        fastest=min(reaching, key=lambda c: (c.hours, c.world_size), default=None),
        cheapest=min(reaching, key=lambda c: (c.cost, c.hours), default=None),
        efficient=min(worth_it, key=lambda c: (c.hours, c.world_size), default=None),
        efficiency_floor=efficiency_floor,
        price_per_worker_hour=price_per_worker_hour,
        table=table,
        basis=basis,
        remarks=tuple(remarks),
    )


def _fps(runs: Sequence[Run], world_size: int) -> float:
    """Return the median over seeds."""
    return float(np.median([r.fps for r in runs if r.world_size == world_size]))


def _hours_by_world_size(
    runs: Sequence[Run], fps: Mapping[int, float], times: Mapping[int, float], remarks: list[str]
) -> tuple[dict[int, float], str]:
    if not times:
        steps = max(r.env_steps for r in runs)
        remarks.append(
            "No time to target is known: throughput alone decides, as if every W learned as well per step."
        )
        return {w: steps / f / 3600 for w, f in fps.items()}, f"for {steps:,} environment steps"
    hours = {}
    for w, f in fps.items():
        if w in times:
            hours[w] = times[w] / 3600
            continue
        nearest = min(times, key=lambda m: (abs(np.log(m / w)), m))
        # Both in steps: what the nearest measured W needed, at this one's speed.
        hours[w] = times[nearest] * fps[nearest] / f / 3600
    return hours, "to the target (median over seeds)"


def _with_pareto(choice: Choice, choices: Sequence[Choice]) -> Choice:
    beaten = any(
        o.hours <= choice.hours and o.cost <= choice.cost and (o.hours, o.cost) != (choice.hours, choice.cost)
        for o in choices
    )
    return replace(choice, pareto=isfinite(choice.hours) and not beaten)


def _said(c: Choice) -> str:
    how = "measured" if c.measured else "predicted"
    return (
        f"W={c.world_size} ({_hours(c.hours)} h, cost {_hours(c.cost)}, efficiency {c.efficiency:.2f}, {how})"
    )


def _hours(x: float) -> str:
    return "never" if x == inf else f"{x:,.4g}"
