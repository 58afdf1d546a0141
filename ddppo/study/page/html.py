"""What does report.html contain? A chapter for each study, filled into templates/page.html.j2 by Jinja."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ddppo.plugins import added, imported
from ddppo.study.measure.speedup import Study
from ddppo.study.page import curves, figures, tables, topologies
from ddppo.study.page.answer import AnswerLine, answer
from ddppo.study.page.chart import Chart, stylesheet
from ddppo.study.page.tables import Shown
from ddppo.study.predict.outlook import Outlook
from ddppo.study.read.record import LeftOut, Machine
from ddppo.study.read.selection import provenance
from ddppo.study.report import Report, ReportOptions, StudyReport


@dataclass(frozen=True, slots=True)
class ChapterSection:
    """A section below the first screen, folded until the reader opens it."""

    title: str
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    tables: Sequence[Shown] = ()
    excerpts: Sequence[tuple[str, str]] = ()  # heading and text
    is_open: bool = False  # from the start


@dataclass(frozen=True, slots=True)
class Chapter:
    """The part of the page about one study."""

    report: StudyReport
    facts: Mapping[str, str]  # when, where and how much was measured
    answer: Sequence[AnswerLine]
    overview: Sequence[Chart]  # beside the answer, and not folded either
    folded: Sequence[ChapterSection]
    origin: Mapping[str, str]  # command, commit, versions
    brief: bool = False  # a single W, among several topologies: without comparisons of several W

    @property
    def title(self) -> str:
        return tables.title(self.report.study)

    @property
    def charts(self) -> list[Chart]:
        return [*self.overview, *(chart for section in self.folded for chart in section.charts)]


@dataclass(frozen=True, slots=True)
class Live:
    """The part of the page about a sweep that is still running."""

    sentences: Sequence[str]
    missing: Shown = field(default_factory=lambda: Shown([], []))  # runs
    refresh_s: int = 0  # seconds until the page reloads itself; 0: never


def chapter(each: StudyReport, options: ReportOptions | None = None, *, brief: bool = False) -> Chapter:
    """Return the chapter of a study. `options` are those of the report, by default the plain ones."""
    options = options or ReportOptions(path="")
    study, ahead = each.study, each.ahead
    # The first screen: an answer in words, and four charts.
    several = len(study.rows) > 1
    drawn = [figures.speedup(study, ahead), figures.efficiency(study)] if several else []
    drawn += [found for found in (figures.time_of_iterations(study), curves.returns(study)) if found]
    said = [] if brief else answer(each, options)
    facts, origin = _facts(study)
    return Chapter(each, facts, said, drawn, _folded(each), origin, brief)


def _folded(each: StudyReport) -> list[ChapterSection]:
    """Return the folded sections that have something to show."""
    study, ahead = each.study, each.ahead
    shares = [tables.loss_table(study, each.accounts)] if each.accounts else []
    further, same = curves.learning(study)
    # Most reasons for doubt can be seen in the iterations, so these come first, opened.
    over_time = ChapterSection("Iterations over time", curves.pace(each.recorded), is_open=bool(each.doubts))
    numbers = ChapterSection(
        "Numbers of each W",
        notes=["Medians over seeds; in brackets 95 % intervals, if there are enough seeds."],
        tables=[tables.study_table(study)],
    )
    sections = [
        *([over_time, numbers] if each.doubts else [numbers, over_time]),
        ChapterSection(
            "Why efficiency is lost",
            [figures.loss(study, each.accounts)] if each.accounts else [],
            [str(why) for why in each.why],
            shares,
        ),
        _predictions(study, ahead),
        ChapterSection("Ranks", figures.ranks(study)),
        ChapterSection("Learning and stability", further, same),
        *_excerpts(study),
        ChapterSection(f"Notes: {len(each.remarks)}", (), each.remarks),
    ]
    return [each for each in sections if each.charts or each.notes or each.tables or each.excerpts]


def _excerpts(study: Study) -> list[ChapterSection]:
    """Return sections with what plugins show of a run, such as rollouts of text, of the run with the largest W."""
    sections = []
    for folder, path in added("excerpts").items():
        has_them = [run for run in study.runs if (Path(run.path) / folder).is_dir()]
        if has_them:
            run = max(has_them, key=lambda run: (run.world_size, -run.seed))
            note = f"Of {run.path}, W={run.world_size}, seed {run.seed}."
            sections.append(
                ChapterSection(folder.capitalize(), (), [note], (), imported(path)(Path(run.path)))
            )
    return sections


def _predictions(study: Study, ahead: Outlook) -> ChapterSection:
    """Return the section about the W that were compared, and predictions for W without a run."""
    made, found, notes = ahead.recommendation, list[Shown](), list[str]()
    if made is not None:
        found.append(tables.choices_table(made.table))
        notes += made.reasons
    # No W has numbers twice: a prediction beside a measurement would be a second truth.
    listed = {*study.world_sizes, *(c.world_size for c in (made.table if made else ()))}
    if without := [p for p in ahead.as_measured if p.world_size not in listed]:
        found.append(tables.predictions_table(without))
    notes += [ahead.cores_rule, *ahead.quality, *ahead.remarks]
    if ahead.changed:
        found.append(tables.predictions_table(ahead.changed))
        notes.append(f"The last table is of the same system with {figures.changes(ahead)}.")
    return ChapterSection("Which W, and predictions", (), [note for note in notes if note], found)


def _facts(study: Study) -> tuple[dict[str, str], dict[str, str]]:
    """Return when, where and how much was measured, and where it comes from: command, commit, versions."""
    # The batch at the largest W: of all workers, or of one under weak scaling.
    found, row = provenance(study.runs), study.rows[-1]
    batch = row.num_envs * row.rollout_steps
    share = f"{batch:,} steps" if study.rule == "strong" else f"{batch // row.world_size:,} steps a worker"
    days = dict.fromkeys((found.first[:10], found.last[:10]))
    facts = {
        "measured": " to ".join(filter(None, days)),
        "machine" if len(found.machines) == 1 else "machines": "; ".join(map(_machine, found.machines[:3]))
        + (f"; and {len(found.machines) - 3} more" if len(found.machines) > 3 else ""),
        "seeds": str(len({run.seed for run in study.runs})),
        "batch": share if batch else "",
    }
    origin = {
        "command": "; ".join(found.commands),
        "commit": ", ".join(found.commits),
        "machines": "; ".join(map(_machine, found.machines)),
        "torch": ", ".join(found.torch),
        "Python": ", ".join(found.python),
    }
    known, of = ({name: text for name, text in each.items() if text} for each in (facts, origin))
    return known, of


def _machine(machine: Machine) -> str:
    cores = f"{machine.cores} cores" if machine.cores else ""
    return ", ".join(filter(None, (machine.hostname, machine.cpu, cores, machine.gpu)))


def page(report: Report, chapters: Sequence[Chapter], live: Live | None = None) -> str:
    """Return the page: one study, or several as chapters under a table of contents."""
    # Charts and tables are made here, the template only places them.
    several = f"Scaling report of {len(chapters)} studies" if chapters else "Scaling report"
    return TEMPLATES.get_template("page.html.j2").render(
        title=chapters[0].title if len(chapters) == 1 else several,
        chapters=chapters,
        topologies=[
            (
                each,
                topologies.figure(each.found),
                topologies.results(each.found),
                topologies.times(each.found),
            )
            for each in report.topologies
        ],
        remarks=report.remarks,
        left_out=_left_out(report.left_out),
        live=live,
        style=stylesheet("chart.css") + stylesheet("style.css"),
    )


def _left_out(items: Sequence[LeftOut]) -> Shown:
    lines = [[item.path, item.reason, item.remedy] for item in items]
    return Shown(["folder or row", "why", "what to do"], lines, text=True)


def templates(*packages: str) -> Environment:
    """Return the templates of other packages, then those of this one."""
    loaders = [PackageLoader(package) for package in (*packages, "ddppo.study.page")]
    return Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


TEMPLATES = templates()
