"""The plan of the probes: start while there is time, go round, drop what is clearly slower. Imports no torch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddppo.advice.candidates import Candidate
from ddppo.advice.probe import OutOfTimeError, Probe, Slice
from ddppo.benchmark.comparison import Ratio, middle, paired_ratio
from ddppo.errors import ConfigError, TrainingError

ROUNDS_TO_TELL = 5  # fewer pairs have no interval: `comparison.paired_ratio`
_ENOUGH_ROUNDS = 15
_ROUNDS_TO_DROP, _FAR_BEHIND = 3, 0.8
_SLICE_S = 1.0  # of the slowest in a round
_FEWEST_ITERATIONS = 2


@dataclass(slots=True)
class Entrant:
    """A candidate, its probe, what that did in each round by its number, and why it takes part no more, if so."""

    candidate: Candidate
    probe: Probe | None = None
    rounds: dict[int, Slice] = field(default_factory=dict)
    out: str = ""

    @property
    def fps(self) -> float:
        """Median over rounds."""
        return middle([each.fps for each in self.rounds.values()])

    def parts(self) -> dict[str, float]:
        """Return the median fraction of an iteration that each part takes, over rounds."""
        found = [each.parts for each in self.rounds.values()]
        return {part: middle([each[part] for each in found]) for part in found[0]}


def ratio(one: Entrant, other: Entrant) -> Ratio | None:
    """Return how many times as fast `one` is as `other`, pair by pair of common rounds; None without any.

    low to high: the 90 % interval of the sign test from five rounds on, before that the lowest and the highest.
    """
    common = sorted(one.rounds.keys() & other.rounds.keys())
    if not common:
        return None
    a, b = ([each.rounds[number].fps for number in common] for each in (one, other))
    found = paired_ratio(a, b)
    if len(common) >= ROUNDS_TO_TELL:
        return found
    each_pair = [x / y for x, y in zip(a, b, strict=True)]
    return Ratio(found.estimate, min(each_pair), max(each_pair), len(common))


def is_slower(found: Ratio | None, tolerance: float) -> bool:
    """Return whether something is slower by more than the tolerance, and by more than chance or in every round."""
    return found is not None and found.estimate < 1 - tolerance and found.high < 1


def choose(entrants: Sequence[Entrant], tolerance: float) -> Entrant | None:
    """Return the fastest; of those not slower than it beyond noise the one with fewest workers, then settings."""
    running = [each for each in entrants if each.rounds and not each.out]
    leader = max(running, key=lambda each: each.fps, default=None)
    if leader is None:
        return None
    equal = [each for each in running if not is_slower(ratio(each, leader), tolerance)]
    return min(equal, key=lambda each: (each.candidate.world_size, len(each.candidate.overrides), -each.fps))


class Race:
    """Candidates in one sitting: in each round every one does the same iterations, one after the other.

    Under scaling=strong these are the same work, whatever W is. `start` raises as `Probes.start` does.
    """

    def __init__(
        self, start: Callable[[Candidate, float], Probe], until: float, tolerance: float,
        say: Callable[[str], None], now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.entrants: list[Entrant] = []
        self._start = start
        self._until = until
        self._tolerance = tolerance
        self._say = say
        self._now = now
        self._num_rounds = 0

    @property
    def running(self) -> list[Entrant]:
        return [each for each in self.entrants if each.probe is not None and not each.out]

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
        slowest = max(each.probe.start_up_s + each.probe.iteration_s for each in self.running if each.probe)
        return slowest + _ROUNDS_TO_DROP * self._round_s() * (1 + 1 / len(self.running))

    def run(self, until: float | None = None) -> None:
        """Go round until the time ends, or there is nothing left to find out."""
        until = self._until if until is None else until
        while self.running and not self._is_decided():
            if self._num_rounds and self._now() + self._round_s() > until:
                return
            num_iterations = self._num_iterations()
            done: list[tuple[Entrant, Slice]] = []
            for entrant in self.running:
                try:
                    assert entrant.probe is not None
                    done.append((entrant, entrant.probe.run(num_iterations)))
                except OutOfTimeError:  # a round that is cut short is none
                    return
                except TrainingError as e:
                    entrant.out = f"failed: {e}"
            for entrant, found in done:
                entrant.rounds[self._num_rounds] = found
            self._num_rounds += 1
            self._say(f"round {self._num_rounds}: {', '.join(_told(each) for each in self.running)}")
            self._drop()

    def _iterations_s(self) -> list[float]:
        return [each.probe.iteration_s for each in self.running if each.probe]

    def _num_iterations(self) -> int:
        return max(_FEWEST_ITERATIONS, int(_SLICE_S / max(self._iterations_s())))

    def _round_s(self) -> float:
        return self._num_iterations() * sum(self._iterations_s())

    def _leader(self) -> Entrant:
        return max(self.running, key=lambda each: each.fps)

    def _drop(self) -> None:
        leader = self._leader()
        for entrant in self.running:
            found = ratio(entrant, leader)
            assert found is not None, "all that run did all rounds"
            assert entrant.probe is not None
            # Looked at after every round, so that chance has many tries: asks more than `is_slower`.
            bound = 1 - self._tolerance if found.count >= ROUNDS_TO_TELL else _FAR_BEHIND
            if found.count >= _ROUNDS_TO_DROP and found.high < bound:
                entrant.out = f"slower than {leader.candidate.name}"
                entrant.probe.close()
                self._say(f"{entrant.candidate.name} is out after {found.count} rounds")

    def _is_decided(self) -> bool:
        """Return whether all that are left are the same within the tolerance, or rounds enough did not tell."""
        if self._num_rounds < ROUNDS_TO_TELL:
            return False
        ratios = [ratio(each, self._leader()) for each in self.running]
        same = all(found is not None and found.verdict(self._tolerance) == "same" for found in ratios)
        return same or self._num_rounds >= _ENOUGH_ROUNDS


def _told(entrant: Entrant) -> str:
    *_, last = entrant.rounds.values()
    return f"{entrant.candidate.name} {last.fps:,.0f}"
