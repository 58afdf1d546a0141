"""From the runs of a folder to those of one study: same task, scaling rule and settings, nothing stale, one target."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ddppo.scaling.runs import LeftOut, Reading, Run

# What may differ between runs of one study: it names the run, or changes what is recorded but not what is learnt.
_FREE = ("dist.", "log.", "checkpoint.", "seed", "resume", "target_return", "env.slow_ranks")


def one_study(found: Reading, *, env: str | None = None, rule: str | None = None) -> Reading:
    """Keep the runs of one study: same task, rule and settings but for world_size, seed and dist.*.

    Of several the one with most runs is kept (then the newest), among those that `env` and `rule` allow. Of runs
    with the same W the settings of dist.* are the same, and of those with the same W and seed the newest is kept.
    """
    left_out, remarks = list(found.left_out), list(found.remarks)
    wanted = []
    for run in found.runs:
        if (env is None or run.env_id == env) and (rule is None or run.rule == rule):
            wanted.append(run)
        else:
            asked = " ".join(f"{k}={v}" for k, v in (("env", env), ("rule", rule)) if v is not None)
            left_out.append(
                LeftOut(run.path, f"is {run.env_id}, {run.rule} scaling", f"not asked for ({asked})")
            )
    kept = _largest(wanted, _study_key)
    if kept:
        others_out = [LeftOut(run.path, *_why_another_study(run, kept[0])) for run in _others(wanted, kept)]
        left_out += others_out
        others = len({_study_key(run) for run in wanted}) - 1
        if others:
            remarks.append(
                f"The folder mixes {others + 1} studies; this report is about the largest: {kept[0].env_id}, "
                f"{kept[0].rule} scaling, {len(kept)} of {len(wanted)} runs."
            )
    kept, variants = _one_variant_per_world_size(kept)
    kept, duplicates = _newest(kept)
    return Reading(kept, left_out + variants + duplicates, remarks + _origins(kept))


def _study_key(run: Run) -> str:
    settings = {k: v for k, v in flat(run.config).items() if not k.startswith(_FREE)}
    return json.dumps([run.env_id, run.rule, settings], sort_keys=True, default=str)


def _variant_key(run: Run) -> str:
    settings = {
        k: v
        for k, v in flat(run.config).items()
        if k.startswith(("dist.", "env.slow_ranks")) and k not in ("dist.world_size", "dist.timeout_s")
    }
    return json.dumps(settings, sort_keys=True, default=str)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names; an empty mapping is kept as a value."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, dict) and value
        result |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return result


def _largest(runs: list[Run], key: Callable[[Run], str]) -> list[Run]:
    """Return the largest group of runs with one key, the one with the newest run if several are as large."""
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return max(groups.values(), key=lambda group: (len(group), max(map(_finished, group))), default=[])


def _others(runs: list[Run], kept: list[Run]) -> list[Run]:
    paths = {run.path for run in kept}
    return [run for run in runs if run.path not in paths]


def _why_another_study(run: Run, kept: Run) -> tuple[str, str]:
    if run.env_id != kept.env_id:
        return f"is {run.env_id}, the study is {kept.env_id}", f"report it by env={run.env_id}"
    if run.rule != kept.rule:
        return f"is {run.rule} scaling, the study is {kept.rule}", f"report it by rule={run.rule}"
    return f"differs in {_differences(run, kept, _FREE)}", "report its study from a folder of its own"


def _differences(run: Run, kept: Run, ignored: tuple[str, ...]) -> str:
    mine, theirs = flat(run.config), flat(kept.config)
    keys = [k for k in sorted(mine | theirs) if not k.startswith(ignored) and mine.get(k) != theirs.get(k)]
    shown = ", ".join(f"{k}={mine.get(k)} (the study: {theirs.get(k)})" for k in keys[:3])
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _one_variant_per_world_size(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    kept, left_out = [], []
    for world_size in sorted({run.world_size for run in runs}):
        group = [run for run in runs if run.world_size == world_size]
        best = _largest(group, _variant_key)
        kept += best
        for run in _others(group, best):
            varied = tuple({k for k in flat(run.config) if not k.startswith(("dist.", "env.slow_ranks"))})
            what = _differences(run, best[0], (*varied, "dist.timeout_s"))
            remedy = "report it from a folder of its own"
            left_out.append(
                LeftOut(run.path, f"differs from the other runs of W={world_size} in {what}", remedy)
            )
    return kept, left_out


def _newest(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    newest: dict[tuple[int, int], Run] = {}
    left_out = []
    for run in sorted(runs, key=_finished):
        older = newest.get((run.world_size, run.seed))
        if older is not None:
            what = f"is an older run of W={run.world_size} seed={run.seed} than {run.path}"
            left_out.append(LeftOut(older.path, what, "nothing to do, or remove it"))
        newest[run.world_size, run.seed] = run
    return [newest[key] for key in sorted(newest)], left_out


def _finished(run: Run) -> tuple[str, str]:
    return str(run.summary.get("finished_at", "")), run.path


def _origins(runs: list[Run]) -> list[str]:
    """Say where runs were made under different conditions, which a comparison over W should not be."""
    remarks = []
    for what, get in (
        ("commits", lambda s: s.get("git_commit")),
        ("machines", lambda s: (s.get("machine") or {}).get("hostname")),
        ("devices", lambda s: (s.get("derived") or {}).get("device")),
    ):
        found = Counter(str(get(run.summary))[:12] for run in runs if run.summary)
        if len(found) > 1:
            listed = ", ".join(f"{name} ({count} runs)" for name, count in found.most_common(4))
            remarks.append(f"The runs come from {len(found)} {what}: {listed}. Compare them with care.")
    return remarks


def with_target(runs: list[Run], target_return: float | None) -> tuple[list[Run], list[str]]:
    """Give all runs the same target: `target_return`, or the one that most of them were run with."""
    if target_return is None:
        targets = Counter(run.target_return for run in runs if not math.isnan(run.target_return))
        if not targets:
            return runs, []
        target_return = targets.most_common(1)[0][0]
        if len(targets) > 1:
            remark = [f"The runs have {len(targets)} targets; target_return={target_return:g} is compared."]
            return [replace(run, target_return=target_return) for run in runs], remark
    return [replace(run, target_return=target_return) for run in runs], []
