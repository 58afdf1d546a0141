"""Where the runs of a study come from, and what besides W differs between its W."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddppo.study.read.fields import flat, one_line
from ddppo.study.read.record import Machine, Run

# Settings that may differ: they change neither what is learnt nor how fast; or name a run.
OF_NO_EFFECT = (
    "dist.world_size", "dist.max_world_size", "dist.timeout_s", "dist.oversubscribe", "dist.on_lost",
    "dist.max_restarts", "dist.min_workers", "run.max_minutes", "run.requeue_exit_code",
)  # fmt: skip
OF_A_RUN = ("seed", "resume", "sweep", "objective", "target_return")
_MEANT = {*OF_NO_EFFECT, *OF_A_RUN, "log.progress"}
_DERIVED = ("threads_per_rank", "env_backend", "step", "device", "collective", "grad_sync")
_OF_SEVERAL = {"derived.collective", "derived.grad_sync"}  # a worker alone has none


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
