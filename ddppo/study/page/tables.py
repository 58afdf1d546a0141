"""Which numbers does a report list? Rows for CSV and JSON, then tables for the page and the terminal."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ddppo.study.columns import duration, percent
from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.speedup import SpeedupRow, Study, time_to_target
from ddppo.study.measure.statistics import SeedMedian
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.recommend import RecommendedW
from ddppo.study.read.record import PARTS, Run
from ddppo.study.read.selection import named


def run_row(run: Run) -> dict[str, Any]:
    """Return a line of per_run.csv. Times are seconds, means over ranks and iterations after warm-up."""
    # A run without times has empty cells.
    times = {f"{name}_mean": float(values.mean()) for name, values in run.times.items() if values.size}
    return {
        "env_id": run.env_id,
        "rule": run.rule,
        "topology": run.topology,
        "world_size": run.world_size,
        "seed": run.seed,
        "num_envs": run.num_envs,
        "rollout_steps": run.rollout_steps,
        "num_epochs": run.num_epochs,
        "num_minibatches": run.num_minibatches,
        "num_parameters": run.num_parameters,
        "cores": run.cores,
        "threads_per_rank": run.origin.threads_per_rank,
        "env_steps": run.env_steps,
        "wall_s": run.wall_s,
        "fps": run.fps,
        "iterations_measured": len(run.steps),
        "iterations_of_other_world_sizes": sum(run.others.values()),
        **{f"{name}_mean": times.get(f"{name}_mean", math.nan) for name in ("t_iter", *PARTS)},
        "final_return": run.final_return,
        "target_return": run.target_return,
        "time_to_target_s": time_to_target(run),
        "path": run.path,
    }


def study_row(study: Study, row: SpeedupRow, account: Account | None) -> dict[str, Any]:
    """Return a line of summary.csv: all numbers of one W."""
    return {
        "env_id": study.env_id,
        "rule": study.rule,
        "topology": study.topology,
        "world_size": row.world_size,
        "seeds": len(row.seeds),
        "num_envs": row.num_envs,
        "rollout_steps": row.rollout_steps,
        "steps_per_iter": row.steps_per_iter,
        **_spelled("fps", row.fps),
        **_spelled("speedup", row.speedup),
        **_spelled("efficiency", row.efficiency),
        **_spelled("time_to_target_s", row.time_to_target),
        "num_reached_target": row.num_reached,
        **_spelled("speedup_by_target", row.speedup_by_target),
        **_spelled("efficiency_by_target", row.efficiency_by_target),
        **{f"t_iter_{name}_s": value for name, value in row.t_iter.items()},
        **{f"{part}_mean_s": row.parts.get(part, math.nan) for part in PARTS},
        "rho_comm": row.rho_comm,
        "rho_sync": row.rho_sync,
        "oversubscription": row.oversubscription,
        "slow_ranks": " ".join(str(rank.rank) for rank in row.slow_ranks),
        **_spelled("final_return", row.final_return),
        **{f"{name}_p50": quantiles["p50"] for name, quantiles in row.stability.items()},
        **({} if account is None else {f"loss_{cause}": share for cause, share in account.shares.items()}),
    }


def _spelled(name: str, value: SeedMedian) -> dict[str, float]:
    """Return a median and its interval as three columns."""
    return {
        name: value.median,
        f"{name}_low": value.low,
        f"{name}_high": value.high,
    }


def study_rows(study: Study, accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """Return the lines of summary.csv."""
    by_w = {account.world_size: account for account in accounts}
    return [study_row(study, row, by_w.get(row.world_size)) for row in study.rows]


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV under the union of their columns; NaN is empty, infinity `inf`."""
    # Columns in the order of their first appearance.
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
    return buffer.getvalue()


# -- Tables for people.


@dataclass(frozen=True, slots=True)
class Shown:
    """A table of formatted cells."""

    head: list[str]
    lines: list[list[str]]
    text: bool = False  # cells are words, aligned to the left


def shown(columns: Mapping[str, list[str]]) -> Shown:
    return Shown(list(columns), [list(line) for line in zip(*columns.values(), strict=True)])


def study_table(study: Study) -> Shown:
    return shown(measured(study.rows, study.target_return))


def measured(rows: Sequence[SpeedupRow], target_return: float) -> dict[str, list[str]]:
    """Return the measured numbers of each W, by column; columns without numbers are left out.

    They are medians over seeds, or those of the run with the median FPS: an iteration takes steps / FPS.
    """
    columns: dict[str, list[str]] = {
        "W": [str(row.world_size) for row in rows],
        "seeds": [str(len(row.seeds)) for row in rows],
        "FPS": [interval(row.fps, "{:,.0f}") for row in rows],
        "S": [interval(row.speedup, "{:.3g}") for row in rows],
        "E": [interval(row.efficiency, "{:.3g}") for row in rows],
    }
    # Time to target, and how many seeds reached it if not all did.
    if any(row.time_to_target.count for row in rows):
        never = "not reached"
        columns[f"s to {target_return:g}"] = [interval(r.time_to_target, "{:.3g}", never) for r in rows]
        if any(row.num_reached < row.time_to_target.count for row in rows):
            columns["reached"] = [f"{row.num_reached} of {row.time_to_target.count}" for row in rows]
        columns["S by time"] = [interval(row.speedup_by_target, "{:.3g}") for row in rows]
    if any(row.final_return.count for row in rows):
        columns["return"] = [interval(row.final_return, "{:.4g}") for row in rows]
    if any(not math.isnan(row.t_iter["mean"]) for row in rows):
        took = [row.steps_per_iter / row.fps.median for row in rows]
        mean = [row.t_iter["mean"] for row in rows]
        columns["iteration"] = [
            duration(m if math.isnan(t) or math.isnan(m) else t) for t, m in zip(took, mean, strict=True)
        ]
        columns["p95"] = [duration(row.t_iter["p95"]) for row in rows]
    if any(row.parts for row in rows):
        columns["waiting"] = [percent(row.rho_sync) for row in rows]
        columns["communication"] = [percent(row.rho_comm) for row in rows]
    if any(row.slow_ranks for row in rows):
        columns["slow ranks"] = [
            " ".join(str(rank.rank) for rank in row.slow_ranks) or "none" for row in rows
        ]
    return columns


def loss_table(study: Study, accounts: Sequence[Account]) -> Shown:
    """Return the share of each cause at each W, with its 95 % interval."""
    lines = [
        [cause_name(cause, study.rule), *(_share(account, cause) for account in accounts)]
        for cause in accounts[0].shares
        if any(account.shares[cause] for account in accounts)
    ]
    lines.append(["lost efficiency 1 - E(W)", *(percent(account.loss) for account in accounts)])
    return Shown(["cause", *(f"W={account.world_size}" for account in accounts)], lines)


def _share(account: Account, cause: str) -> str:
    low, high = account.between[cause]
    share = percent(account.shares[cause])
    return share if math.isnan(low) else f"{share} [{percent(low)}, {percent(high)}]"


def choices_table(choices: Sequence[RecommendedW]) -> Shown:
    """Return the W that were compared: speed, time and cost of a run. Only a predicted FPS has its interval here."""
    columns = {
        "W": [str(c.world_size) for c in choices],
        "": ["measured" if c.measured else "predicted" for c in choices],
        "FPS": [
            f"{c.fps:,.0f}" + ("" if c.measured else f" [{c.fps_low:,.0f}, {c.fps_high:,.0f}]")
            for c in choices
        ],
        "E": [f"{c.efficiency:.3g}" for c in choices],
        "time": [duration(c.seconds) for c in choices],
        "time of workers": [duration(c.worker_seconds) for c in choices],
    }
    if any(c.cost is not None for c in choices):
        columns["cost"] = ["" if c.cost is None else f"{c.cost:.3g}" for c in choices]
    return shown(columns)


def predictions_table(found: Sequence[Prediction]) -> Shown:
    """Return the predictions of each W."""
    columns = {
        "W": [str(p.world_size) for p in found],
        "FPS": [f"{p.fps:,.0f} [{p.fps_low:,.0f}, {p.fps_high:,.0f}]" for p in found],
        "S": [f"{p.speedup:.3g} [{p.speedup_low:.3g}, {p.speedup_high:.3g}]" for p in found],
        "E": [f"{p.efficiency:.3g} [{p.efficiency_low:.3g}, {p.efficiency_high:.3g}]" for p in found],
    }
    if not all(math.isnan(p.t_iter) for p in found):
        columns["iteration"] = [duration(p.t_iter) for p in found]
    return shown(columns)


def number(value: float, form: str, infinite: str = "unbounded") -> str:
    """Return a formatted number; a dash for NaN, and `infinite` for infinity."""
    return "–" if math.isnan(value) else infinite if math.isinf(value) else form.format(value)


def interval(value: SeedMedian, form: str, infinite: str = "unbounded") -> str:
    """Return `median [low, high]`, or the median alone if there is no interval or it has no width.

    An interval without a median is a bound: "> 1.2" or "< 0.8".
    """
    if math.isnan(value.median) and not math.isnan(value.low):
        return f"> {form.format(value.low)}" if math.isinf(value.high) else f"< {form.format(value.high)}"
    middle, low, high = (number(v, form, infinite) for v in (value.median, value.low, value.high))
    # An interval from 0 to infinity says nothing.
    nothing = math.isnan(value.low) or (value.low == 0 and math.isinf(value.high)) or low == middle == high
    return middle if nothing else f"{middle} [{low}, {high}]"


def terminal(study: Study, width: int | None = None) -> str:
    """Return the table of a study for the terminal, with medians only."""
    return on_terminal(title(study), study_table(study), width)


def on_terminal(title: str, what: Shown, width: int | None = None) -> str:
    """Return a table as text, without the intervals in its cells."""
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in what.head:
        table.add_column(name, justify="right")
    for line in what.lines:
        table.add_row(*(cell.split(" [")[0] for cell in line))
    output = io.StringIO()
    Console(width=width, file=output).print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().rstrip().splitlines())


def title(study: Study) -> str:
    runs = len(study.runs)
    return f"{named(study.runs)}, {runs} run{'s' if runs > 1 else ''}"
