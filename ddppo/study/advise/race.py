"""Which candidate is fastest? Probes are started while there is time, run in rounds, and dropped once clearly slower.

On a SLURM cluster the probes are jobs: a short sweep over W and seeds, read like any other sweep. Imports no torch.
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
ROUNDS_TO_TELL = 5  # fewer pairs have no interval (bench/results.py, paired_ratio)
_ROUNDS_TO_DROP, _FAR_BEHIND = 3, 0.8  # after so many rounds, a candidate below this ratio is dropped
_ENOUGH_ROUNDS = 15  # more rounds are not worth their time
BUSY = 0.15  # fraction of the cores' time used by other programs that matters
_SLICE_S, _FEWEST_ITERATIONS = 1.0, 2  # of the slowest probe in a round
_SEEDS = 3  # on SLURM: one round for each
_ITERATIONS = 12  # on SLURM; warm-up is left out as in any run


@dataclass(slots=True)
class Entrant:
    """A candidate in the race."""

    candidate: Candidate
    probe: Probe | None = None
    rounds: dict[int, Slice] = field(default_factory=dict)  # by number of the round
    out: str = ""  # the reason for which it is out of the race; "" while it takes part

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
        """Return the median seconds of each rank's rollout, over rounds; [] if unknown."""
        by_round = [each.rollouts for each in self.rounds.values()]
        return [middle(list(seconds)) for seconds in zip(*by_round, strict=True)]


def ratio(one: Entrant, other: Entrant) -> Ratio | None:
    """Return the speed of `one` / the speed of `other`, by pairs of common rounds; None if there are none.

    From five rounds on it has the 90 % interval of the sign test; before, its bounds are the lowest and highest ratio.
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
    """Return whether the ratio is below 1 by more than the tolerance, and by more than chance (or in every round)."""
    return found is not None and found.estimate < 1 - tolerance and found.high < 1


def choose(entrants: Sequence[Entrant], tolerance: float, cores: float = inf) -> Entrant | None:
    """Return the fastest candidate or, among those that are equal to it up to noise, the one with the fewest workers.

    On a busy machine candidates with more workers than cores do not count: they take turns away from other programs.
    """
    # Slower ones count too: they may be equal up to the tolerance, with fewer workers.
    measured = [each for each in entrants if each.rounds and each.out in ("", SLOWER)]
    fastest = max((each for each in measured if not each.out), key=lambda each: each.fps, default=None)
    if fastest is None:
        return None
    if any(each.others > BUSY for each in measured):
        measured = [each for each in measured if each.world_size <= cores] or measured
    # By ratio in common rounds, because absolute speeds change from round to round.
    leader = max(measured, key=lambda each: found.estimate if (found := ratio(each, fastest)) else 0.0)
    equal = [each for each in measured if not is_slower(ratio(each, leader), tolerance)]
    return min(equal, key=lambda each: (each.world_size, len(each.candidate.overrides), -each.fps))


class Race:
    """Rounds over candidates: in each round, every one does the same number of iterations, one after the other.

    Under scaling=strong that is the same work at every W. `start` raises the exceptions of `Probes.start`.
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
        """Start candidates as long as there is time for a few rounds over all. Raises an error if none can start."""
        errors: list[Exception] = []
        for candidate in candidates:
            # Start it only if a few rounds over all are still possible then.
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
        """Return the seconds of one more start and a few rounds over all, if it is as slow as the slowest so far."""
        slowest = max(probe.start_up_s + probe.iteration_s for _, probe in self.running)
        return slowest + _ROUNDS_TO_DROP * self._round_s() * (1 + 1 / len(self.running))

    def run(self, until: float | None = None) -> None:
        """Run rounds until the time is over or the race is decided."""
        until = self._until if until is None else until
        while self.running and not self._is_decided():
            if self._num_rounds and self._now() + self._round_s() > until:
                return
            # One round. Its numbers count only if all probes finish it, so that pairs are complete.
            num_iterations, done = self._num_iterations(), []
            for entrant, probe in self.running:
                try:
                    done.append((entrant, probe.run(num_iterations)))
                except OutOfTimeError:
                    return
                except TrainingError as e:
                    entrant.out = f"failed: {e}"
            for entrant, found in done:
                entrant.rounds[self._num_rounds] = found
            self._num_rounds += 1
            speeds = ", ".join(f"{entrant.candidate.name} {found.fps:,.0f}" for entrant, found in done)
            self._say(f"round {self._num_rounds}: {speeds} steps/s")
            self._drop()

    def _num_iterations(self) -> int:
        return max(_FEWEST_ITERATIONS, int(_SLICE_S / max(probe.iteration_s for _, probe in self.running)))

    def _round_s(self) -> float:
        return self._num_iterations() * sum(probe.iteration_s for _, probe in self.running)

    def _against_the_fastest(self) -> list[tuple[Entrant, Probe, Ratio]]:
        # All that are left, relative to the fastest of them.
        fastest = max((entrant for entrant, _ in self.running), key=lambda each: each.fps, default=None)
        found = [(entrant, probe, ratio(entrant, fastest)) for entrant, probe in self.running if fastest]
        return [(entrant, probe, each) for entrant, probe, each in found if each is not None]

    def _drop(self) -> None:
        """Take clearly slower candidates out of the race."""
        for entrant, probe, found in self._against_the_fastest():
            # This test runs after every round, so chance has many tries: it asks for more than `is_slower`.
            bound = 1 - self._tolerance if found.count >= ROUNDS_TO_TELL else _FAR_BEHIND
            if found.count >= _ROUNDS_TO_DROP and found.high < bound:
                entrant.out = SLOWER
                probe.close()
                self._say(f"{entrant.candidate.name} is out after {found.count} rounds")

    def _is_decided(self) -> bool:
        """Return whether all that are left are equal within the tolerance, or enough rounds did not decide."""
        if self._num_rounds < ROUNDS_TO_TELL:
            return False
        # Decided: all equal, or enough rounds.
        verdicts = {found.verdict(self._tolerance) for _, _, found in self._against_the_fastest()}
        return verdicts <= {"same"} or self._num_rounds >= _ENOUGH_ROUNDS


def through_slurm(asked: Question, todo: Sequence[Candidate]) -> list[Entrant]:
    """Run the candidates as jobs of a short sweep; each seed counts as a round. Raises ConfigError, TrainingError.

    The sweep's folder is a temporary one in the current folder, which the nodes must share.
    """
    if others := asked.axes.keys() - {W}:
        raise ConfigError(f"{min(others)}: only {W} may have several values on SLURM")
    if not asked.names(W):
        raise ConfigError(f"hydra/launcher=slurm probes the W that are given: add {W}=1,2,4,8")
    if todo[0].config.scaling.rule == "weak":
        raise ConfigError(
            "scaling=weak learns differently at every W, which steps/s do not show: run a whole sweep"
        )
    with temporary_folder(Path.cwd()) as folder:
        runs = _runs(asked, todo, folder)
    return [_entrant(each, [run for run in runs if run.world_size == each.world_size]) for each in todo]


def _runs(asked: Question, todo: Sequence[Candidate], folder: str) -> list[Run]:
    """Run the sweep and return its runs."""
    steps = _ITERATIONS * batch_shape(todo[0].config).batch_size
    added = [
        f"{W}={','.join(str(c.world_size) for c in todo)}",
        f"{todo[0].config.training.section}.total_steps={steps}",
        f"sweep={folder}",
    ]
    if not asked.names("seed"):
        added.append(f"seed=range({_SEEDS})")
    if not asked.names("hydra.launcher.one_at_a_time"):
        added.append("hydra.launcher.one_at_a_time=true")
    command = [sys.executable, "-m", "ddppo.train", "-m", *asked.fixed, *QUIET, *added]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            process.wait()
        except KeyboardInterrupt:  # the sweep got it too, and cancels its jobs
            process.wait()
    found = read_runs(Path(folder))
    if not found.runs:
        why = f": {found.left_out[0].reason}" if found.left_out else ""
        raise TrainingError(f"no probe completed on SLURM{why}; its own messages are above")
    return found.runs


def _entrant(candidate: Candidate, runs: Sequence[Run]) -> Entrant:
    rounds = {}
    for run in runs:
        # Parts as fractions of an iteration, as in a local round.
        t_iter = run.times["t_iter"].mean()
        rounds[run.seed] = Slice(run.fps, {part: float(run.times[part].mean() / t_iter) for part in PARTS})
    return Entrant(candidate, rounds=rounds, out="" if rounds else "none of its jobs completed")
