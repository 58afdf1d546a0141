"""From the runs of a folder to its studies: same task, scaling rule and settings, nothing stale, one target.

Where runs come from, and what besides W differs between its W, is part of it.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from ddppo.config.fields import near
from ddppo.config.variants import own_keys
from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.errors import RunFolderError
from ddppo.study.read.fields import flat, one_line
from ddppo.study.read.record import LeftOut, Machine, Reading, Run, by_world_size

# Settings that may differ: they change neither what is learnt nor how fast; or name a run.
OF_NO_EFFECT = (
    "dist.world_size", "dist.max_world_size", "dist.timeout_s", "dist.oversubscribe", "dist.on_lost",
    "dist.max_restarts", "dist.min_workers", "run.max_minutes", "run.requeue_exit_code",
)  # fmt: skip
OF_A_RUN = ("seed", "resume", "sweep", "objective", "target_return")
_MEANT = {*OF_NO_EFFECT, *OF_A_RUN, "log.progress"}
_DERIVED = ("threads_per_rank", "env_backend", "step", "device", "collective", "grad_sync")
_OF_SEVERAL = {"derived.collective", "derived.grad_sync"}  # a worker alone has none
# What may differ between runs of one study: it names the run, or changes what is recorded but not what is learnt.
_FREE = (*OF_A_RUN, "dist.", "log.", "checkpoint.", "env.slow_ranks")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the runs of a study come from; every list is sorted, without repetition and without what is unknown.

    commits: 12 digits, with " and changes" where files were not committed. first, last: when the first run began and
    the last one ended, UTC, ISO 8601, "" if unknown. varying: {what: {W: value}} of settings, commits, hosts,
    processors and devices that differ between runs though they are not meant to.
    """

    commands: tuple[str, ...]
    commits: tuple[str, ...]
    first: str
    last: str
    machines: tuple[Machine, ...]
    torch: tuple[str, ...]
    python: tuple[str, ...]
    varying: dict[str, dict[int, str]]


def provenance(runs: Sequence[Run]) -> Provenance:
    """Return where the runs of one study come from."""
    origins = [run.origin for run in runs]
    machines = {machine for origin in origins for machine in origin.machines}
    return Provenance(
        commands=_distinct(origin.command for origin in origins),
        commits=_distinct(map(_commit, runs)),
        first=min(filter(None, (origin.started_at or origin.finished_at for origin in origins)), default=""),
        last=max((origin.finished_at for origin in origins), default=""),
        machines=tuple(sorted(machines, key=lambda m: (m.hostname, m.cpu, m.gpu, m.cores))),
        torch=_distinct(origin.torch for origin in origins),
        python=_distinct(origin.python for origin in origins),
        varying=varying(runs),
    )


def varying(runs: Sequence[Run]) -> dict[str, dict[int, str]]:
    """Return what differs between runs though it is not meant to, by its name in summary.json and W."""
    conditions = {run.path: _conditions(run) for run in runs}
    hosts = {frozenset(run.origin.hosts or (run.origin.hostname,)) for run in runs}
    grow = all(a <= b or b <= a for a in hosts for b in hosts)  # more workers need more hosts
    found = {}
    for name in sorted({name for each in conditions.values() for name in each}):
        told: dict[int, set[str]] = {}
        for run in sorted(runs, key=lambda run: run.world_size):
            if run.world_size > 1 or name not in _OF_SEVERAL:
                told.setdefault(run.world_size, set()).add(conditions[run.path].get(name) or "unknown")
        if len(set().union(*told.values())) > 1 and not (name == "hosts" and grow):
            found[name] = {w: " or ".join(sorted(texts)) for w, texts in told.items()}
    return found


def mixed(runs: Sequence[Run]) -> list[str]:
    """Say where the runs of a study were made under different conditions, which a comparison over W should not be."""
    listed = []
    for name, told in varying(runs).items():
        at = {value: "/".join(str(w) for w in told if told[w] == value) for value in told.values()}
        listed.append(f"{name}: {', '.join(f'{one_line(value, 60)} at W={w}' for value, w in at.items())}")
    what = f"These runs differ in more than W and seed. {'; '.join(listed)}"
    return [f"{what}. What is put down to W may be due to it."] if listed else []


def _conditions(run: Run) -> dict[str, str]:
    """Return what should be the same for every run, by its name in summary.json."""
    origin = run.origin
    found = {name: str(value) for name, value in flat(run.config).items() if name not in _MEANT}
    found |= {f"derived.{name}": str(getattr(origin, name)) for name in _DERIVED}
    for name in ("cpu", "gpu"):
        found[name] = " and ".join(_distinct(getattr(machine, name) for machine in origin.machines))
    hosts = ", ".join(_distinct(origin.hosts or (origin.hostname,)))
    return found | {"hosts": hosts, "git_commit": _commit(run), "torch": origin.torch}


def _commit(run: Run) -> str:
    commit = run.origin.git_commit[:12]
    return f"{commit} and changes" if commit and run.origin.git_dirty else commit


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


# -- studies and what they leave out ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundStudies:
    """The studies of a folder, each the runs of one task under one rule, and what belongs to none of them."""

    studies: list[Reading]
    left_out: list[LeftOut]
    remarks: list[str] = field(default_factory=list)


def studies(found: Reading, *, env: str | None = None, rule: str | None = None) -> FoundStudies:
    """Sort runs into studies of those that `env` and `rule` ask for; studies of a single W come last.

    Runs of a study have the same topology, and the same settings but for world_size, seed and dist.*; of several such
    groups the one with most runs is kept (then the newest), of several topologies with the same settings if there are
    any. Of runs with the same W the settings of dist.* are the
    same, and of those with the same W and seed the newest is kept. Raises RunFolderError if there are runs, but none
    that is asked for.
    """
    groups: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in found.runs:
        groups[run.env_id, run.rule].append(run)
    all_of_them = sorted(groups)
    asked = " ".join(f"{k}={v}" for k, v in (("env", env), ("rule", rule)) if v is not None)
    left_out: list[LeftOut] = []
    for key in all_of_them:
        if env not in (None, key[0]) or rule not in (None, key[1]):
            what, why = _counted(Reading(groups.pop(key), [])), f"is not asked for by {asked}"
            left_out.append(LeftOut(what, why, "leave that out to report all"))
    if found.runs and not groups:
        hint = near(env, sorted({name for name, _ in all_of_them})) if env is not None else ""
        listed = ", ".join(f"{name} ({kind} scaling)" for name, kind in all_of_them)
        raise RunFolderError(f"{asked}: there is no such run{hint}; there are {listed}")
    chosen = [reading for key in sorted(groups) for reading in _of_each_topology(groups[key])]
    chosen.sort(key=lambda each: len({run.world_size for run in each.runs}) == 1)
    remarks = list(found.remarks)
    if len(chosen) > 1:
        counted = ", ".join(map(_counted, chosen))
        remarks.append(
            f"The runs are mixed, of {len(chosen)} studies: {counted}. Each is reported by itself, nothing is averaged "
            "over them; env= and rule= ask for one."
            if len(groups) > 1
            else f"The runs are of {len(chosen)} topologies, each a study by itself: {counted}."
        )
    return FoundStudies(chosen, found.left_out + left_out, remarks)


def one_study(found: Reading, *, env: str | None = None, rule: str | None = None, remedy: str) -> Reading:
    """Return the largest of the studies, of equals the one with the newest run, and say which others there are.

    remedy: how to get another one.
    """
    sorted_out = studies(found, env=env, rule=rule)
    if not sorted_out.studies:
        return Reading([], sorted_out.left_out)
    best = max(sorted_out.studies, key=lambda each: (len(each.runs), max(map(_finished, each.runs))))
    remarks = list(best.remarks)
    if len(sorted_out.studies) > 1:
        listed = ", ".join(map(_counted, sorted_out.studies))
        this = f"The folder holds {len(sorted_out.studies)} studies: {listed}. This is {named(best.runs)}"
        remarks.insert(0, f"{this}, which has most runs or the newest; {remedy}.")
    return Reading(best.runs, sorted_out.left_out + best.left_out, remarks)


def named(runs: Sequence[Run]) -> str:
    """Return what a study is called."""
    topology = "" if runs[0].topology == "ddp" else f", {runs[0].topology}"
    return f"{runs[0].env_id}, {runs[0].rule} scaling{topology}"


def _counted(study: Reading) -> str:
    return f"{named(study.runs)} ({len(study.runs)} run{'s' if len(study.runs) > 1 else ''})"


def _of_each_topology(runs: list[Run]) -> list[Reading]:
    """Return the studies among runs of one task and rule, ddp's first; variants of a topology are studies too."""
    runs = _variants(runs)
    names = sorted({run.topology for run in runs}, key=lambda name: (name != "ddp", name))
    most, _ = _alike(runs, _is_learnt_by, "")
    preferred = {run.path for run in most}
    return [_of_one_setting([run for run in runs if run.topology == name], preferred) for name in names]


def _variants(runs: list[Run]) -> list[Run]:
    """Say settings of a topology in its runs' `topology` where several values of them were run with one W."""
    values: defaultdict[tuple[str, str, int], set[str]] = defaultdict(set)
    own = {
        run.path: {n: str(v) for n, v in flat(run.config).items() if n in _of_topology(run.topology)}
        for run in runs
    }
    for run in runs:
        for name, value in own[run.path].items():
            values[run.topology, name, run.world_size].add(value)
    several = {(topology, name) for (topology, name, _), found in values.items() if len(found) > 1}
    said = {
        run.path: [
            f" {n.partition('.')[2]}={v}" for n, v in own[run.path].items() if (run.topology, n) in several
        ]
        for run in runs
    }
    return [replace(run, topology=run.topology + "".join(said[run.path])) for run in runs]


def _of_topology(name: str) -> tuple[str, ...]:
    """Return the settings that a topology of ours has a use for and ddp has not."""
    known = TOPOLOGIES.get(name.partition(" ")[0])
    if known is None:
        return ()
    of_others = [
        key
        for key, has in (("env.num_workers", known.env_backend), ("ppo.rollouts_per_update", known.own_pace))
        if has
    ]
    return (*(f"dist.{key}" for key in own_keys("dist", known.name)), *of_others)


def _is_learnt_by(name: str) -> bool:
    return not name.startswith(_FREE)


def _of_one_setting(runs: list[Run], preferred: Set[str]) -> Reading:
    """Return the study among runs of one task, rule and topology, with the settings of `preferred` if any has them."""
    runs, left_out = _alike(runs, _is_learnt_by, "differs in", preferred)
    kept = []
    for world_size, same in by_world_size(runs).items():
        alike, variants = _alike(
            same,
            lambda name: name.startswith(("dist.", "env.slow_ranks")) and name not in OF_NO_EFFECT,
            f"differs from the other runs of W={world_size} in",
        )
        kept += alike
        left_out += variants
    kept, duplicates = _newest(kept)
    return Reading(kept, left_out + duplicates, [*_resumed(kept), *mixed(kept)])


def _alike(
    runs: list[Run], matters: Callable[[str], bool], differs: str, preferred: Set[str] = frozenset()
) -> tuple[list[Run], list[LeftOut]]:
    """Return a group of runs with the same settings that matter: that of preferred paths, the largest, the newest."""
    settings = {run.path: {k: str(v) for k, v in flat(run.config).items() if matters(k)} for run in runs}
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(settings[run.path], sort_keys=True)].append(run)
    kept = max(
        groups.values(),
        key=lambda group: (group[0].path in preferred, len(group), max(map(_finished, group))),
    )
    theirs = settings[kept[0].path]
    left_out = []
    for run in runs:
        if told := _apart(settings[run.path], theirs, "the study"):
            remedy = "report its study from a folder of its own"
            left_out.append(LeftOut(run.path, f"{differs} {told}", remedy))
    return kept, left_out


def differing(run: Run, other: Run) -> str:
    """Return what is learnt by and differs between two runs, "" if nothing does."""
    mine, theirs = (
        {
            k: str(v)
            for k, v in flat(each.config).items()
            if _is_learnt_by(k) and k not in _of_topology(run.topology)
        }
        for each in (run, other)
    )
    return _apart(mine, theirs, other.topology)


def _apart(mine: dict[str, str], theirs: dict[str, str], owner: str) -> str:
    names = [name for name in sorted(mine | theirs) if mine.get(name) != theirs.get(name)]
    told = [[one_line(x, 60) for x in (n, mine.get(n, "unset"), theirs.get(n, "unset"))] for n in names]
    shown = ", ".join(f"{name}={own} ({owner}: {others})" for name, own, others in told[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _newest(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    newest: dict[tuple[int, int], Run] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: (not run.others, _finished(run))):
        older = newest.get((run.world_size, run.seed))
        if older is not None:
            what = f"is an older run of W={run.world_size} seed={run.seed} than {run.path}"
            if older.others and not run.others:
                began = ", ".join(map(str, older.others))
                what = f"had W={began} before W={run.world_size} seed={run.seed}, which {run.path} had throughout"
            left_out.append(LeftOut(older.path, what, "nothing to do, or remove it"))
        newest[run.world_size, run.seed] = run
    return [newest[key] for key in sorted(newest)], left_out


def _finished(run: Run) -> tuple[str, str]:
    return run.origin.finished_at, run.path


def _resumed(runs: list[Run]) -> list[str]:
    """Say of runs that were resumed with another world_size what of them is used, and what is not."""
    remarks = []
    for run in runs:
        if not run.others:
            continue
        before = " and ".join(f"{count:,} with W={w}" for w, count in run.others.items())
        not_used = "Its returns are used, though they are not of one W alone. Its time to target and its curve against "
        not_used += "wall-clock are not used: they mix"
        if run.rule == "weak":
            not_used = "Its returns are not used, as under weak scaling every W learns from another batch, nor is its "
            not_used += "time to target, which mixes"
        remarks.append(
            f"{run.path} (W={run.world_size} seed={run.seed}) was resumed with another world_size: other "
            f"iterations ran otherwise, {before}. Its FPS and times are of the {len(run.steps):,} with "
            f"W={run.world_size} after warm-up. {not_used} two speeds."
        )
    return remarks


def with_target(runs: list[Run], target_return: float | None) -> tuple[list[Run], list[str]]:
    """Give all runs the same target: `target_return`, or the one that most of them were run with.

    A table's time to target stays if it is for this target, or for none that the table names.
    """
    targets = Counter(run.target_return for run in runs if not math.isnan(run.target_return))
    remarks = []
    if target_return is None:
        if not targets:
            return runs, []
        target_return = targets.most_common(1)[0][0]
        if len(targets) > 1:
            remarks = [f"The runs have {len(targets)} targets; target_return={target_return:g} is compared."]
    chosen = []
    for run in runs:
        same = math.isnan(run.target_return) or run.target_return == target_return
        reached = run.reached_at_s if same else math.nan
        chosen.append(replace(run, target_return=target_return, reached_at_s=reached))
    return chosen, remarks
