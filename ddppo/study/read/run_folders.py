"""Which runs are below a folder? Reads run folders, without importing the trainer.

Everything about a run is in its summary.json and metrics.jsonl; names of folders mean nothing. Both files are read and
checked against each other. A folder that cannot be used becomes a `LeftOut` with the reason and the remedy, and the
others are still read.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ddppo.algorithms.known import training_section
from ddppo.study.read import summary_file
from ddppo.study.read.fields import LARGEST_SECONDS, FieldError, Fields, one_line, parsed, quoted
from ddppo.study.read.metrics_file import DamagedError, Metrics, read_metrics
from ddppo.study.read.record import LeftOut, Reading, Run
from ddppo.study.read.summary_file import RunCounts

SCHEMA_VERSION = 1  # of summary.json, as ddppo.records.run_folder has it
REPORT_FILE, REPORT_KIND = "summary.json", "scaling report"  # file in a report's folder, and its key `kind`
_AGAIN = "run that job again, or remove the folder"


class _Unusable(Exception):
    """A run folder that cannot be used: the reason and the remedy."""


# Runs that were read before, by folder, each with the identity of its summary.json then (`_identity`).
Known = dict[Path, tuple[tuple[int, ...], Run]]


def read_runs(
    folder: Path, progress: Callable[[str], None] = lambda path: None, known: Known | None = None
) -> Reading:
    """Read every run below `folder`.

    progress: called with each path before it is read. known: runs that need no second reading; new ones are added.
    """
    runs, left_out, known = [], [], {} if known is None else known
    for path, problem in _run_folders(folder):
        try:
            if problem is not None:
                raise problem
            progress(_name(path))
            identity = _identity(path / "summary.json")
            if path not in known or known[path][0] != identity:
                known[path] = identity, read_run(path)
            runs.append(known[path][1])
        except _Unusable as e:
            left_out.append(LeftOut(_name(path), *e.args))
    return Reading(runs, left_out)


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is replaced; () if it cannot be read, which reading it will report."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _run_folders(folder: Path) -> Iterable[tuple[Path, _Unusable | None]]:
    """Yield the folders of runs; those of unfinished runs with the reason for which they cannot be used.

    Hidden folders (runs that were moved aside, logs of a launcher) and reports are skipped.
    """
    for here, subfolders, files in os.walk(folder):
        nothing = not files and not subfolders
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        path = Path(here)
        # A folder with a summary is a run or a report; nothing below it is another run.
        if "summary.json" in files:
            subfolders.clear()
            if not is_report(path):
                yield path, None
        elif "config.yaml" in files or "metrics.jsonl" in files:
            subfolders.clear()
            remedy = f"go on with it (resume={_name(path)}) or run that job again"
            yield path, _Unusable("has no summary.json, so the run did not end", remedy)
        # A sweep makes the folders of its jobs before they start.
        elif nothing:
            yield path, _Unusable("is empty, so the job never started", "run that job again, or remove it")


def is_report(folder: Path) -> bool:
    """Return whether `ddppo.report` wrote the folder."""
    try:
        found = parsed((folder / REPORT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return str(found.values.get("kind")).endswith(" report")  # ours, or a plugin's


def read_run(path: Path) -> Run:
    """Read one run folder. Raises _Unusable if a file is not as the trainer writes it, or the run did not complete."""
    # 1. summary.json: is it a run's, of this version, and is the run complete?
    try:
        summary = parsed((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise _Unusable(f"summary.json cannot be read ({_reason(e)})", _AGAIN) from e
    # Not a run, another version, or not complete: each has its own remedy.
    if "schema_version" not in summary.values:
        raise _Unusable("summary.json is not a run's", "remove it, or point the report elsewhere")
    version, status = summary.values["schema_version"], summary.values.get("status")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        remedy = "report it with the ddppo that wrote it, or run that job again"
        version = f"schema_version {quoted(version)}, this ddppo reads {SCHEMA_VERSION}"
        raise _Unusable(f"summary.json has {version}", remedy)
    if status != "completed":
        shown = status if status in ("stopped", "failed") else quoted(status)
        remedy = f"go on with it (resume={_name(path)}) or run that job again"
        raise _Unusable(f"the run did not complete (status {shown})", remedy)
    # 2. Its values, and metrics.jsonl.
    try:
        return _run(path, summary)
    except FileNotFoundError as e:
        raise _Unusable("has no metrics.jsonl", _AGAIN) from e
    except OSError as e:
        raise _Unusable(f"metrics.jsonl cannot be read ({_reason(e)})", _AGAIN) from e
    except DamagedError as e:
        raise _Unusable(str(e), "run that job again") from e
    except FieldError as e:
        raise _Unusable(f"summary.json is not as ddppo writes it ({e})", _AGAIN) from e


def _run(path: Path, summary: Fields) -> Run:
    """Return the run in summary.json and metrics.jsonl. Raises FieldError, DamagedError, OSError."""
    # 1. Read both files, and check that they belong together.
    derived, config, evaluation = (summary.section(name) for name in ("derived", "config", "eval"))
    env_id, settings = config.section("env").text("id"), summary_file.settings(config)
    rule = config.section("scaling").text("rule", choices=("strong", "weak"))
    sizes, origin, counts = summary_file.sizes(derived), summary_file.origin(summary), RunCounts.of(summary)
    if not counts.with_world_size:
        why = f"was resumed with world_size={counts.world_size} when all its steps were done"
        total_steps = f"{training_section(settings)}.total_steps"
        remedy = f"go on with it (resume={_name(path)} and a larger {total_steps}), or remove it"
        raise _Unusable(f"{why}, so that no iteration tells of that W", remedy)
    expected = {"world_size": counts.world_size, "num_iterations": counts.iterations}
    metrics = read_metrics(path / "metrics.jsonl", **expected, num_epochs=sizes["num_epochs"])
    _check_of_one_run(summary, counts, metrics)
    # 2. Choose the iterations that count: those with the last world size, after warm-up.
    own = metrics.num_ranks == counts.world_size
    kept = _after_warmup(counts, own)
    # Steps of an iteration cannot exceed the batch.
    steps = np.diff(metrics.env_steps, prepend=0)[kept]
    batch = sizes["num_envs"] * sizes["rollout_steps"]
    if steps.max() > batch:
        found = f"{batch} steps an iteration, metrics.jsonl has {steps.max()}: not of the same run"
        raise FieldError(f"derived.N * derived.T={found}")
    # 3. Returns: under weak scaling each world size has a batch of its own, so a mixed curve belongs to none of them.
    roles, rank_means = summary_file.ranks(summary)
    others = Counter(metrics.num_ranks[~own].tolist())
    evaluations, returns = metrics.evaluations, metrics.returns
    final_return = _final_return(evaluation, metrics)
    if others and rule == "weak":
        evaluations, returns, final_return = (), (), math.nan
    return Run(
        path=_name(path),
        env_id=env_id,
        world_size=counts.world_size,
        seed=config.whole("seed", low=-(2**63), high=2**63),
        rule=rule,
        **sizes,
        cores=summary_file.cores(derived, origin.machines),
        env_steps=int(metrics.env_steps[-1]),
        wall_s=float(metrics.wall_s[-1]),
        fps=_fps(summary, counts, metrics, kept),
        final_return=final_return,
        target_return=config.number("target_return", default=math.nan),
        times={name: values[kept[own]] for name, values in metrics.times.items()},
        steps=steps,
        evaluations=evaluations,
        returns=returns,
        stability={name: values[kept] for name, values in metrics.stability.items()},
        config=settings,
        origin=origin,
        eval_s=metrics.eval_s + _final_eval_s(evaluation),
        others=dict(sorted(others.items())),
        topology=config.section("dist", default={}).text("topology", default="ddp"),
        roles=roles,
        num_stepping=derived.whole("num_stepping", high=counts.world_size, default=0),
        whole_episodes=derived.flag("whole_episodes", default=False),
        rank_means=rank_means,
    )


# -- Values that need both files.


def _final_return(evaluation: Fields, metrics: Metrics) -> float:
    """Return the return of the final evaluation, or the last training return if there was no evaluation."""
    final = evaluation.section("final", default={})
    if final.values:
        return final.number("return_mean", default=math.nan)
    return metrics.returns[-1].return_mean if metrics.returns else math.nan


def _final_eval_s(evaluation: Fields) -> float:
    """Return the seconds of the final evaluation; 0 without one."""
    final = evaluation.section("final", default={})
    return final.number("t_eval", low=0, high=LARGEST_SECONDS, default=0.0)


def _check_of_one_run(summary: Fields, counts: RunCounts, metrics: Metrics) -> None:
    """Raise DamagedError unless metrics.jsonl has the iterations that summary.json counts.

    An iteration with another number of lines may belong to another world size of a resumed run, or lack a line. It is
    the former only if summary.json counts as many iterations of its own world size as there are.
    """
    # Count iterations, then compare the last line with the summary.
    iterations, own = len(metrics.num_ranks), int((metrics.num_ranks == counts.world_size).sum())
    if metrics.irregular is not None and counts.with_world_size >= counts.iterations:
        raise DamagedError(f"{metrics.irregular}: the file is damaged")
    if metrics.irregular is None and iterations != counts.iterations:
        lines = f"{counts.world_size} ranks * {counts.iterations} iterations"
        raise DamagedError(f"metrics.jsonl has {metrics.num_lines} lines, not {lines}")
    if (iterations, own) != (counts.iterations, counts.with_world_size):
        raise DamagedError(
            f"metrics.jsonl has {iterations} iterations, {own} of them with {counts.world_size} ranks, where "
            f"summary.json tells of {counts.iterations} and {counts.with_world_size}: not of the same run, or damaged"
        )
    # The summary must end where metrics.jsonl ends.
    for name, last in (("env_steps", metrics.env_steps[-1]), ("wall_s", metrics.wall_s[-1])):
        end = summary.number(name, above=0)
        if not math.isclose(end, last, rel_tol=1e-6):
            ends = f"metrics.jsonl ends at {name}={last}, summary.json at {end:g}"
            raise DamagedError(f"{ends}: not of the same run")


def _after_warmup(counts: RunCounts, own: np.ndarray) -> np.ndarray:
    """Return which iterations count, bool `[iterations]`: those of the last world size after the warm-up of each start.

    An older summary.json does not say which iterations were warm-up. The first ones after a change of world size were.
    Starts with the same world size cannot be seen, so their warm-up counts.
    """
    kept = own.copy()
    if counts.ranges is not None:
        for first, last in counts.ranges:
            kept[first - 1 : last] = False
        if int((own & ~kept).sum()) != counts.left_out:
            raise FieldError(f"warmup.ranges have not the warmup.left_out={counts.left_out} iterations")
    elif not counts.too_few:
        # since: how many iterations ago the present stretch of the last world size began.
        begins = np.flatnonzero(own & ~np.concatenate([[False], own[:-1]]))
        place = np.arange(len(own))
        since = place - begins[np.maximum(np.searchsorted(begins, place, side="right") - 1, 0)]
        kept &= since >= counts.warmup
    if not kept.any():
        left = f"leave nothing of {counts.with_world_size} iterations, but too_few_iterations is false"
        raise FieldError(f"warmup.iterations={counts.warmup} {left}")
    return kept


def _fps(summary: Fields, counts: RunCounts, metrics: Metrics, kept: np.ndarray) -> float:
    """Return environment steps of all ranks / seconds of training, over the iterations that count.

    Raises DamagedError if summary.json has another fps. The fps of an older summary may differ after several starts,
    because it does not say which iterations it left out.
    """
    # FPS from metrics.jsonl.
    total = float(np.diff(metrics.wall_s, prepend=0.0)[kept].sum())
    fps = float(np.diff(metrics.env_steps, prepend=0)[kept].sum()) / total if total > 0 else math.nan
    own = metrics.num_ranks == counts.world_size
    # Must the summary agree? An older one does not say which iterations it left out after several starts.
    one_start = counts.too_few or counts.left_out == int((own & ~kept).sum())
    is_known = counts.ranges is not None or (one_start and np.count_nonzero(np.diff(own)) < 2)
    expected = summary.number("fps", above=0)
    if not (math.isclose(fps, expected, rel_tol=1e-6) if is_known else fps > 0):
        gives = f"metrics.jsonl gives {fps:.6g} steps/s, summary.json {expected:.6g}"
        raise DamagedError(f"{gives}: not of the same run")
    return fps


def _name(path: Path) -> str:
    """Return a path as printable text: file systems allow any bytes in a name."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _reason(error: Exception) -> str:
    return one_line(error.strerror if isinstance(error, OSError) else error)
