"""Where the runs of a study come from, and what besides W differs between its W."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddppo.study.read.fields import flat, one_line
from ddppo.study.runs import Machine, Run

# Settings that may differ between W: they name a run, or change neither what is learnt nor how fast.
_MEANT = {
    "dist.world_size",
    "dist.max_world_size",
    "dist.timeout_s",
    "dist.oversubscribe",
    "seed",
    "resume",
    "sweep",
    "objective",
    "target_return",
    "log.progress",
}
_DERIVED = ("threads_per_rank", "env_backend", "step", "device", "collective", "grad_sync")
_OF_SEVERAL = {"derived.collective", "derived.grad_sync"}  # a worker alone has none
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the runs of a study come from; every list is sorted, without repetition and without what is unknown.

    commits: 12 digits, with " and changes" where files were not committed. first, last: when the first run began and
    the last one ended, UTC, ISO 8601, "" if unknown. varying: {what: {W: value}} of settings, hosts, processors and
    devices that differ between W though they are not meant to.
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
    """Return what differs between W though it is not meant to, by its name in summary.json and W."""
    values = {run.path: _conditions(run) for run in runs}
    world_sizes = sorted({run.world_size for run in runs})
    found = {}
    for name in sorted({name for each in values.values() for name in each}):
        several = name in _OF_SEVERAL
        told = {
            w: {values[run.path].get(name) or _UNKNOWN for run in runs if run.world_size == w}
            for w in world_sizes
            if w > 1 or not several
        }
        found[name] = {w: " or ".join(sorted(texts)) for w, texts in told.items()}
    return {name: told for name, told in found.items() if len(set(told.values())) > 1} | _hosts(runs)


def mixed(runs: Sequence[Run]) -> list[str]:
    """Say where the runs of a study were made under different conditions, which a comparison over W should not be."""
    differ = varying(runs)
    remarks = []
    for what, told in (
        ("commits", Counter(map(_commit, runs))),
        ("machines", Counter(run.origin.hostname for run in runs if "hosts" not in differ)),
        ("devices", Counter(run.origin.device for run in runs if "derived.device" not in differ)),
    ):
        if len(told) > 1:
            listed = ", ".join(f"{name or _UNKNOWN} ({count} runs)" for name, count in told.most_common(4))
            remarks.append(f"The runs come from {len(told)} {what}: {listed}. Compare them with care.")
    if differ:
        listed = "; ".join(
            f"{name}: {', '.join(f'{one_line(value, 60)} at W={w}' for w, value in told.items())}"
            for name, told in differ.items()
        )
        remarks.append(
            f"Not only W differs between the W measured. {listed}. What is put down to W may be due to these."
        )
    return remarks


def _conditions(run: Run) -> dict[str, str]:
    """Return what should be the same at every W, by its name in summary.json."""
    origin = run.origin
    found = {name: str(value) for name, value in flat(run.config).items() if name not in _MEANT}
    found |= {f"derived.{name}": str(getattr(origin, name)) for name in _DERIVED}
    found |= {
        f"machine.{name}": " and ".join(_distinct(getattr(m, name) for m in origin.machines))
        for name in ("cpu", "gpu")
    }
    return found


def _hosts(runs: Sequence[Run]) -> dict[str, dict[int, str]]:
    """Return the hosts of each W, unless those of one W are always among those of another: more W need more hosts."""
    hosts = {
        w: {
            host
            for run in runs
            if run.world_size == w
            for host in (run.origin.hosts or (run.origin.hostname,))
        }
        for w in sorted({run.world_size for run in runs})
    }
    if all(a <= b or b <= a for a in hosts.values() for b in hosts.values()):
        return {}
    return {"hosts": {w: ", ".join(sorted(h or _UNKNOWN for h in names)) for w, names in hosts.items()}}


def _commit(run: Run) -> str:
    commit = run.origin.git_commit[:12]
    return f"{commit} and changes" if commit and run.origin.git_dirty else commit


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))
