"""The plan of the probes: start while there is time, go round, drop what is clearly slower. Imports no torch.

On a SLURM cluster probes are jobs: a short sweep over W and seeds, read as any other.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from ddppo.config.rank_rules import batch_shape
from ddppo.errors import ConfigError, TrainingError
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.advise.candidates import Candidate, Question, W
from ddppo.study.advise.probe import QUIET, OutOfTimeError, Probe, Slice, temporary_folder
from ddppo.study.bench.results import Ratio, middle, paired_ratio
from ddppo.study.read.record import PARTS, Run
from ddppo.study.read.run_folders import read_runs

SLOWER = "slower"
ROUNDS_TO_TELL = 5  # fewer pairs have no interval: `comparison.paired_ratio`
_ROUNDS_TO_DROP, _FAR_BEHIND = 3, 0.8
_ENOUGH_ROUNDS = 15
BUSY = 0.15  # of the cores' time, used by others
_SLICE_S, _FEWEST_ITERATIONS = 1.0, 2  # of the slowest in a round
_SEEDS = 3  # a round each
_ITERATIONS = 12  # of which warm-up is left out, as in any run


@dataclass(slots=True)
class Entrant:
    """A candidate, its probe, what that did in each round by its number, and why it takes part no more, if so."""

    candidate: Candidate
    probe: Probe | None = None
    rounds: dict[int, Slice] = field(default_factory=dict)
    out: str = ""

    @property
    def world_size(self) -> int:
        return self.candidate.world_size

    @property
    def fps(self) -> float:
        """Median over rounds."""
        return middle([each.fps for each in self.rounds.values()])

    @property
    def others(self) -> float:
        return middle([each.others for each in self.rounds.values()])

    def parts(self) -> dict[str, float]:
        """Return the median fraction of an iteration that each part takes, over rounds."""
        return {part: middle([each.parts[part] for each in self.rounds.values()]) for part in EXCLUSIVE_PARTS}

    def rollouts(self) -> list[float]:
        """Return the median seconds that each rank's rollout takes, over rounds; [] where nobody knows."""
        by_round = [each.rollouts for each in self.rounds.values()]
        return [middle(list(of_rank)) for of_rank in zip(*by_round, strict=True)]


def ratio(one: Entrant, other: Entrant) -> Ratio | None:
    """Return how many times as fast `one` is as `other`, pair by pair of common rounds; None without any.

    low to high: the 90 % interval of the sign test from five rounds on, before that the lowest and the highest.
    """
    common = one.rounds.keys() & other.rounds.keys()
    if not common:
        return None
    a, b = ([each.rounds[number].fps for number in common] for each in (one, other))
    found, pairs = paired_ratio(a, b), [x / y for x, y in zip(a, b, strict=True)]
    return (
        found if found.count >= ROUNDS_TO_TELL else Ratio(found.estimate, min(pairs), max(pairs), found.count)
    )


def is_slower(found: Ratio | None, tolerance: float) -> bool:
    """Return whether something is slower by more than the tolerance, and by more than chance or in every round."""
    return found is not None and found.estimate < 1 - tolerance and found.high < 1


def choose(entrants: Sequence[Entrant], tolerance: float, cores: float = inf) -> Entrant | None:
    """Return the fastest; of those not slower than it beyond noise the one with fewest workers, then settings.

    More workers than cores count only where others left the cores alone: they may win by the turns that others lose.
    """
    measured = [each for each in entrants if each.rounds and each.out in ("", SLOWER)]
    fastest = max((each for each in measured if not each.out), key=lambda each: each.fps, default=None)
    if fastest is None:
        return None
    if any(each.others > BUSY for each in measured):
        measured = [each for each in measured if each.world_size <= cores] or measured
    leader = max(measured, key=lambda each: found.estimate if (found := ratio(each, fastest)) else 0.0)
    equal = [each for each in measured if not is_slower(ratio(each, leader), tolerance)]
    return min(equal, key=lambda each: (each.world_size, len(each.candidate.overrides), -each.fps))


class Race:
    """Candidates in one sitting: in each round every one does the same iterations, one after the other.

    Under scaling=strong these are the same work at every W. `start` raises as `Probes.start` does.
    """

    def __init__(
        self, start: Callable[[Candidate, float], Probe], until: float, tolerance: float,
        say: Callable[[str], None], now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.entrants: list[Entrant] = []
        self._start, self._until, self._tolerance, self._say, self._now = start, until, tolerance, say, now
        self._num_rounds = 0

    @property
    def running(self) -> list[tuple[Entrant, Probe]]:
        return [(each, each.probe) for each in self.entrants if each.probe is not None and not each.out]

    def enter(self, candidates: Sequence[Candidate]) -> None:
        """Start the candidates for which there is time, with some rounds of all. Raises where none can be."""
        errors: list[Exception] = []
        for candidate in candidates:
            self.entrants.append(entrant := Entrant(candidate))
            if self.running and self._now() + self.seconds_with_one_more() > self._until:
                entrant.out = "there was no time to try it"
                continue
            try:
                entrant.probe = self._start(candidate, self._until)
                self._say(f"{candidate.name} started in {entrant.probe.start_up_s:.1f} s")
            except OutOfTimeError:
                entrant.out = "the time ended before it had done two iterations"
            except (ConfigError, TrainingError) as e:
                errors.append(e)
                entrant.out = f"cannot be: {e}"
        if errors and not self.running:
            raise errors[0]

    def seconds_with_one_more(self) -> float:
        """Return what one more start and a few rounds of all would take, if it is as slow as the slowest."""
        slowest = max(probe.start_up_s + probe.iteration_s for _, probe in self.running)
        return slowest + _ROUNDS_TO_DROP * self._round_s() * (1 + 1 / len(self.running))

    def run(self, until: float | None = None) -> None:
        """Go round until the time ends, or there is nothing left to find out."""
        until = self._until if until is None else until
        while self.running and not self._is_decided():
            if self._num_rounds and self._now() + self._round_s() > until:
                return
            num_iterations, done = self._num_iterations(), []
            for entrant, probe in self.running:
                try:
                    done.append((entrant, probe.run(num_iterations)))
                except OutOfTimeError:  # a round that is cut short is none
                    return
                except TrainingError as e:
                    entrant.out = f"failed: {e}"
            for entrant, found in done:
                entrant.rounds[self._num_rounds] = found
            self._num_rounds += 1
            told = ", ".join(f"{entrant.candidate.name} {found.fps:,.0f}" for entrant, found in done)
            self._say(f"round {self._num_rounds}: {told} steps/s")
            self._drop()

    def _num_iterations(self) -> int:
        return max(_FEWEST_ITERATIONS, int(_SLICE_S / max(probe.iteration_s for _, probe in self.running)))

    def _round_s(self) -> float:
        return self._num_iterations() * sum(probe.iteration_s for _, probe in self.running)

    def _against_the_fastest(self) -> list[tuple[Entrant, Probe, Ratio]]:
        fastest = max((entrant for entrant, _ in self.running), key=lambda each: each.fps, default=None)
        found = [(entrant, probe, ratio(entrant, fastest)) for entrant, probe in self.running if fastest]
        return [(entrant, probe, each) for entrant, probe, each in found if each is not None]

    def _drop(self) -> None:
        for entrant, probe, found in self._against_the_fastest():
            # Looked at after every round, so that chance has many tries: asks more than `is_slower`.
            bound = 1 - self._tolerance if found.count >= ROUNDS_TO_TELL else _FAR_BEHIND
            if found.count >= _ROUNDS_TO_DROP and found.high < bound:
                entrant.out = SLOWER
                probe.close()
                self._say(f"{entrant.candidate.name} is out after {found.count} rounds")

    def _is_decided(self) -> bool:
        """Return whether all that are left are the same within the tolerance, or rounds enough did not tell."""
        if self._num_rounds < ROUNDS_TO_TELL:
            return False
        verdicts = {found.verdict(self._tolerance) for _, _, found in self._against_the_fastest()}
        return verdicts <= {"same"} or self._num_rounds >= _ENOUGH_ROUNDS


def through_slurm(asked: Question, todo: Sequence[Candidate]) -> list[Entrant]:
    """Submit, wait, and return what the jobs did; a round is a seed. Raises ConfigError, TrainingError.

    The folder is one below the current, which nodes must share, and is gone afterwards.
    """
    if others := asked.axes.keys() - {W}:
        raise ConfigError(f"{min(others)}: only {W} may have several values on SLURM")
    if not asked.names(W):
        raise ConfigError(f"hydra/launcher=slurm probes the W that are given: add {W}=1,2,4,8")
    if todo[0].config.scaling.rule == "weak":
        raise ConfigError(
            "scaling=weak learns otherwise at every W, which steps/s do not tell: make a whole sweep"
        )
    with temporary_folder(Path.cwd()) as folder:
        runs = _runs(asked, todo, folder)
    return [_entrant(each, [run for run in runs if run.world_size == each.world_size]) for each in todo]


def _runs(asked: Question, todo: Sequence[Candidate], folder: str) -> list[Run]:
    steps = _ITERATIONS * batch_shape(todo[0].config).batch_size
    mine = [f"{W}={','.join(str(c.world_size) for c in todo)}", f"ppo.total_steps={steps}", f"sweep={folder}"]
    if not asked.names("seed"):
        mine.append(f"seed=range({_SEEDS})")
    if not asked.names("hydra.launcher.one_at_a_time"):
        mine.append("hydra.launcher.one_at_a_time=true")
    command = [sys.executable, "-m", "ddppo.train", "-m", *asked.fixed, *QUIET, *mine]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            process.wait()
        except KeyboardInterrupt:  # which it has met too, and cancels its jobs
            process.wait()
    found = read_runs(Path(folder))
    if not found.runs:
        why = f": {found.left_out[0].reason}" if found.left_out else ""
        raise TrainingError(f"no probe came to its end on SLURM{why}; its own words are above")
    return found.runs


def _entrant(candidate: Candidate, runs: Sequence[Run]) -> Entrant:
    rounds = {}
    for run in runs:
        t_iter = run.times["t_iter"].mean()
        rounds[run.seed] = Slice(run.fps, {part: float(run.times[part].mean() / t_iter) for part in PARTS})
    return Entrant(candidate, rounds=rounds, out="" if rounds else "no job of it came to its end")
