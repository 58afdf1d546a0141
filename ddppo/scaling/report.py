"""From a sweep folder, or somebody else's table, to a report folder: read, compute, write, in this order."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ddppo.config import setting
from ddppo.errors import RunFolderError
from ddppo.scaling import accounting, criteria, figures, html, outlook, tables
from ddppo.scaling.accounting import Account
from ddppo.scaling.criteria import Criterion
from ddppo.scaling.figure_style import Plot
from ddppo.scaling.foreign import ForeignTable, read_table
from ddppo.scaling.outlook import Outlook
from ddppo.scaling.runs import REPORT_FILE, Reading, read_runs
from ddppo.scaling.selection import one_study, with_target
from ddppo.scaling.speedup import Study
from ddppo.scaling.speedup import study as compute_study

SCHEMA_VERSION = 1
_SHOWN = 6  # of what is left out, on the terminal


@dataclass(slots=True)
class ReportOptions:
    path: str = setting(MISSING, "a sweep folder, or a .csv or .jsonl file with a row per run")
    out: str | None = setting(
        None, "where the report goes; <sweep>/report if null, <table>_report for a file"
    )
    env: str | None = setting(None, "report the runs of this task only, by its id")
    rule: str | None = setting(
        None, "report only strong or only weak scaling; of a table: what it is", choices=("strong", "weak")
    )
    target_return: float | None = setting(None, "return that time to target asks for; the runs' own if null")
    return_tolerance: float = setting(0.05, "|R_W - R_1| may be this part of |R_1|", low=0)
    return_tolerance_abs: float | None = setting(None, "|R_W - R_1| may be this much, instead", low=0)
    unexplained_tolerance: float = setting(0.05, "part of the loss that may stay unexplained", above=0)
    columns: dict[str, str] = setting(
        meaning="of a table: our columns to its own, {world_size: W, fps: FPS}", factory=dict
    )
    what_if: dict[str, Any] = setting(
        meaning="changes to predict for, {latency_s: 2e-5, preemption: 0.6}; see ddppo.scaling.model.WhatIf",
        factory=dict,
    )
    predict_to: int | None = setting(None, "largest W predicted; 4 times the largest measured if null", low=1)
    efficiency_floor: float = setting(0.7, "least efficiency of the W recommended for it", low=0, high=1)
    price_per_worker_hour: float = setting(1.0, "price of a worker for an hour, in any currency", low=0)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says, before it is written anywhere."""

    study: Study
    accounts: list[Account]
    criteria: list[Criterion]
    why: str
    ahead: Outlook
    found: Reading
    options: ReportOptions


def make_report(
    options: ReportOptions, progress: Callable[[str], None] = lambda path: None
) -> tuple[Report, Path]:
    """Read, compute and write a report; return it and its folder. Raises ConfigError if there is nothing to report."""
    path = Path(options.path)
    beside = path / "report" if path.is_dir() else path.with_name(f"{path.stem}_report")
    folder = Path(options.out) if options.out else beside
    _refuse_to_overwrite(folder)
    report = compute(options, read(options, progress))
    write(report, folder)
    return report, folder


def read(options: ReportOptions, progress: Callable[[str], None] = lambda path: None) -> Reading:
    """Return the runs of one study, below the folder or in the table that `path` names."""
    path = Path(options.path)
    if path.is_dir():
        if options.columns:
            raise RunFolderError(f"columns={options.columns} has no effect on a sweep folder: leave it out")
        found = one_study(read_runs(path, progress), env=options.env, rule=options.rule)
    elif path.is_file():
        if path.name == "summary.json":
            raise RunFolderError(f"{path} is a file of a run: give the sweep folder, {path.parent.parent}")
        table = ForeignTable(path, options.columns, options.env or path.stem, options.rule or "strong")
        found = read_table(table)
    else:
        raise RunFolderError(f"{path} does not exist: give a sweep folder or a .csv or .jsonl file")
    if not found.runs:
        reasons = "".join(f"\n  {item}" for item in found.left_out)
        hint = reasons or " no summary.json below it: give the folder of a sweep (hydra.sweep.dir)"
        raise RunFolderError(f"{path} has no run that can be reported:{hint}")
    runs, remarks = with_target(found.runs, options.target_return)
    return Reading(runs, found.left_out, [*found.remarks, *remarks])


def compute(options: ReportOptions, found: Reading) -> Report:
    """Return the whole report; pure."""
    study = compute_study(found.runs)
    accounts = accounting.accounts(study)
    verdict = [
        criteria.speedup_increases(study),
        criteria.returns_agree(
            study, relative=options.return_tolerance, absolute=options.return_tolerance_abs
        ),
        criteria.loss_explained(accounts, tolerance=options.unexplained_tolerance),
    ]
    found = Reading(found.runs, found.left_out, [*found.remarks, *_remarks(study)])
    ahead = outlook.outlook(
        study,
        what_if=options.what_if,
        predict_to=options.predict_to,
        efficiency_floor=options.efficiency_floor,
        price_per_worker_hour=options.price_per_worker_hour,
    )
    return Report(study, accounts, verdict, accounting.in_words(study), ahead, found, options)


def _remarks(study: Study) -> list[str]:
    remarks = []
    first = study.baseline
    if first != 1:
        remarks.append(
            f"There is no run with W=1, so S and E are relative to W={first}, the smallest there is: S(W) = FPS(W) / "
            f"FPS({first}), E(W) = S(W) * {first} / W. Add dist.world_size=1 to the sweep for absolute ones."
        )
    counts = {len(row.seeds) for row in study.rows}
    if len(counts) > 1:
        listed = ", ".join(f"W={row.world_size}: {len(row.seeds)}" for row in study.rows)
        remarks.append(f"Not every W has as many runs as the others ({listed}).")
    if counts == {1} and len(study.rows) > 1:
        remarks.append(
            "There is one run per W: no intervals. Add seeds (seed=0,1,2) to tell noise from scaling."
        )
    over = [row.world_size for row in study.rows if row.oversubscription > 1]
    if over:
        listed = ", ".join(map(str, over))
        remarks.append(f"Oversubscribed: W={listed} use more compute threads than the {study.cores} cores.")
    if len({run.summary.get("derived", {}).get("env_backend", "") for run in study.runs}) > 1:
        remarks.append(
            "env.backend=auto stepped environments in processes of their own at some W, where workers had cores to "
            "spare, and not at others: set env.backend=sync (or async) to compare like with like."
        )
    return remarks


# -- writing ---------------------------------------------------------------------------------------------------------


def write(report: Report, folder: Path) -> None:
    """Write report.html, report.json, the CSVs, plots/ and tensorboard/ into `folder`, all or nothing.

    An earlier report there is replaced. Raises RunFolderError if the folder holds anything else.
    """
    _refuse_to_overwrite(folder)
    study, accounts = report.study, report.accounts
    plots, further = figures.plots(study, accounts), outlook.plots(study, report.ahead)
    rows = tables.study_rows(study, accounts)
    with _new_folder(folder) as new:
        (new / "per_run.csv").write_text(tables.to_csv([tables.run_row(run) for run in study.runs]))
        (new / "summary.csv").write_text(tables.to_csv(rows))
        (new / REPORT_FILE).write_text(tables.to_json(as_json(report)))
        (new / "report.html").write_text(_page(report, plots, further), encoding="utf-8")
        (new / "plots").mkdir()
        for plot in plots + further:
            (new / "plots" / f"{plot.name}.svg").write_bytes(plot.svg)
            (new / "plots" / f"{plot.name}.png").write_bytes(plot.png)
        tables.write_tensorboard(new / "tensorboard", rows)


def _page(report: Report, plots: list[Plot], further: list[Plot]) -> str:
    found = report.found
    return html.page(
        report.study,
        report.accounts,
        report.criteria,
        report.why,
        plots,
        left_out=found.left_out,
        remarks=found.remarks,
        outlook=outlook.section(report.ahead, further),
    )


def as_json(report: Report) -> dict[str, object]:
    """Return what report.json holds: the rows of both CSVs, ranks and stability, the account and the verdict."""
    study = report.study
    of = {account.world_size: account for account in report.accounts}
    return {
        "schema_version": SCHEMA_VERSION,
        "env_id": study.env_id,
        "rule": study.rule,
        "baseline_world_size": study.baseline,
        "target_return": study.target_return,
        "options": asdict(report.options),
        "criteria": [asdict(criterion) for criterion in report.criteria],
        "why": report.why,
        "world_sizes": [
            tables.study_row(row, of.get(row.world_size)) | tables.detail(row) for row in study.rows
        ],
        "predictions": [asdict(p) for p in report.ahead.as_measured],
        "what_if": report.ahead.changes,
        "predictions_what_if": [asdict(p) for p in report.ahead.changed],
        "recommendation": asdict(report.ahead.recommendation) if report.ahead.recommendation else None,
        "runs": [tables.run_row(run) for run in study.runs],
        "left_out": [asdict(item) for item in report.found.left_out],
        "remarks": report.found.remarks,
    }


def _refuse_to_overwrite(folder: Path) -> None:
    mine = (folder / REPORT_FILE).is_file()
    if folder.is_file() or (folder.is_dir() and not mine and any(folder.iterdir())):
        raise RunFolderError(
            f"out={folder} is something else than an earlier report: give another folder by out="
        )


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which takes the place of `folder` once it is whole."""
    new = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    try:
        new.mkdir(parents=True)
    except OSError as e:
        raise RunFolderError(
            f"{folder.parent} cannot be written to ({e.strerror}): give another folder by out="
        ) from e
    try:
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def on_terminal(report: Report, folder: Path, width: int | None = None) -> str:
    """Return what the door prints: the table, the verdict, why, what was left out, and where the files are."""
    lines = [tables.terminal(report.study, width), ""]
    lines += [f"{c.result:<5} {c.name}: {c.reason}" for c in report.criteria]
    lines += ["", report.why]
    if report.ahead.recommendation is not None:
        lines += ["", report.ahead.recommendation.text(), ""]
    lines += [f"note: {remark}" for remark in (*report.found.remarks, *report.ahead.remarks)]
    left_out = report.found.left_out
    lines += [f"left out: {item}" for item in left_out[:_SHOWN]]
    if len(left_out) > _SHOWN:
        lines.append(f"left out: {len(left_out) - _SHOWN} more, listed in the report")
    lines += ["", f"report: {folder / 'report.html'}"]
    return "\n".join(lines)
