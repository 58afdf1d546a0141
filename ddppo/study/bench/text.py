"""A bench's results as tables for a terminal."""

from collections.abc import Mapping, Sequence

from ddppo.run.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.bench.comparison import Ratio
from ddppo.study.bench.results import Measurement, by_configuration, medians, speedups
from ddppo.study.columns import aligned

_HEAD = ("", "steps/s", "low to high", "S(W)", "start s", "t_iter ms")
_LIMITS = ("MB/rank", "of env", "of matrix", "wait us")


def table(measurements: Sequence[Measurement], code: str) -> str:
    """Return a line per configuration: medians over rounds, the split of an iteration in %, fractions of the limits."""
    gained = {row["configuration"]: row["S"] for row in speedups(measurements, code)}
    rows: list[Sequence[str]] = [
        (*_HEAD, *(f"{part.removeprefix('t_')} %" for part in EXCLUSIVE_PARTS), *_LIMITS)
    ]
    for name, rounds in by_configuration(measurements, code).items():
        of = medians(rounds)
        gain = gained.get(name)
        memory = of["memory_per_rank_mb"]
        rows.append(
            (
                name,
                f"{of['fps']:,.0f}",
                f"{of['fps_low']:,.0f} to {of['fps_high']:,.0f}",
                f"{gain['estimate']:.2f}" if gain else "",
                f"{of['start_up_s']:.1f}",
                f"{1e3 * of['t_iter']:.1f}",
                *(f"{100 * of['fractions'][part]:.0f}" for part in EXCLUSIVE_PARTS),
                "?" if memory is None else f"{memory:.0f}",
                f"{100 * of['of_env']:.1f} %",
                f"{100 * of['of_matrix']:.1f} %",
                f"{of['wait_us']:.0f}",
            )
        )
    return "\n".join(aligned(rows, [0] * len(rows[0])))


def limits(measurements: Sequence[Measurement]) -> str:
    """Return the machine's limits that were measured beside the runs: lowest to highest over rounds."""
    lines = []
    for name, rounds in by_configuration(measurements, measurements[0].code).items():
        found = [each.limits for each in rounds]
        lines.append(
            f"{name}: {_range([each['env_fps'] for each in found])} steps/s of the environments alone, "
            f"{_range([each['matrix_gflops'] for each in found])} GFLOP/s, in {found[0]['num_processes']:.0f} processes"
        )
    latencies = [each.limits["collective_us"] for each in measurements]
    lines.append(f"a sum of 37 kB over 2 ranks: {_range(latencies)} us")
    return "\n".join(lines)


def verdicts(ratios: Mapping[str, Ratio], tolerance: float, *, against: str) -> str:
    """Return a line per configuration: how many times as fast, between which bounds, and what that means."""
    rows: list[Sequence[str]] = [("", "times as fast", "90 % interval", "rounds", "verdict")]
    rows += [
        (name, f"{r.estimate:.3f}", f"{r.low:.3f} to {r.high:.3f}", str(r.count), r.verdict(tolerance))
        for name, r in ratios.items()
    ]
    lines = [f"Against {against}, with a tolerance of {100 * tolerance:g} %:"]
    lines += aligned(rows, [0] * len(rows[0]))
    if any(r.verdict(tolerance) == "unclear" for r in ratios.values()):
        lines.append("unclear: the noise hides a difference of that size; more rounds= would tell")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    low, high = (f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
