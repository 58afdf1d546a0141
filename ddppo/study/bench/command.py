"""`python -m ddppo.bench`: how fast is this code on this machine? Measure, compare or profile. Imports no torch."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed
from ddppo.options import whole_numbers
from ddppo.study.bench import results
from ddppo.study.bench.measured import Clock, Code, other_code, run_rounds, this_code
from ddppo.study.bench.results import Ratio, Result, check_rounds, differences, differences_of_files, read
from ddppo.study.bench.workloads import (
    CUSTOM,
    Configuration,
    Workload,
    check_overrides,
    configurations,
    fixed,
    missing_extra,
)

_PAIRED_ROUNDS, _ROUNDS = 7, 3
_CHOOSE = ("env=", "experiment=")  # settings that choose a workload of the user's own


@dataclass(slots=True)
class BenchConfig:
    workloads: Any = setting(None, "fixed workloads of experiment=bench/w1, ...; null is W1,W2")
    world_sizes: Any = setting(None, "W to measure; null is 1,2")
    rules: Any = setting(None, "scaling rules to measure at W > 1; null is strong,weak")
    rounds: int | None = setting(
        None,
        f"rounds, in each of which everything is run in turn; {_ROUNDS}, or {_PAIRED_ROUNDS} with against",
        low=1,
    )
    seconds: float = setting(5.0, "seconds of training measured in each run", above=0, high=3600)
    warmup_s: float = setting(1.0, "seconds of training before the measurement", low=0, high=3600)
    out: str | None = setting(
        None,
        "files for the result, e.g. a.json,b.jsonl: .json holds the whole result, .jsonl gets a line per "
        "configuration",
    )
    compare: Any = setting(None, "old.json,new.json, or old.json alone to compare with a new measurement")
    against: str | None = setting(
        None, "a commit, or the folder of another checkout, to measure beside this code"
    )
    tolerance: float = setting(0.05, "slowdown that compare and against allow", above=0, high=0.9)
    profile: bool = setting(
        False,
        "write traces and pages of where the time goes, into the folder out (outputs/profile), instead of"
        " measuring",
    )


def bench(options: BenchConfig, overrides: list[str]) -> bool:
    """Measure, compare or profile; return whether something became slower. Raises ConfigError, TrainingError."""
    _check(options, overrides)
    files = _words("compare", options.compare)
    if len(files) == 2:
        return _compare_files(options, files[0], files[1])
    todo = _todo(options, overrides)
    if options.profile:
        from ddppo.study.bench.measured import write_profiles

        for page in write_profiles(todo, Path(options.out or "outputs/profile"), _say):
            print(page)
        return False
    return _measure(options, todo, files)


def _measure(options: BenchConfig, todo: list[Configuration], files: list[str]) -> bool:
    """Measure, write and print the result; compare it with an older file or other code, if there is one."""
    num_rounds = options.rounds or (_PAIRED_ROUNDS if options.against else _ROUNDS)
    old = read(files[0]) if files else None
    if options.against or old:
        check_rounds(num_rounds, paired=bool(options.against))
    # 1. Run every configuration of this code, and of the other code, in turn.
    with ExitStack() as stack:
        codes = [this_code()]
        if options.against:
            codes.append(stack.enter_context(other_code(options.against)))
        about = _about(options, codes)
        clock = Clock(options.warmup_s, options.seconds)
        measurements = run_rounds(todo, codes, num_rounds, clock, _say)
    # 2. Write the result first, before anything else can fail; then print it.
    result = Result(options.out or "the new measurement", _ended(about), measurements, codes[0].name)
    for path in _words("out", options.out):
        replace(result, path=path).write()
    for code in codes:
        print(f"\n{code.name}, commit {code.commit or 'unknown'}{' with changes' if code.dirty else ''}")
        print(results.table(measurements, code.name))
    print(f"\nThis machine, lowest to highest of {num_rounds} rounds:\n{results.limits(measurements)}")
    # 3. Compare.
    ratios: dict[str, Ratio] = {}
    remarks: list[str] = []
    other = ""
    if options.against:
        ratios, other = differences(measurements, codes[0].name, codes[1].name), codes[1].name
    elif old:
        (ratios, remarks), other = differences_of_files(result, old), old.path
    return _judged(options, ratios, remarks, other)


def _compare_files(options: BenchConfig, old: str, new: str) -> bool:
    ratios, remarks = differences_of_files(read(new), read(old))
    return _judged(options, ratios, remarks, old)


def _judged(options: BenchConfig, ratios: dict[str, Ratio], remarks: list[str], other: str) -> bool:
    """Print the verdict on each ratio; return whether one of them is slower."""
    if ratios:
        print(f"\n{results.verdicts(ratios, options.tolerance, against=other)}")
    for remark in remarks:
        print(f"note: {remark}")
    return any(ratio.verdict(options.tolerance) == "slower" for ratio in ratios.values())


def _check(options: BenchConfig, overrides: list[str]) -> None:
    """Raise ConfigError for options that exclude one another or have no effect."""
    # At most one of the three ways.
    modes = [name for name in ("compare", "against", "profile") if getattr(options, name)]
    if len(modes) > 1:
        raise ConfigError(
            f"{' and '.join(f'{name}=' for name in modes)} exclude one another: give one at a time"
        )
    files = _words("compare", options.compare)
    if len(files) > 2:
        raise ConfigError(f"compare={options.compare}: give one file, or two: compare=old.json,new.json")
    if len(files) == 2:
        # Two files are compared without a measurement, so its options would have no effect.
        given = [
            name for name in ("workloads", "world_sizes", "rules", "rounds", "out") if getattr(options, name)
        ]
        if given or overrides:
            raise ConfigError(
                f"{given[0] + '=' if given else overrides[0]} has no effect with two files to compare: leave it out"
            )
    if options.profile and options.rounds:
        raise ConfigError(f"rounds={options.rounds} has no effect with profile=true: leave it out")
    # With profile=true, out= is a folder.
    out = [] if options.profile else _words("out", options.out)
    if wrong := [path for path in out if Path(path).suffix not in (".json", ".jsonl")]:
        raise ConfigError(f"out={wrong[0]}: give a file that ends in .json or .jsonl")


def _todo(options: BenchConfig, overrides: list[str]) -> list[Configuration]:
    """Return the configurations to run; raises ConfigError if `python -m ddppo.train` would refuse one of them."""
    check_overrides(overrides)
    world_sizes, rules = whole_numbers("world_sizes", options.world_sizes) or [1, 2], _rules(options.rules)
    chooses = any(o.startswith(_CHOOSE) for o in overrides)
    names = _words("workloads", options.workloads)
    if names and chooses:
        raise ConfigError(
            f"workloads={','.join(names)} and {next(o for o in overrides if o.startswith(_CHOOSE))} "
            "both choose the work: give one of them"
        )
    # The user's own workload, or fixed ones.
    if chooses:
        workloads = [Workload(CUSTOM, tuple(overrides))]
    else:
        workloads = [fixed(name, overrides) for name in names or ("W1", "W2")]
    # Workloads without their extra are skipped, with a note.
    skipped = [reason for reason in map(missing_extra, workloads) if reason]
    for reason in skipped:
        print(f"note: {reason}", file=sys.stderr)
    todo = [
        configured
        for workload in workloads
        if not missing_extra(workload)
        for configured in configurations(workload, world_sizes, rules)
    ]
    if not todo:
        raise ConfigError(f"nothing is left to measure: {'; '.join(skipped)}")
    # Compose every configuration now, so that a mistake appears before the first run.
    for configured in todo:
        composed(configured.overrides)
    return todo


def _words(name: str, given: Any) -> list[str]:
    """Return the words of `a,b` or `[a,b]`; none for null."""
    if given is None:
        return []
    items = given if isinstance(given, list) else str(given).split(",")
    words = [str(item).strip() for item in items]
    if not words or not all(words):
        raise ConfigError(f"{name}={given}: give one or several, e.g. {name}=a,b")
    return list(dict.fromkeys(words))


def _rules(given: Any) -> list[str]:
    words = _words("rules", given) or ["strong", "weak"]
    if unknown := [word for word in words if word not in ("strong", "weak")]:
        raise ConfigError(f"rules={unknown[0]}: must be one of strong, weak, or both")
    return words


def _about(options: BenchConfig, codes: list[Code]) -> dict[str, Any]:
    """Return the code, machine and settings of the bench, for its result."""
    from ddppo.records.provenance import machine, versions

    return {
        "git_commit": codes[0].commit,
        "git_dirty": codes[0].dirty,
        "against": codes[1].commit or codes[1].name if len(codes) > 1 else None,
        "machine": machine(),
        "versions": versions(),
        # The path of the result is no part of the measurement.
        "settings": {f.name: getattr(options, f.name) for f in fields(BenchConfig) if f.name != "out"},
        "started_at": _now(),
    }


def _ended(about: dict[str, Any]) -> dict[str, Any]:
    return about | {"finished_at": _now()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
