"""What the rounds say: medians, fractions of the machine's limits, speedups; as one JSON object. Pure arithmetic."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.errors import ConfigError
from ddppo.files import stored, write_json
from ddppo.run.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.bench.comparison import Ratio, check_rounds, middle, paired_ratio, unpaired_ratio

SCHEMA_VERSION = 1
KIND = "ddppo.bench"
# Of a measurement, what a history keeps: its medians over rounds.
_KEPT = ("fps", "t_iter", "start_up_s", "memory_per_rank_mb", "peak_rss_mb", "wait_us", "learn_gflops")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration in one round: what was run, what it reached, and what the machine allowed just before.

    `run` and `limits` are as ddppo.study.bench.one_run and ddppo.study.bench.limits describe them.
    """

    round: int
    code: str
    workload: str
    world_size: int
    rule: str
    overrides: Sequence[str]
    run: Mapping[str, float]
    limits: Mapping[str, float]

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
        """Steps per second over what the machine allows, by measures that no code of ours takes part in."""
        return self.run["fps"] / math.sqrt(self.limits["matrix_gflops"] * self.limits["calls_per_s"])


def by_configuration(measurements: Iterable[Measurement], code: str) -> dict[str, list[Measurement]]:
    """Return the measurements of `code` by the name of their configuration, each in the order of rounds."""
    found: dict[str, list[Measurement]] = {}
    for each in measurements:
        if each.code == code:
            found.setdefault(each.name, []).append(each)
    return found


def medians(rounds: Sequence[Measurement]) -> dict[str, Any]:
    """Return the medians over the rounds of one configuration, the range of fps, and the parts of an iteration.

    The parts are fractions of t_iter.
    """
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
    """Return S(W) and its fellow over the W before, pair by pair: steps/s over those of the same round.

    strong: S is at most W. weak: the batch grows with W, and S is at most W too.
    """
    found = by_configuration(measurements, code)
    rows = []
    for workload, rule in dict.fromkeys((each[0].workload, each[0].rule) for each in found.values()):
        of_rule = sorted(
            (each for each in found.values() if each[0].workload == workload and each[0].rule == rule),
            key=lambda each: each[0].world_size,
        )
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
    """Return for each configuration how many times as fast `code` is as `other`, pair by pair of the same rounds."""
    ours, theirs = by_configuration(measurements, code), by_configuration(measurements, other)
    return {name: paired_ratio(_fps(ours[name]), _fps(theirs[name])) for name in ours}


def differences_of_files(new: "Result", old: "Result") -> tuple[dict[str, Ratio], list[str]]:
    """Return for each configuration that both hold how many times as fast it is in `new`, and remarks.

    Speeds count relative to what the machine allowed in the same round, for a shared machine is another every time.
    Raises ConfigError where there is nothing to compare.
    """
    ratios, remarks = {}, []
    ours = by_configuration(new.measurements, new.code)
    theirs = by_configuration(old.measurements, old.code)
    for name, rounds in ours.items():
        if name not in theirs:
            remarks.append(f"{name} is only in {new.path}")
        elif list(rounds[0].overrides) != list(theirs[name][0].overrides):
            remarks.append(f"{name} has other settings in {new.path} and {old.path}, and is left out")
        else:
            check_rounds(min(len(rounds), len(theirs[name])), paired=False)
            ratios[name] = unpaired_ratio(_relative(rounds), _relative(theirs[name]))
    remarks += [f"{name} is only in {old.path}" for name in theirs if name not in ours]
    if not ratios:
        raise ConfigError(f"{new.path} and {old.path} have no configuration in common")
    for what in ("cpu", "cores"):
        now, then = (of.about.get("machine", {}).get(what) for of in (new, old))
        if now != then:
            remarks.append(f"another machine, {what} {now} instead of {then}: read with care")
    return ratios, remarks


def _fps(rounds: Sequence[Measurement]) -> list[float]:
    return [each.run["fps"] for each in rounds]


def _relative(rounds: Sequence[Measurement]) -> list[float]:
    return [each.relative_fps for each in rounds]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return middle(known) if known else None


def _in_json(ratio: Ratio) -> dict[str, float]:
    return {"estimate": ratio.estimate, "low": ratio.low, "high": ratio.high}


# -- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """A bench: where it is stored, all that describes it, and its measurements. `code` is whose speed it tells."""

    path: str
    about: Mapping[str, Any]
    measurements: Sequence[Measurement]
    code: str

    def in_json(self) -> dict[str, Any]:
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
        """Write the whole as JSON, or append a line for each configuration where the path ends in .jsonl."""
        path = Path(self.path)
        whole = self.in_json()
        with stored(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".jsonl":
            write_json(path, whole)
            return
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
    """Read a result that `Result.write` wrote. Raises ConfigError where it is none."""
    try:
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"{path} is not JSON, as python -m ddppo.bench out=<file>.json writes it") from e
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
