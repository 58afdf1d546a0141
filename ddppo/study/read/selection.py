"""Which runs form a study? Runs with the same task, scaling rule, topology and settings, one for each W and seed.

`studies` sorts the runs of a folder into studies and names the runs that it leaves out. `provenance` and `mixed` say
where the runs of a study come from, and which conditions differ between them although only W and seed should.
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
from ddppo.statistics import median
from ddppo.study.read.fields import flat, one_line
from ddppo.study.read.record import LeftOut, Machine, Reading, Run, by_world_size

# Settings with no effect on learning or speed.
OF_NO_EFFECT = (
    "dist.world_size", "dist.max_world_size", "dist.timeout_s", "dist.oversubscribe", "dist.on_lost",
    "dist.max_restarts", "dist.min_workers", "run.max_minutes", "run.requeue_exit_code",
)  # fmt: skip
OF_A_RUN = ("seed", "resume", "sweep", "objective", "target_return")  # settings of a single run
_MAY_VARY = {*OF_NO_EFFECT, *OF_A_RUN, "log.progress"}  # no remark if they differ
_DERIVED = ("threads_per_rank", "env_backend", "step", "device", "collective", "grad_sync")
_OF_SEVERAL_RANKS = {"derived.collective", "derived.grad_sync"}  # a run with W=1 has none
# Settings that may differ within a study: they do not change the results of training. The end is a prefix of names.
_FREE = (*OF_A_RUN, "dist.", "log.", "checkpoint.", "env.slow_ranks")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the runs of a study. Tuples are sorted, distinct and without unknown values."""

    commands: tuple[str, ...]
    commits: tuple[str, ...]  # 12 digits, and " and changes" if files were not committed
    first: str  # start of the first run, UTC, ISO 8601; "" if unknown
    last: str  # end of the last run
    machines: tuple[Machine, ...]
    torch: tuple[str, ...]  # versions
    python: tuple[str, ...]
    # {name: {W: value}} of conditions that differ although they should not.
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
    """Return {name: {W: value}} of settings, commits, hosts, ... that differ between runs although they should not.

    Names are those of summary.json.
    """
    # Compare the conditions of all runs, by name.
    conditions = {run.path: _conditions(run) for run in runs}
    hosts = {frozenset(run.origin.hosts or (run.origin.hostname,)) for run in runs}
    # More workers need more hosts: that is no difference.
    grow = all(a <= b or b <= a for a in hosts for b in hosts)
    found = {}
    for name in sorted({name for each in conditions.values() for name in each}):
        # The values at each W.
        values: dict[int, set[str]] = {}
        for run in sorted(runs, key=lambda run: run.world_size):
            if run.world_size > 1 or name not in _OF_SEVERAL_RANKS:
                values.setdefault(run.world_size, set()).add(conditions[run.path].get(name) or "unknown")
        if len(set().union(*values.values())) > 1 and not (name == "hosts" and grow):
            found[name] = {w: " or ".join(sorted(texts)) for w, texts in values.items()}
    return found


def mixed(runs: Sequence[Run]) -> list[str]:
    """Return a remark if runs were made under different conditions, so that differences over W may be due to these."""
    listed = []
    for name, by_w in varying(runs).items():
        at = {value: "/".join(str(w) for w in by_w if by_w[w] == value) for value in by_w.values()}
        listed.append(f"{name}: {', '.join(f'{one_line(value, 60)} at W={w}' for value, w in at.items())}")
    what = f"These runs differ in more than W and seed. {'; '.join(listed)}"
    return [f"{what}. A difference between W may be due to that."] if listed else []


def _conditions(run: Run) -> dict[str, str]:
    """Return the conditions that should be the same for all runs of a study, by their names in summary.json."""
    origin = run.origin
    found = {name: str(value) for name, value in flat(run.config).items() if name not in _MAY_VARY}
    # Settings that a run chose by itself, its hardware, and its code.
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


# -- Studies, and the runs that they leave out.


@dataclass(frozen=True, slots=True)
class FoundStudies:
    """The studies of a folder."""

    studies: list[Reading]  # each of one task, rule and topology
    left_out: list[LeftOut]  # runs that belong to no study
    remarks: list[str] = field(default_factory=list)


def studies(found: Reading, *, env: str | None = None, rule: str | None = None) -> FoundStudies:
    """Sort runs into studies; studies with a single W come last. `env` and `rule` select some of them.

    All runs of a study have the same task, rule and topology, and the same settings except for W, seed and dist.*.
    If runs differ in settings, the group with most runs is kept, or the newest of equal ones, and for all topologies
    the same settings are preferred. Runs with the same W have the same dist.* settings. Of runs with the same W and
    seed the newest is kept.

    Raises RunFolderError if no run has `env` and `rule`.
    """
    # 1. Group by task and rule, and leave out the groups that are not asked for.
    groups: defaultdict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in found.runs:
        groups[run.env_id, run.rule].append(run)
    all_of_them = sorted(groups)
    selection = " ".join(f"{k}={v}" for k, v in (("env", env), ("rule", rule)) if v is not None)
    left_out: list[LeftOut] = []
    for key in all_of_them:
        if env not in (None, key[0]) or rule not in (None, key[1]):
            what, why = _counted(Reading(groups.pop(key), [])), f"is not asked for by {selection}"
            left_out.append(LeftOut(what, why, "leave that out to report all"))
    # Nothing matches: suggest the nearest task and list all.
    if found.runs and not groups:
        hint = near(env, sorted({name for name, _ in all_of_them})) if env is not None else ""
        listed = ", ".join(f"{name} ({kind} scaling)" for name, kind in all_of_them)
        raise RunFolderError(f"{selection}: there is no such run{hint}; there are {listed}")
    # 2. Within a group, one study for each topology.
    chosen = [reading for key in sorted(groups) for reading in _of_each_topology(groups[key])]
    # A study with a single W comes last: it has no speedup.
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
    """Return the study with most runs (of equal ones, the newest), with a remark that names the others.

    remedy: the end of the remark, which says how to choose another study.
    """
    sorted_out = studies(found, env=env, rule=rule)
    if not sorted_out.studies:
        return Reading([], sorted_out.left_out)
    # The study with most runs; of equal ones, the one with the newest run.
    best = max(sorted_out.studies, key=lambda each: (len(each.runs), max(map(_finished, each.runs))))
    remarks = list(best.remarks)
    if len(sorted_out.studies) > 1:
        listed = ", ".join(map(_counted, sorted_out.studies))
        this = f"The folder holds {len(sorted_out.studies)} studies: {listed}. This is {named(best.runs)}"
        remarks.insert(0, f"{this}, which has most runs or the newest; {remedy}.")
    return Reading(best.runs, sorted_out.left_out + best.left_out, remarks)


def named(runs: Sequence[Run]) -> str:
    """Return the name of a study: task, rule and, unless it is ddp, topology."""
    topology = "" if runs[0].topology == "ddp" else f", {runs[0].topology}"
    return f"{runs[0].env_id}, {runs[0].rule} scaling{topology}"


def _counted(study: Reading) -> str:
    return f"{named(study.runs)} ({len(study.runs)} run{'s' if len(study.runs) > 1 else ''})"


def _of_each_topology(runs: list[Run]) -> list[Reading]:
    """Return one study for each topology, or variant of a topology, among runs of one task and rule; ddp first."""
    runs = _variants(runs)
    names = sorted({run.topology for run in runs}, key=lambda name: (name != "ddp", name))
    # Prefer the same settings for all topologies, so that they can be compared: those of the largest group.
    most, _ = _alike(runs, _changes_learning, "")
    preferred = {run.path for run in most}
    return [_of_one_setting([run for run in runs if run.topology == name], preferred) for name in names]


def _variants(runs: list[Run]) -> list[Run]:
    """Append settings to the name of a run's topology, if runs with one W have several values of them.

    For example env_workers becomes "env_workers num_agents=1" and "env_workers num_agents=2": two studies.
    """
    values: defaultdict[tuple[str, str, int], set[str]] = defaultdict(set)
    own = {
        run.path: {n: str(v) for n, v in flat(run.config).items() if n in _topology_settings(run.topology)}
        for run in runs
    }
    for run in runs:
        for name, value in own[run.path].items():
            values[run.topology, name, run.world_size].add(value)
    # Settings with several values at one W.
    several = {(topology, name) for (topology, name, _), found in values.items() if len(found) > 1}
    suffixes = {
        run.path: [
            f" {n.partition('.')[2]}={v}" for n, v in own[run.path].items() if (run.topology, n) in several
        ]
        for run in runs
    }
    return [replace(run, topology=run.topology + "".join(suffixes[run.path])) for run in runs]


def _topology_settings(name: str) -> tuple[str, ...]:
    """Return the settings that one of our topologies uses and ddp does not."""
    known = TOPOLOGIES.get(name.partition(" ")[0])
    if known is None:
        return ()
    outside_dist = ["env.num_workers"] if known.env_backend else []
    if known.own_pace:
        outside_dist += ["ppo.rollouts_per_update", "algorithm.rollouts_per_update"]
    return (*(f"dist.{key}" for key in own_keys("dist", known.name)), *outside_dist)


def _changes_learning(name: str) -> bool:
    """Return whether a setting may change the results of training."""
    return not name.startswith(_FREE)


def _of_one_setting(runs: list[Run], preferred: Set[str]) -> Reading:
    """Return the study among runs of one task, rule and topology; `preferred` are paths of runs to keep if possible."""
    # Leave out, one after another: other settings, other dist.* settings at a W, older runs of a W and seed.
    runs, left_out = _alike(runs, _changes_learning, "differs in", preferred)
    kept = []
    for world_size, same in by_world_size(runs).items():
        alike, variants = _alike(
            same,
            lambda name: name.startswith(("dist.", "env.slow_ranks")) and name not in OF_NO_EFFECT,
            f"differs from the other runs of W={world_size} in",
        )
        kept += alike
        left_out += variants
    # Keep the newest run of each W and seed.
    kept, duplicates = _newest(kept)
    return Reading(kept, left_out + duplicates, [*_resumed(kept), *mixed(kept)])


def _alike(
    runs: list[Run], matters: Callable[[str], bool], differs: str, preferred: Set[str] = frozenset()
) -> tuple[list[Run], list[LeftOut]]:
    """Return the largest group of runs with equal settings, and the other runs as left out.

    Args:
        matters: whether a setting of this name must be equal.
        differs: the beginning of the reason for which a run is left out.
        preferred: paths; a group with one of them is chosen before larger ones. Of equal groups the newest is chosen.
    """
    settings = {run.path: {k: str(v) for k, v in flat(run.config).items() if matters(k)} for run in runs}
    # Group by the settings that matter.
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
        if difference := _difference(settings[run.path], theirs, "the study"):
            remedy = "report its study from a folder of its own"
            left_out.append(LeftOut(run.path, f"{differs} {difference}", remedy))
    return kept, left_out


def differing(run: Run, other: Run) -> str:
    """Return the settings that change learning and differ between two runs; "" if none does."""
    ours, theirs = (
        {
            k: str(v)
            for k, v in flat(each.config).items()
            if _changes_learning(k) and k not in _topology_settings(run.topology)
        }
        for each in (run, other)
    )
    return _difference(ours, theirs, other.topology)


def _difference(ours: dict[str, str], theirs: dict[str, str], owner: str) -> str:
    """Return "name=own (owner: other)" for the first three names with different values, "" if there are none."""
    # Show three differences and count the rest.
    names = [name for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    values = [[one_line(x, 60) for x in (n, ours.get(n, "unset"), theirs.get(n, "unset"))] for n in names]
    shown = ", ".join(f"{name}={own} ({owner}: {other})" for name, own, other in values[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _newest(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Return the newest run of each W and seed; a run with one W throughout goes before a run with several."""
    newest: dict[tuple[int, int], Run] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: (not run.others, _finished(run))):
        # Runs are sorted, so that a later one replaces an earlier one.
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
    """Return a remark for each run with several world sizes: which of its numbers are used."""
    remarks = []
    for run in runs:
        if not run.others:
            continue
        before = " and ".join(f"{count:,} with W={w}" for w, count in run.others.items())
        # Under strong scaling the batch is the same at every W, so returns by steps can be used.
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
    """Return the runs with one target: `target_return`, or the most common target of the runs; and remarks.

    Runs without a target under weak scaling get the highest return that every W reached.
    A time to target from a table is kept if the row has this target, or names none.
    """
    targets = Counter(run.target_return for run in runs if not math.isnan(run.target_return))
    remarks = []
    if target_return is None:
        if targets:
            target_return = targets.most_common(1)[0][0]
        elif (common := _common_return(runs)) is not None:
            target_return = common
            remarks = [
                "The runs have no target_return. Under weak scaling a larger W has a larger batch, so W are compared "
                f"by the time to a return of {common:.4g}, the highest that every W reached."
            ]
        else:
            return runs, []
        if len(targets) > 1:
            remarks = [f"The runs have {len(targets)} targets; target_return={target_return:g} is compared."]
    chosen = []
    for run in runs:
        # A time to another target is no time to this one.
        same = math.isnan(run.target_return) or run.target_return == target_return
        reached = run.reached_at_s if same else math.nan
        chosen.append(replace(run, target_return=target_return, reached_at_s=reached))
    return chosen, remarks


def _common_return(runs: list[Run]) -> float | None:
    """Return the highest return that every W reached, in the median over its seeds; None if it is not known or needed.

    Under strong scaling all W learn from the same batch, and throughput compares them.
    """
    curves = {run.path: run.evaluations if len(run.evaluations) > 1 else run.returns for run in runs}
    groups = by_world_size(runs)
    if runs[0].rule != "weak" or len(groups) < 2 or any(len(curve) < 2 for curve in curves.values()):
        return None
    highest = {run.path: max(point.return_mean for point in curves[run.path]) for run in runs}
    return min(median([highest[run.path] for run in of_w]) for of_w in groups.values())
