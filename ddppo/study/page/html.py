"""What does report.html contain? A chapter for each study, filled into templates/page.html.j2 by Jinja."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from ddppo.plugins import added, imported
from ddppo.study.measure.speedup import Study
from ddppo.study.page import figures, tables, topologies
from ddppo.study.page.chart import Chart, stylesheet
from ddppo.study.page.tables import Shown
from ddppo.study.predict.outlook import Outlook
from ddppo.study.read.record import LeftOut, Machine
from ddppo.study.read.selection import provenance
from ddppo.study.report import Report, StudyReport


@dataclass(frozen=True, slots=True)
class ChapterSection:
    """A section that is folded until the reader opens it."""

    title: str
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    tables: Sequence[Shown] = ()
    excerpts: Sequence[tuple[str, str]] = ()  # heading and text


@dataclass(frozen=True, slots=True)
class Chapter:
    """The part of the page about one study."""

    report: StudyReport
    facts: Mapping[str, str]  # where the numbers come from
    overview: Sequence[Chart]
    table: Shown
    folded: Sequence[ChapterSection]
    brief: bool = False  # without comparisons of several W

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


def chapter(each: StudyReport, *, brief: bool = False) -> Chapter:
    """Return the chapter of a study."""
    overview = figures.overview(each.study, each.accounts, each.ahead)
    return Chapter(each, _facts(each.study), overview, tables.study_table(each.study), _folded(each), brief)


def _folded(each: StudyReport) -> list[ChapterSection]:
    """Return the folded sections that have something to show."""
    study, ahead = each.study, each.ahead
    shares = [tables.loss_table(study, each.accounts)] if each.accounts else []
    curves, same = figures.learning(study)
    sections = [
        ChapterSection("Efficiency and times", figures.times(study, ahead), (), shares),
        _predictions(ahead),
        ChapterSection("Ranks", figures.ranks(study)),
        ChapterSection("Learning and stability", curves, same),
        *_excerpts(study),
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


def _predictions(ahead: Outlook) -> ChapterSection:
    recommendation = ahead.recommendation
    # A table as measured, and one with the changes of what_if.
    found = [tables.predictions_table(ahead.as_measured, recommendation.table if recommendation else ())]
    notes = [ahead.cores_rule, *ahead.quality, *ahead.remarks]
    if recommendation is not None and ahead.as_measured:
        notes.insert(0, f"Times are {recommendation.basis}.")
    if ahead.changed:
        found.append(tables.predictions_table(ahead.changed))
        notes.append(f"The second table is of the same system with {figures.changes(ahead)}.")
    return ChapterSection(
        "Predictions", (), [note for note in notes if note], found if ahead.as_measured else ()
    )


def _facts(study: Study) -> dict[str, str]:
    """Return where the numbers come from: command, time, commit, machines, versions, seeds, batch."""
    # The batch at the largest W: of all workers, or of one under weak scaling.
    found, row = provenance(study.runs), study.rows[-1]
    batch = row.num_envs * row.rollout_steps
    share = f"{batch:,} steps" if study.rule == "strong" else f"{batch // row.world_size:,} steps a worker"
    days = dict.fromkeys((found.first[:10], found.last[:10]))
    facts = {
        "command": "; ".join(found.commands),
        "measured": " to ".join(filter(None, days)),
        "commit": ", ".join(found.commits),
        "machine" if len(found.machines) == 1 else "machines": "; ".join(map(_machine, found.machines)),
        "torch": ", ".join(found.torch),
        "Python": ", ".join(found.python),
        "seeds": str(len({run.seed for run in study.runs})),
        "batch": share if batch else "",
    }
    return {name: text for name, text in facts.items() if text}


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
