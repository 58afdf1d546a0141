"""How is a report written? The files of its folder, and its text on the terminal."""

import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ddppo.errors import RunFolderError
from ddppo.files import stored, write_json
from ddppo.study.measure.speedup import Study
from ddppo.study.page import html, tables, topologies
from ddppo.study.page.chart import Chart
from ddppo.study.read.run_folders import REPORT_FILE, REPORT_KIND, is_report
from ddppo.study.read.selection import provenance
from ddppo.study.report import Report, ReportOptions, StudyReport, compute, read

SCHEMA_VERSION = 3
_LONGEST_NAME = 50  # characters of a part of a folder's name; each may have four bytes
_MAX_LEFT_OUT = 6  # runs that the terminal names


def make_report(
    options: ReportOptions, progress: Callable[[str], None] = lambda path: None
) -> tuple[Report, Path]:
    """Read, compute and write a report; return it and its folder.

    Raises ConfigError if there is nothing to report, StorageError if it cannot be written.
    """
    folder = folder_of(options)
    refuse_to_overwrite(folder)
    report = compute(options, read(options, progress))
    write(report, folder)
    return report, folder


def folder_of(options: ReportOptions) -> Path:
    """Return the folder of the report."""
    path = Path(options.path)
    beside = path / "report" if path.is_dir() else path.with_name(f"{path.stem}_report")
    return Path(options.out) if options.out else beside


def write(report: Report, folder: Path, live: html.Live | None = None) -> None:
    """Write report.html, summary.json, the CSV files, plots/ and tensorboard/ into `folder`, all of them or none.

    Each of several studies has a folder of its own in plots/. An earlier report is replaced. Raises RunFolderError if
    the folder holds anything else.
    """
    refuse_to_overwrite(folder)
    # Make every chapter first: its charts are files too.
    chapters = [
        html.chapter(each, report.options, brief=report.is_compared_only(each.study))
        for each in report.studies
    ]
    with new_folder(folder) as new:
        for chapter, inner in zip(chapters, _folder_names(report.studies), strict=True):
            write_plots(new / "plots" / inner, chapter.charts)
        for each, inner in zip(report.studies, _folder_names(report.studies), strict=True):
            write_scalars(new / "tensorboard" / inner, each.study)
        runs = [tables.run_row(run) for each in report.studies for run in each.study.runs]
        rows = [row for each in report.studies for row in tables.study_rows(each.study, each.accounts)]
        write_plots(new / "plots", [topologies.figure(each.found) for each in report.topologies])
        if sides := [row for each in report.topologies for row in topologies.rows(each.found)]:
            (new / "topologies.csv").write_text(tables.to_csv(sides))
        (new / "per_run.csv").write_text(tables.to_csv(runs))
        (new / "summary.csv").write_text(tables.to_csv(rows))
        write_json(new / REPORT_FILE, as_json(report))
        (new / "report.html").write_text(html.page(report, chapters, live), encoding="utf-8")


def _folder_names(reports: list[StudyReport]) -> list[str]:
    """Return the folder of each study in plots/: <task>_<rule>[_<topology>], without ddp; "." for a single study."""
    if len(reports) == 1:
        return ["."]
    names: list[str] = []
    for each in reports:
        # Names of tasks may have characters that a file system refuses.
        words = [each.study.env_id, each.study.rule, each.study.topology.removeprefix("ddp")]
        cut = [re.sub(r"[^\w.-]+", "_", word).lstrip(".")[:_LONGEST_NAME] for word in words]
        name = "_".join(filter(None, cut))
        # Two tasks may differ only in such characters.
        while name in names:
            name += "_"
        names.append(name)
    return names


def write_plots(folder: Path, charts: Sequence[Chart]) -> None:
    """Write each chart as <name>.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (folder / f"{chart.name}.svg").write_text(chart.svg(standalone=True), encoding="utf-8")


def write_scalars(folder: Path, study: Study) -> None:
    """Write S(W), E(W) and more as TensorBoard's scalars: medians over seeds, with W as the step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    for row in study.rows:
        numbers = {
            "scaling/speedup": row.speedup.median,
            "scaling/efficiency": row.efficiency.median,
            "scaling/fps": row.fps.median,
            "scaling/rho_comm": row.rho_comm,
            "scaling/rho_sync": row.rho_sync,
        }
        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items() if math.isfinite(x)]
        writer.add_event(Event(step=row.world_size, wall_time=time.time(), summary=Summary(value=values)))
    writer.close()


def as_json(report: Report) -> dict[str, object]:
    """Return the content of summary.json: for each study the rows of both CSV files, ranks, causes, verdict, ..."""
    return {
        "kind": REPORT_KIND,
        "schema_version": SCHEMA_VERSION,
        "options": asdict(report.options),
        "topologies": [
            {"said": each.sentences, "sides": topologies.rows(each.found)} for each in report.topologies
        ],
        "studies": [_study_as_json(each) for each in report.studies],
        "left_out": [asdict(item) for item in report.left_out],
        "remarks": report.remarks,
    }


def _study_as_json(each: StudyReport) -> dict[str, object]:
    study, ahead = each.study, each.ahead
    # The rows of summary.csv, with ranks and stability.
    rows = zip(study.rows, tables.study_rows(study, each.accounts), strict=True)
    return {
        "env_id": study.env_id,
        "rule": study.rule,
        "topology": study.topology,
        "baseline_world_size": study.baseline,
        "target_return": study.target_return,
        "provenance": asdict(provenance(study.runs)),
        "doubts": [asdict(doubt) for doubt in each.doubts],
        "criteria": [asdict(criterion) for criterion in each.criteria],
        "why": [asdict(why) for why in each.why],
        "world_sizes": [
            numbers | {"ranks": [asdict(rank) for rank in row.ranks], "stability": row.stability}
            for row, numbers in rows
        ],
        "predictions": [asdict(p) for p in ahead.as_measured],
        "held_out": [asdict(c) | {"error": c.error, "usl_error": c.usl_error} for c in ahead.checks],
        "usl": {n: getattr(ahead.usl, n) for n in ("sigma", "kappa", "peak")} if ahead.usl else None,
        "what_if": ahead.changes,
        "predictions_what_if": [asdict(p) for p in ahead.changed],
        "recommendation": asdict(ahead.recommendation) if ahead.recommendation else None,
        "runs": [tables.run_row(run) for run in study.runs],
        "remarks": [*each.remarks, *ahead.remarks],
    }


def refuse_to_overwrite(folder: Path) -> None:
    """Raise RunFolderError if the folder holds anything but an earlier report."""
    replaceable = is_report(folder)
    if folder.is_file() or (folder.is_dir() and not replaceable and any(folder.iterdir())):
        raise RunFolderError(f"out={folder} is not an earlier report: give another folder by out=")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to fill; at the end of the block its files replace those in `folder`.

    A file in both is replaced at once, so that a browser that reloads the page always finds one.
    """
    new = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    try:
        with stored(folder):
            new.mkdir(parents=True)
            yield new
            if not folder.exists():
                new.rename(folder)
                return
            # Replace files one by one, then remove old ones that have no successor.
            made = {path.relative_to(new) for path in new.rglob("*")}
            for name in sorted(made):
                if (new / name).is_dir():
                    (folder / name).mkdir(exist_ok=True)
                else:
                    (new / name).replace(folder / name)
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.relative_to(folder) not in made:
                    path.rmdir() if path.is_dir() else path.unlink()
    finally:
        shutil.rmtree(new, ignore_errors=True)


def on_terminal(report: Report, folder: Path, width: int | None = None) -> str:
    """Return the text for the terminal: for each study its table, verdict and explanations; then runs left out."""
    # Remarks on all studies, then each study: table, verdict, why, which W, last check.
    several = len(report.studies) > 1
    lines = [f"note: {remark}" for remark in report.remarks] + ([""] if report.remarks else [])
    for compared in report.topologies:
        shown = topologies.results(compared.found)
        lines += [
            tables.on_terminal("Topologies side by side", shown, width),
            "",
            *compared.sentences,
            "",
            "",
        ]
    for each in report.studies:
        if report.is_compared_only(each.study):
            continue
        lines += [f"CANNOT BE BELIEVED: {doubt}" for doubt in each.doubts] + ([""] if each.doubts else [])
        lines += [tables.terminal(each.study, width), ""]
        lines += [f"{c.result:<12} {c.name}: {c.reason}" for c in each.criteria]
        lines += [line for why in each.why for line in ("", str(why))]
        if each.ahead.recommendation is not None:
            lines += ["", each.ahead.recommendation.text(), ""]
        lines += [f"{check}." for check in each.ahead.checks[-1:]]
        notes = each.remarks if several else (*each.remarks, *each.ahead.remarks)
        lines += [f"note: {remark}" for remark in notes] + (["", ""] if several else [])
    lines += [f"left out: {item}" for item in report.left_out[:_MAX_LEFT_OUT]]
    if len(report.left_out) > _MAX_LEFT_OUT:
        lines.append(f"left out: {len(report.left_out) - _MAX_LEFT_OUT} more, listed in the report")
    lines += ["", f"report: {folder / 'report.html'}"]
    return "\n".join(lines)
