"""Is one speed different from another? Medians, speedups and comparisons of measurements, in files and tables.

Rounds on a shared machine are few and have outliers, so that means and deviations say little. Ratios have exact
intervals that assume no distribution. Pure arithmetic.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.errors import ConfigError
from ddppo.files import stored, write_json
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.columns import aligned

ERROR = 0.05  # probability that the truth lies below the interval, and that it lies above
SCHEMA_VERSION = 1
KIND = "ddppo.bench"
# Numbers of a measurement with a median over rounds in the result.
_KEPT = ("fps", "t_iter", "start_up_s", "memory_per_rank_mb", "peak_rss_mb", "wait_us", "learn_gflops")
_HEAD = ("", "steps/s", "low to high", "S(W)", "start s", "t_iter ms")
_LIMITS = ("MB/rank", "of env", "of matrix", "wait us")


# -- Ratios with intervals.


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two speeds."""

    estimate: float
    low: float  # of the 90 % interval
    high: float
    count: int  # rounds

    def verdict(self, tolerance: float) -> str:
        """Return slower, faster, same or unclear.

        slower, faster: by more than `tolerance`, and not by chance (the interval excludes 1). same: the whole interval
        is within the tolerance. unclear: anything else; more rounds would tell.
        """
        if self.estimate < 1 - tolerance and self.high < 1:
            return "slower"
        if self.estimate > 1 + tolerance and self.low > 1:
            return "faster"
        return "same" if self.low >= 1 - tolerance and self.high <= 1 + tolerance else "unclear"


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median of the ratios of pairs measured side by side, with the interval of the sign test.

    The interval is [r_(k), r_(n+1-k)] for the largest k with P(Binomial(n, 1/2) < k) <= ERROR. Fewer than 5 pairs have
    none; then it is [0, inf].

    Source: Conover 1999, Practical Nonparametric Statistics, ch. 3.2.
    """
    ratios = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    n = len(ratios)
    # tails[k] = P(Binomial(n, 1/2) < k).
    tails = [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n + 1)]
    k = max(k for k, tail in enumerate(tails) if tail <= ERROR)
    low, high = (ratios[k - 1], ratios[n - k]) if k else (0.0, math.inf)
    return Ratio(middle(ratios), low, high, n)


def unpaired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the median of the ratios of all pairs (Hodges and Lehmann), with the interval of the Mann-Whitney test.

    The interval is [r_(k), r_(mn+1-k)] for the largest k with P(U < k) <= ERROR, where U is the Mann-Whitney statistic
    of two samples of one distribution. It takes at least 3 against 3 values.

    Source: Conover 1999, Practical Nonparametric Statistics, ch. 5.4.
    """
    m, n = len(numerators), len(denominators)
    ratios = sorted(a / b for a in numerators for b in denominators)
    counts = _orders(m, n)
    # The largest k with a tail of at most ERROR.
    k, tail = 0, counts[0]
    while tail <= ERROR * math.comb(m + n, m):
        k += 1
        tail += counts[k]
    low, high = (ratios[k - 1], ratios[m * n - k]) if k else (0.0, math.inf)
    return Ratio(middle(ratios), low, high, min(m, n))


def _orders(m: int, n: int) -> list[int]:
    """Return, for u = 0 to m n, the number of orders of m and n values in which u pairs have the first value first.

    These are the coefficients of the Gaussian binomial (m + n over m), by its product formula.
    """
    counts = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # times 1 - q^(n + i)
            counts[u] -= counts[u - n - i]
        for u in range(i, m * n + 1):  # over 1 - q^i
            counts[u] += counts[u - i]
    return counts


def check_rounds(num_rounds: int, *, paired: bool) -> None:
    """Raise ConfigError if no result of so few rounds could be told from chance."""
    fewest = 5 if paired else 3
    if num_rounds < fewest:
        raise ConfigError(
            f"rounds={num_rounds} can tell no slowdown from chance: a comparison needs rounds={fewest} or more"
        )


# -- Measurements, and statistics over rounds.


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration in one round."""

    round: int
    code: str  # the name of the code
    workload: str
    world_size: int
    rule: str
    overrides: Sequence[str]
    run: Mapping[str, float]  # numbers of the run: study/bench/measured.py
    limits: Mapping[str, float]  # of the machine just before: study/bench/limits.py

    @property
    def key(self) -> tuple[str, int, str]:
        return self.workload, self.world_size, self.rule

    @property
    def name(self) -> str:
        return f"{self.workload} W={self.world_size}{' weak' if self.rule == 'weak' else ''}"

    @property
    def fraction_of_env(self) -> float:
        return self.run["fps"] / self.limits["env_fps"]

    @property
    def fraction_of_matrix(self) -> float:
        return self.run["learn_gflops"] / self.limits["matrix_gflops"]

    @property
    def relative_fps(self) -> float:
        """Steps per second relative to limits of the machine that contain none of our code."""
        return self.run["fps"] / math.sqrt(self.limits["matrix_gflops"] * self.limits["calls_per_s"])


def by_configuration(measurements: Iterable[Measurement], code: str) -> dict[str, list[Measurement]]:
    """Return the measurements of `code` by name of configuration, each in the order of rounds."""
    found: dict[str, list[Measurement]] = {}
    for each in measurements:
        if each.code == code:
            found.setdefault(each.name, []).append(each)
    return found


def medians(rounds: Sequence[Measurement]) -> dict[str, Any]:
    """Return medians over the rounds of one configuration, the range of fps, and the parts as fractions of t_iter."""
    kept = {name: _median([each.run[name] for each in rounds]) for name in _KEPT}
    fps = [each.run["fps"] for each in rounds]
    return {
        "configuration": rounds[0].name,
        **kept,
        "fps_low": min(fps),
        "fps_high": max(fps),
        "fractions": {
            part: middle([each.run[part] / each.run["t_iter"] for each in rounds]) for part in EXCLUSIVE_PARTS
        },
        "of_env": middle([each.fraction_of_env for each in rounds]),
        "of_matrix": middle([each.fraction_of_matrix for each in rounds]),
        "relative_fps": middle([each.relative_fps for each in rounds]),
        "rounds": len(rounds),
    }


def speedups(measurements: Sequence[Measurement], code: str) -> list[dict[str, Any]]:
    """Return, for each W above 1, the speedup S(W) over W = 1 and over the next smaller W, by pairs of equal rounds.

    Under both scaling rules the ideal S is W (under weak scaling the batch grows with W).
    """
    found = by_configuration(measurements, code)
    rows = []
    for workload, rule in dict.fromkeys((each[0].workload, each[0].rule) for each in found.values()):
        of_rule = sorted(
            (each for each in found.values() if each[0].workload == workload and each[0].rule == rule),
            key=lambda each: each[0].world_size,
        )
        # W = 1 has the same configuration under both rules.
        alone = [each for each in found.values() if each[0].workload == workload and each[0].world_size == 1]
        before = alone[0] if alone else None
        for rounds in of_rule:
            if rounds[0].world_size > 1:
                row: dict[str, Any] = {"configuration": rounds[0].name, "S": None, "over": None}
                if alone:
                    row["S"] = _in_json(paired_ratio(_fps(rounds), _fps(alone[0])))
                if before is not None:
                    row["over"] = before[0].world_size
                    row["ratio"] = _in_json(paired_ratio(_fps(rounds), _fps(before)))
                rows.append(row)
            before = rounds
    return rows


def differences(measurements: Sequence[Measurement], code: str, other: str) -> dict[str, Ratio]:
    """Return, by configuration, the speed of `code` / the speed of `other`, by pairs of equal rounds."""
    ours, theirs = by_configuration(measurements, code), by_configuration(measurements, other)
    return {name: paired_ratio(_fps(ours[name]), _fps(theirs[name])) for name in ours}


def differences_of_files(new: "Result", old: "Result") -> tuple[dict[str, Ratio], list[str]]:
    """Return, for each configuration in both results, its speed in `new` / its speed in `old`, and remarks.

    Speeds are relative to the machine's limits in the same round, because a shared machine is different every time.
    Raises ConfigError if there is nothing to compare.
    """
    ratios, remarks = {}, []
    ours = by_configuration(new.measurements, new.code)
    theirs = by_configuration(old.measurements, old.code)
    for name, rounds in ours.items():
        # Compare only equal settings.
        if name not in theirs:
            remarks.append(f"{name} is only in {new.path}")
        elif _settings(rounds[0]) != _settings(theirs[name][0]):
            remarks.append(f"{name} has other settings in {new.path} and {old.path}, and is left out")
        else:
            check_rounds(min(len(rounds), len(theirs[name])), paired=False)
            ratios[name] = unpaired_ratio(_relative(rounds), _relative(theirs[name]))
    remarks += [f"{name} is only in {old.path}" for name in theirs if name not in ours]
    if not ratios:
        raise ConfigError(f"{new.path} and {old.path} have no configuration in common")
    # Another machine makes even relative speeds doubtful.
    for what in ("cpu", "cores"):
        now, then = (of.about.get("machine", {}).get(what) for of in (new, old))
        if now != then:
            remarks.append(f"another machine, {what} {now} instead of {then}: read with care")
    return ratios, remarks


def _settings(measurement: Measurement) -> list[str]:
    """Return the settings that a measurement is of.

    Results of before dist.reduction=auto do not name dist.reduction=fast, with which they were measured.
    """
    return [each for each in measurement.overrides if each != "dist.reduction=fast"]


def _fps(rounds: Sequence[Measurement]) -> list[float]:
    return [each.run["fps"] for each in rounds]


def _relative(rounds: Sequence[Measurement]) -> list[float]:
    return [each.relative_fps for each in rounds]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return middle(known) if known else None


def _in_json(ratio: Ratio) -> dict[str, float]:
    return {"estimate": ratio.estimate, "low": ratio.low, "high": ratio.high}


# -- Files.


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a bench."""

    path: str
    about: Mapping[str, Any]  # commit, machine, settings, ...
    measurements: Sequence[Measurement]
    code: str  # the name of the measured code

    def in_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        found = by_configuration(self.measurements, self.code)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            **self.about,
            "code": self.code,
            "medians": [medians(rounds) for rounds in found.values()],
            "speedups": speedups(self.measurements, self.code),
            "measurements": [
                {name: getattr(each, name) for name in Measurement.__slots__} for each in self.measurements
            ],
        }

    def write(self) -> None:
        """Write the result as JSON or, if the path ends in .jsonl, append a line for each configuration."""
        path = Path(self.path)
        whole = self.in_json()
        with stored(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".jsonl":
            write_json(path, whole)
            return
        # A line of a history: origin, medians, speedup, machine.
        about = {name: self.about.get(name) for name in ("git_commit", "git_dirty", "started_at", "against")}
        cpu = {name: self.about.get("machine", {}).get(name) for name in ("cpu", "cores")}
        gained = {row["configuration"]: row["S"] for row in whole["speedups"]}
        lines = [
            json.dumps(about | row | {"S": gained.get(row["configuration"])} | cpu)
            for row in whole["medians"]
        ]
        with stored(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def read(path: str) -> Result:
    """Read a file that `Result.write` wrote. Raises ConfigError for any other file."""
    try:
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"{path} is not JSON, as python -m ddppo.bench out=<file>.json writes it") from e
    # Another file, another version, or a damaged one.
    if not isinstance(whole, dict) or whole.get("kind") != KIND:
        raise ConfigError(f"{path} is not a result of python -m ddppo.bench out=<file>.json")
    if whole.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema_version={whole.get('schema_version')}, and {SCHEMA_VERSION} is read here: measure anew"
        )
    try:
        measurements = [Measurement(**each) for each in whole["measurements"]]
        code = whole["code"]
        assert all(each.relative_fps > 0 for each in measurements)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AssertionError) as e:
        raise ConfigError(f"{path} is damaged ({type(e).__name__}: {e}): measure anew") from e
    about = {k: v for k, v in whole.items() if k not in ("medians", "speedups", "measurements")}
    return Result(path, about, measurements, code)


# -- Tables for the terminal.


def table(measurements: Sequence[Measurement], code: str) -> str:
    """Return a line per configuration: medians over rounds, shares of an iteration, fractions of the limits."""
    gained = {row["configuration"]: row["S"] for row in speedups(measurements, code)}
    rows: list[Sequence[str]] = [
        (*_HEAD, *(f"{part.removeprefix('t_')} %" for part in EXCLUSIVE_PARTS), *_LIMITS)
    ]
    for name, rounds in by_configuration(measurements, code).items():
        row = medians(rounds)
        gain = gained.get(name)
        memory = row["memory_per_rank_mb"]
        rows.append(
            (
                name,
                f"{row['fps']:,.0f}",
                f"{row['fps_low']:,.0f} to {row['fps_high']:,.0f}",
                f"{gain['estimate']:.2f}" if gain else "",
                f"{row['start_up_s']:.1f}",
                f"{1e3 * row['t_iter']:.1f}",
                *(f"{100 * row['fractions'][part]:.0f}" for part in EXCLUSIVE_PARTS),
                "?" if memory is None else f"{memory:.0f}",
                f"{100 * row['of_env']:.1f} %",
                f"{100 * row['of_matrix']:.1f} %",
                f"{row['wait_us']:.0f}",
            )
        )
    return "\n".join(aligned(rows, [0] * len(rows[0])))


def limits(measurements: Sequence[Measurement]) -> str:
    """Return the machine's limits, from lowest to highest over the rounds."""
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
    """Return a line per configuration: the ratio of speeds, its interval, and the verdict."""
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
