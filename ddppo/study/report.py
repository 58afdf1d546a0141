"""What does a report say about a sweep folder, or a table of other runs? Reads the runs and computes everything.

`read` finds the studies, `compute` makes the report; it writes nothing (study/page/files.py does).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, RunFolderError
from ddppo.plugins import added, imported
from ddppo.study.explain import accounting, criteria, topologies
from ddppo.study.explain.accounting import Account
from ddppo.study.explain.criteria import Criterion
from ddppo.study.explain.sentences import Explained, covered, explained, outside_training
from ddppo.study.measure.belief import Doubt, doubts
from ddppo.study.measure.growth import not_faster, perhaps_slower
from ddppo.study.measure.pace import steady
from ddppo.study.measure.speedup import Study
from ddppo.study.measure.speedup import study as compute_study
from ddppo.study.measure.topologies import SideBySide, side_by_side
from ddppo.study.predict import outlook
from ddppo.study.predict.outlook import Outlook
from ddppo.study.read.foreign import ForeignTable, read_table
from ddppo.study.read.record import LeftOut, Reading, Run
from ddppo.study.read.run_folders import Known, read_runs
from ddppo.study.read.selection import FoundStudies, differing, named, studies, with_target

_MAX_REASONS = 20  # in the error that no run is left


@dataclass(slots=True)
class ReportOptions:
    path: str = setting(MISSING, "a sweep folder, or a .csv or .jsonl file with a row per run")
    others: list[str] = setting(
        meaning="further sweep folders, reported together with the first", factory=list
    )
    out: str | None = setting(
        None, "folder for the report; null is <sweep>/report, or <table>_report for a file"
    )
    env: str | None = setting(None, "report only this task, by its id; for a table without tasks: its name")
    rule: str | None = setting(
        None,
        "report only strong or only weak scaling; for a table without such a column: its rule",
        choices=("strong", "weak"),
    )
    target_return: float | None = setting(None, "return for time to target; null is the runs' own")
    return_tolerance: float = setting(0.05, "allowed loss R_1 - R_W, as a part of |R_1|", low=0)
    return_tolerance_abs: float | None = setting(
        None, "allowed loss R_1 - R_W, instead of return_tolerance", low=0
    )
    watch: bool = setting(False, "update the page until the sweep has ended, or Ctrl-C")
    columns: dict[str, str] = setting(
        meaning="for a table: our column names to its own, {world_size: W, fps: FPS}", factory=dict
    )
    what_if: dict[str, Any] = setting(
        meaning="changes to predict for, {latency_s: 2e-5, num_envs: 256}; see ddppo.study.predict.model.WhatIf",
        factory=dict,
    )
    predict_to: int | None = setting(None, "largest W to predict; null is twice the largest measured", low=1)
    cores_per_worker: float | None = setting(
        None,
        "cores of a worker at W without a run; null is as measured, and the report says how",
        low=1e-3,
    )
    efficiency_floor: float = setting(0.7, "least efficiency of a recommended W", low=0, high=1)
    price_per_worker_hour: float | None = setting(
        None, "price of a worker for an hour, in any currency; null: cost is the workers' time", low=0
    )


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The report of one study."""

    study: Study
    accounts: list[Account]  # causes of lost time, for each W above the smallest
    criteria: list[Criterion]  # the verdict
    why: list[Explained]  # sentences
    ahead: Outlook  # predictions and the recommended W
    remarks: list[str]
    recorded: list[Run]  # the runs with every iteration after warm-up, stalls included
    # Reasons not to believe the numbers; if there are any, no cause, no remedy and no W is named.
    doubts: list[Doubt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Topologies:
    """The comparison of the topologies of one task and rule."""

    name: str  # of task and rule
    found: SideBySide
    sentences: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report, not yet written."""

    studies: list[StudyReport]  # at least one
    left_out: list[LeftOut]
    remarks: list[str]
    options: ReportOptions
    topologies: list[Topologies] = field(default_factory=list)

    def is_compared_only(self, study: Study) -> bool:
        """Whether a study has a single W, so that it appears in the comparison of topologies only."""
        sides = [side for each in self.topologies for side in each.found.sides]
        return len(study.rows) == 1 and any(side.study is study for side in sides)


def report_of_plugin(path: Path) -> Callable[[ReportOptions, int | None], str] | None:
    """Return the function that reports on a plugin's run folder, recognised by a file in it; None for other paths."""
    found = [name for file, name in added("reports").items() if (path / file).is_file()]
    return imported(found[0]) if found else None


def read(
    options: ReportOptions, progress: Callable[[str], None] = lambda path: None, known: Known | None = None
) -> FoundStudies:
    """Return the studies in the folders, or in the table, that `path` and `others` name.

    Raises RunFolderError if no run can be reported, ConfigError for options that do not go together.
    """
    path = Path(options.path)
    # The path is a sweep folder, a table, or a mistake that has a better suggestion.
    if path.is_dir():
        if options.columns:
            raise RunFolderError(f"columns={options.columns} has no effect on a sweep folder: leave it out")
        reading = _read_folders([path, *map(Path, options.others)], progress, known)
    elif options.others and path.exists():
        raise RunFolderError(f"others={options.others} has no effect on the table {path}: give sweep folders")
    elif path.is_file():
        if path.name == "summary.json":
            raise RunFolderError(f"{path} is a file of a run: give the sweep folder, {path.parent.parent}")
        if path.suffix == ".json" and path.name in added("reports"):
            raise RunFolderError(f"{path} is a file of a run: give its run folder, {path.parent}")
        reading = read_table(
            ForeignTable(path, options.columns, options.env or path.stem, options.rule or "strong")
        )
    else:
        raise RunFolderError(f"{path} does not exist: give a sweep folder or a .csv or .jsonl file")
    # Sort the runs into studies.
    found = studies(reading, env=options.env, rule=options.rule)
    # A target return belongs to one task.
    tasks = sorted({each.runs[0].env_id for each in found.studies})
    if options.target_return is not None and len(tasks) > 1:
        raise ConfigError(
            f"target_return={options.target_return:g} cannot hold for {len(tasks)} tasks at once: add env= one of "
            f"{', '.join(tasks)}"
        )
    # Nothing is left: say why, run by run.
    if not found.studies:
        reasons = "".join(f"\n  {item}" for item in found.left_out[:_MAX_REASONS])
        if len(found.left_out) > _MAX_REASONS:
            reasons += f"\n  and {len(found.left_out) - _MAX_REASONS} more"
        hint = reasons or " no summary.json below it: give the folder of a sweep (hydra.sweep.dir)"
        raise RunFolderError(f"{path} has no run that can be reported:{hint}")
    return found


def _read_folders(folders: list[Path], progress: Callable[[str], None], known: Known | None) -> Reading:
    """Return the runs below all folders; a run below several of them counts once."""
    runs: dict[Path, Run] = {}
    left_out: dict[Path, LeftOut] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"{folder} is no sweep folder: give folders of sweeps, or one table")
        reading = read_runs(folder, progress, known)
        # Resolved paths, so that a run below two of the folders counts once.
        runs |= {Path(run.path).resolve(): run for run in reading.runs}
        left_out |= {Path(item.path).resolve(): item for item in reading.left_out}
    return Reading(list(runs.values()), list(left_out.values()))


def compute(options: ReportOptions, found: FoundStudies) -> Report:
    """Compute the report. A study that cannot be reported is left out; raises ConfigError if none can."""
    done: list[StudyReport] = []
    left_out, failures = list(found.left_out), []
    for reading in found.studies:
        left_out += reading.left_out
        try:
            done.append(_study_report(options, reading))
        except ConfigError as e:
            failures.append(e)
            left_out.append(LeftOut(named(reading.runs), "cannot be reported", str(e)))
    if not done:
        raise failures[0]
    return Report(done, left_out, found.remarks, options, _side_by_side(done))


def _side_by_side(done: list[StudyReport]) -> list[Topologies]:
    """Compare the topologies of each task and rule that has several of them, ddp first."""
    groups: dict[str, list[StudyReport]] = {}
    # ddp comes first, as the topology to compare with.
    for each in sorted(done, key=lambda each: each.study.topology != "ddp"):
        groups.setdefault(f"{each.study.env_id}, {each.study.rule} scaling", []).append(each)
    compared = []
    for name, group in groups.items():
        if found := side_by_side([each.study for each in group]):
            sentences = topologies.compared(found, [each.ahead for each in group])
            # A difference in other settings may be the cause: name it.
            first, *others = (each.study.runs[0] for each in group)
            apart = [f"{run.topology} has {text}" for run in others if (text := differing(run, first))]
            sentences += [f"They differ in more than the topology: {'; '.join(apart)}."] if apart else []
            compared.append(Topologies(name, found, sentences))
    return compared


def _study_report(options: ReportOptions, reading: Reading) -> StudyReport:
    """Return the report of one study: measure, doubt, judge, predict, explain."""
    recorded, remarks = with_target(reading.runs, options.target_return)
    runs, left_out = steady(recorded)
    study = compute_study(runs)
    # Can the numbers be believed? If not, no cause is named.
    doubted = doubts(study)
    accounts = [] if doubted else accounting.accounts(study)
    # Judge by two criteria.
    verdict = [
        criteria.speedup_increases(study),
        criteria.returns_agree(
            study, relative=options.return_tolerance, absolute=options.return_tolerance_abs
        ),
    ]
    if doubted:
        verdict = [criteria.doubted(verdict[0]), verdict[1]]
    # Fit a model and predict, unless the numbers cannot be believed.
    ahead = outlook.outlook(
        study,
        what_if=options.what_if,
        predict_to=options.predict_to,
        cores_per_worker=options.cores_per_worker,
        efficiency_floor=options.efficiency_floor,
        price_per_worker_hour=options.price_per_worker_hour,
        refused=not_faster(study)
        | criteria.worse_returns(
            study, relative=options.return_tolerance, absolute=options.return_tolerance_abs
        ),
        unsure=perhaps_slower(study),
        doubted=bool(doubted),
    )
    # Explain the largest W in sentences: its causes are the limits of the smaller ones too.
    largest = ([a.world_size for a in accounts] or study.world_sizes)[-1]
    why = [] if doubted else explained(study, accounts, [largest])
    all_remarks = [*reading.remarks, *remarks, *left_out, *_remarks(study)]
    return StudyReport(study, accounts, verdict, why, ahead, all_remarks, recorded, doubted)


def _remarks(study: Study) -> list[str]:
    """Return remarks on a missing W=1, crowded cores and unknown machines."""
    remarks = []
    first = study.baseline
    if first != 1 and len(study.rows) > 1:
        remarks.append(
            f"There is no run with W=1, so S and E are relative to W={first}, the smallest there is: S(W) = FPS(W) / "
            f"FPS({first}), E(W) = S(W) * {first} / W."
            + (" Add dist.world_size=1 to the sweep for absolute ones." if study.topology == "ddp" else "")
        )
    over = [f"W={row.world_size} ({row.cores} cores)" for row in study.rows if row.oversubscription > 1]
    if over:
        remarks.append(f"Oversubscribed, more compute threads than cores: {', '.join(over)}.")
    if guessed := {
        run.world_size for run in study.runs if run.origin.num_nodes > 1 and not run.origin.num_hosts
    }:
        remarks.append(
            f"W={', '.join(map(str, sorted(guessed)))} ran on several nodes, which count as one machine each: their "
            "cores are added up. If nodes share a machine, this hides oversubscription."
        )
    return [*remarks, *outside_training(study), *covered(study)]
