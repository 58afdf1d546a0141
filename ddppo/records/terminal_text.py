"""The text that a run prints on the terminal: its sizes before it begins, and its results at the end.

Both are rows of a label and a text. progress_display.py shows the progress in between.
"""

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddppo.algorithms.known import training_section
from ddppo.config.settings import Config
from ddppo.package import command, program
from ddppo.records import checkpoint
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.scaling import BatchShape

_MIN_TEXT_WIDTH = 16  # columns beside a label; in a narrower terminal lines are not wrapped here


def header(config: Config, shape: BatchShape, derived: Mapping[str, Any], width: int | None = None) -> str:
    """Return the sizes of a run and their formulas, in lines of `width`.

    derived: facts that only the process knows (num_parameters, device, ...), each a row of its own.
    """
    # Numbers of environments, of samples and of optimizer steps, each with its formula.
    s, total = shape, config.training.total_steps
    num_updates = s.num_minibatches * s.num_epochs
    all_step = s.num_stepping in (0, s.world_size)
    steppers = f"W x E = {s.world_size}" if all_step else f"ranks that step x E = {s.num_stepping}"
    shares = f"{steppers} x {s.local_num_envs}"
    if s.env_shares:
        shares = " + ".join(map(str, s.env_shares))
    elif rest := s.num_envs % s.num_shares:  # the first ranks have one environment more
        shares = f"{rest} x {s.local_num_envs} + {s.num_shares - rest} x {s.fewest_envs}"
    # A rollout of whole episodes may end before T steps.
    at_least, at_most = ("at least ", "at most ") if derived.get("whole_episodes") else ("", "")
    batch = "N"
    if num_rollouts := config.training.rollouts_per_update:
        # Of unequal shares it is a mean, for any actors may be first.
        is_equal = s.fewest_envs == s.local_num_envs
        batch = f"{num_rollouts} x E" if is_equal else f"about {num_rollouts} x {s.num_envs} / {s.num_shares}"
    rows = [
        ("task", f"{config.env.id}, seed {config.seed}"),
        ("length", f"{total:,} steps = {at_least}{-(-total // s.batch_size):,} iterations"),
        ("ranks", f"W = {s.world_size}" + _roles(config, derived.get("roles", ()))),
        ("envs", f"N = {shares} = {s.num_envs:,}"),
        (
            "batch",
            f"B = {at_most}{batch} x T = {s.batch_envs or s.num_envs:,} x {s.rollout_steps:,} = {s.batch_size:,} "
            f"({config.scaling.rule} scaling)",
        ),
        (
            "updates",
            f"minibatch {s.minibatch_size:,}, M x K = {s.num_minibatches} minibatches x {s.num_epochs} "
            f"epochs = {num_updates} per iteration",
        ),
    ]
    # Facts that only the process knows: parameters, device, threads, machines, folder.
    for name, value in derived.items():
        if name in ("roles", "whole_episodes"):  # shown in the rows above
            continue
        if name == "machines":
            value = ", ".join(f"{each['hostname']} ({each['cores']} cores)" for each in value)
        label = {"num_parameters": "parameters", "run_dir": "run folder"}.get(name, name.replace("_", " "))
        rows.append((label, f"{value:,}" if type(value) is int else str(value)))
    return _columns(rows, width)


def _roles(config: Config, roles: Sequence[str]) -> str:
    """Return the number of ranks of each role; "" if all ranks have the same role."""
    kinds = Counter(roles)
    counts = ", ".join(f"{number} x {name}" for name, number in kinds.items())
    return f", {config.dist.topology}: {counts}" if len(kinds) > 1 else ""


def closing(summary: Mapping[str, Any], run_dir: Path, width: int | None = None) -> str:
    """Return the results in `summary`, in lines of `width`, then commands for the next steps, which are not wrapped."""
    # Status, and the time split of an iteration.
    rows = [
        ("status", str(summary["status"])),
        (
            "training",
            f"{summary['env_steps']:,} steps in {duration(summary['wall_s'])}, "
            f"{number(summary['fps'], ',.0f')} steps/s after warm-up",
        ),
    ]
    if ended := summary.get("ended"):
        rows.append(("ended early", ended["why"]))
    means = {part: summary["time"][part]["mean"] for part in ("t_iter", *EXCLUSIVE_PARTS)}
    if all(mean is not None and math.isfinite(mean) for mean in means.values()):
        t_iter = means.pop("t_iter")
        shares = (f"{part[2:]} {100 * mean / t_iter:.0f}%" for part, mean in means.items())
        rows.append(("time", f"{1000 * t_iter:.1f} ms an iteration: {' '.join(shares)}"))
    rows += _time_by_role(summary["per_rank"])
    # Failures after training, and scores.
    for each in summary.get("failed_after_training", ()):
        # A signal is not a failure.
        is_cut_short = each["why"].startswith(("stopped by ", "interrupted"))
        what = "was" if is_cut_short else "failed:"
        rows.append((f"{summary['status']}, but", f"{each['step']} {what} {each['why']}"))
    final, best, target = summary["eval"]["final"], summary["eval"]["best"], summary["target"]
    if final:
        rows.append(("evaluation", _scores(final)))
    if best:
        rows.append(("best", f"{_scores(best)}, at {number(best.get('env_steps'), ',')} steps"))
    if target and target.get("return") is not None:
        reached = (
            f"reached after {duration(target['time_to_target_s'])}, {target['steps_to_target']:,} steps"
            if target["reached"]
            else "not reached"
        )
        rows.append((f"return {target['return']:g}", reached))
    # Sentences of sections that a task or a task sampler adds to the summary.
    parts = [part for part in summary.values() if isinstance(part, Mapping)]
    for part in parts:
        rows += list((part.get("said") or {}).items())
    # Commands: look at curves, evaluate, and continue. A complete run continues to twice its steps.
    more = []
    if summary["status"] == "completed":
        more = [setting for part in parts for setting in part.get("go_on", ())]
        section = training_section(summary.get("config", {}))
        more.append(f"{section}.total_steps={2 * summary['env_steps']}")
    commands = [("curves", f"{program('tensorboard')} --logdir {shlex.quote(str(run_dir))}")]
    has_checkpoint = checkpoint.last(run_dir / "checkpoints") is not None
    if has_checkpoint:
        commands.append(("evaluate", command("ddppo.evaluate", f"run={run_dir}")))
    resume = command("ddppo.train", f"resume={run_dir}", *more)
    commands.append(("go on" if has_checkpoint else "begin anew", resume))
    return _columns(rows, width, [("all numbers", str(run_dir / "summary.json")), *commands])


def _time_by_role(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the time split of each role's ranks, if there are several roles, and the lag of async rollouts."""
    # Times of the ranks, grouped by role.
    roles: dict[str, list[Mapping[str, float]]] = {}
    for rank in ranks:
        roles.setdefault(rank.get("role", ""), []).append(rank.get("time", {}))
    rows = []
    for role, times in roles.items() if len(roles) > 1 else ():
        total = sum(each["t_iter"] for each in times) or math.nan
        shares = {part: sum(each[part] for each in times) / total for part in EXCLUSIVE_PARTS}
        split = " ".join(f"{part[2:]} {number(100 * share, '.0f')}%" for part, share in shares.items())
        rows.append(("", f"{len(times)} x {role}: {split}"))
    lags = [rank["dist"]["lag_mean"] for rank in ranks if "lag_mean" in rank.get("dist", {})]
    return [*rows, *(("lag", f"{lag:.2f} updates, mean over rollouts") for lag in lags)]


def _scores(scores: Mapping[str, Any]) -> str:
    names = (
        ("return_mean", "mean"),
        ("return_median", "median"),
        ("return_iqm", "IQM"),
        ("return_std", "std"),
        ("success_rate", "success"),
    )
    values = ", ".join(f"{label} {number(scores[name], '.2f')}" for name, label in names if name in scores)
    return f"{values} over {number(scores.get('episodes'), '.0f')} episodes"


def number(value: Any, form: str = "") -> str:
    """Return a formatted number, "?" for None and NaN."""
    return "?" if value is None or math.isnan(value) else format(value, form)


def duration(seconds: float) -> str:
    """Return seconds as 9.3 s, 2:05 or 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _columns(
    rows: Sequence[tuple[str, str]], width: int | None = None, whole: Sequence[tuple[str, str]] = ()
) -> str:
    """Return labels and texts in two columns, wrapped to `width`; the rows of `whole` are not wrapped."""
    # Labels are as wide as the longest; texts begin in the same column.
    indent = 2 + max(len(label) for label, _ in (*rows, *whole))
    lines = []
    for label, text in rows:
        parts = [text]
        if width is not None and width - indent >= _MIN_TEXT_WIDTH:
            parts = textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [
                ""
            ]
        lines += [
            f"{head:<{indent}}{part}" for head, part in zip([label, *[""] * len(parts)], parts, strict=False)
        ]
    return "\n".join([*lines, *(f"{label:<{indent}}{text}" for label, text in whole)])
