"""Reads the run folder of a search over orders: search.json, training_log.csv and gp_sampling_log.csv.

Every value is checked here. search.json is required; a missing log is listed in `Search.missing`. The last line of a
log may be incomplete, because the search may still be running.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ddppo.domains.cage2.search.orders import KINDS, ORDERS
from ddppo.errors import RunFolderError
from ddppo.study.read.fields import FieldError, Fields, as_list, as_number, one_line, parsed

FILE, TRAINING_LOG, SAMPLING_LOG = "search.json", "training_log.csv", "gp_sampling_log.csv"
T = TypeVar("T")
ENDS = ("gate", "plateau", "limit", "budget")


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a search."""

    number: int
    order_id: int
    inherited_from: int | None
    episodes: int  # of all environments
    total: int  # episodes of the search at its end
    passed: bool
    ended_by: str  # one of ENDS; "" while it is running
    score: float  # NaN while it is running, and if it was cut off
    mean_return: float  # of the game alone, in the last iterations; NaN while it is running
    noise_variance: float  # of mean_return, from the spread of its episodes alone; 0 if unknown
    compliance: float
    repairs: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """One of the best orders by UCB when the order of a trial was chosen."""

    trial: int
    rank: int  # 1 is the best
    order_id: int
    ucb: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Episodes:
    """Training episodes of all environments in the order in which they ended, arrays `[n]`."""

    trial: np.ndarray
    reward: np.ndarray  # return of the environment alone
    compliance: np.ndarray


@dataclass(frozen=True, slots=True)
class Search:
    """The content of the run folder of a search."""

    path: Path
    beta: float
    inherit: str
    budget_episodes: int
    gate: float  # compliance that a trial must reach, NaN if unknown
    status: str  # of the run; "" while it is running
    facts: Mapping[str, str]  # task, seed, command, commit, ... for the head of the report
    trials: tuple[TrialRecord, ...]
    mean: np.ndarray  # posterior mean [120], empty before a trial has ended
    deviation: np.ndarray  # posterior deviation, likewise
    noise: float  # standard deviation of the scores of one order under repeated trials; NaN if unknown
    sampled: tuple[Sampled, ...]
    episodes: Episodes
    missing: tuple[str, ...]  # names of logs that do not exist

    @property
    def ended(self) -> list[TrialRecord]:
        """The trials that have a score."""
        return [trial for trial in self.trials if math.isfinite(trial.score)]

    @property
    def tried(self) -> list[int]:
        """The orders that have a score, each once, by their first trials."""
        return list(dict.fromkeys(trial.order_id for trial in self.ended))


def is_search(folder: Path) -> bool:
    """Return whether a folder is the run folder of a search."""
    return any((folder / name).is_file() for name in (FILE, TRAINING_LOG, SAMPLING_LOG))


def read_search(folder: Path) -> Search:
    """Read the run folder of a search. Raises RunFolderError if search.json is missing or a file is damaged."""
    if not (folder / FILE).exists():
        raise RunFolderError(f"{folder} has no {FILE} yet: make the report when the first trial has begun")
    content = _parsed(folder / FILE)
    try:
        if as_list("names", content.values.get("names")) != list(KINDS):
            raise FieldError(f"names are not {', '.join(KINDS)}")
        trials = tuple(
            _trial(Fields({"trials": each}).section("trials")) for each in _listed(content, "trials")
        )
        _check_lineage(trials)
        mean, deviation = _posterior(content.section("posterior", default={}))
        noise = content.section("posterior", default={}).number("noise_deviation", low=0, default=math.nan)
        beta, inherit = content.number("beta", low=0), content.text("inherit")
        budget = content.whole("budget_episodes")
    except FieldError as e:
        raise RunFolderError(f"{folder / FILE} is not as a search writes it: {e}") from e
    # A run of this search wrote config.yaml and, at its end, summary.json.
    gate, config_facts = _config(folder / "config.yaml")
    status, run_facts = _summary(folder / "summary.json")
    return Search(
        path=folder,
        beta=beta,
        inherit=inherit,
        budget_episodes=budget,
        gate=gate,
        status=status,
        facts=run_facts | config_facts,
        trials=trials,
        mean=mean,
        deviation=deviation,
        noise=noise,
        sampled=tuple(_rows(folder / SAMPLING_LOG, [f.name for f in fields(Sampled)], _sampled)),
        episodes=_episodes(folder / TRAINING_LOG),
        missing=tuple(name for name in (TRAINING_LOG, SAMPLING_LOG) if not (folder / name).exists()),
    )


# -- search.json, config.yaml and summary.json -----------------------------------------------------------------------


def _parsed(path: Path) -> Fields:
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise RunFolderError(f"{path} cannot be read: {one_line(reason)}") from e


def _listed(section: Fields, name: str) -> list[Any]:
    return as_list(name, section.values.get(name))


def _trial(entry: Fields) -> TrialRecord:
    parent = entry.whole("inherited_from", low=-1, default=-1)
    return TrialRecord(
        number=entry.whole("trial", low=0),
        order_id=entry.whole("order_id", high=len(ORDERS) - 1),
        inherited_from=None if parent < 0 else parent,
        episodes=entry.whole("episodes"),
        total=entry.whole("episodes_total"),
        passed=entry.flag("passed", default=False),
        ended_by=entry.text("ended_by", choices=ENDS, default=""),
        mean_return=entry.number("mean_return", default=math.nan),
        score=entry.number("score", default=math.nan),
        noise_variance=entry.number("noise_variance", low=0, default=0.0),
        compliance=entry.number("compliance", low=0, high=1, default=math.nan),
        repairs=entry.number("repairs", low=0, default=math.nan),
    )


def _check_lineage(trials: tuple[TrialRecord, ...]) -> None:
    """Raise FieldError unless trials are numbered upwards and inherit from earlier ones."""
    seen: set[int] = set()
    for trial in trials:
        # The report draws lines from each trial to the one it inherits from.
        if seen and trial.number <= max(seen):
            raise FieldError(f"trial {trial.number} stands after trial {max(seen)}")
        if trial.inherited_from is not None and trial.inherited_from not in seen:
            raise FieldError(f"trial {trial.number} inherits from {trial.inherited_from}, no earlier trial")
        seen.add(trial.number)


def _posterior(section: Fields) -> tuple[np.ndarray, np.ndarray]:
    if not section.values:
        return np.zeros(0), np.zeros(0)
    mean = [as_number("posterior.mean", each) for each in _listed(section, "mean")]
    deviation = [as_number("posterior.deviation", each, low=0) for each in _listed(section, "deviation")]
    if (len(mean), len(deviation)) != (len(ORDERS), len(ORDERS)):
        raise FieldError(
            f"posterior has {len(mean)} means and {len(deviation)} deviations of {len(ORDERS)} orders"
        )
    return np.array(mean), np.array(deviation)


def _config(path: Path) -> tuple[float, dict[str, str]]:
    """Return the gate, NaN if unknown, and facts about the task."""
    if not path.exists():
        return math.nan, {}
    try:
        config = Fields(OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]
        env, search = config.section("env", default={}), config.section("search", default={})
        red = env.section("kwargs", default={}).text("red", default="")
        seed = config.whole("seed", low=-(2**63), high=2**63, default=0)
        facts = {"task": env.text("id", default=""), "red agent": red, "seed": str(seed)}
        return search.number("gate_compliance", low=0, high=1, default=math.nan), facts
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as e:
        raise RunFolderError(f"{path} cannot be read: {one_line(e)}") from e


def _summary(path: Path) -> tuple[str, dict[str, str]]:
    """Return the status of the run and facts about its origin; empty while it is running."""
    if not path.exists():
        return "", {}
    content = _parsed(path)
    try:
        facts = {
            # The command and the commit name the code that ran, the date when.
            "command": one_line(content.values.get("command") or "", 2000),
            "measured": content.text("started_at", default="")[:10],
            "commit": content.text("git_commit", default="")[:12],
        }
        return content.text("status"), facts
    except FieldError as e:
        raise RunFolderError(f"{path} is not as a run writes it: {e}") from e


# -- logs ------------------------------------------------------------------------------------------------------------


def _rows(path: Path, columns: Sequence[str], of_row: Callable[[Fields], T]) -> list[T]:
    """Return `of_row` of each complete line of a CSV file; [] if there is no file."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise RunFolderError(f"{path} cannot be read: {one_line(e)}") from e
    # A line without its newline is still being written: leave it out.
    head, *lines = csv.reader(text[: text.rfind("\n") + 1].splitlines() or [""])
    places = [(name, head.index(name)) for name in columns if name in head]
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            found.append(of_row(Fields({name: _cell(line[i]) for name, i in places if i < len(line)})))
        except FieldError as e:
            raise RunFolderError(f"{path}, line {number}, is not as a search writes it: {e}") from e
    return found


def _cell(text: str) -> float | str | None:
    """Return the cell as a number if it is one, as None if it is empty, else as text."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _sampled(row: Fields) -> Sampled:
    return Sampled(
        trial=row.whole("trial"),
        rank=row.whole("rank", low=1),
        order_id=row.whole("order_id", high=len(ORDERS) - 1),
        ucb=row.number("ucb"),
        mean=row.number("mean"),
        deviation=row.number("deviation", low=0),
    )


def _episodes(path: Path) -> Episodes:
    def training(row: Fields) -> tuple[int, float, float] | None:
        # Episodes of evaluation are no part of training.
        if row.values.get("evaluation") == "evaluate":
            return None
        compliance = row.number("compliance", low=0, high=1)
        return row.whole("trial"), row.number("reward_environment"), compliance

    columns = ("trial", "reward_environment", "compliance", "evaluation")
    found = [each for each in _rows(path, columns, training) if each is not None]
    trial, reward, compliance = zip(*found, strict=True) if found else ((), (), ())
    return Episodes(np.array(trial, int), np.array(reward, float), np.array(compliance, float))
