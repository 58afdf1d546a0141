"""The best circuit of a run from one original, in files that anyone can check: NAME.json and NAME.qasm."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddppo.domains.circuits.quantum.costs import measures
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm import as_qasm, parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.found import Found, check_replay
from ddppo.domains.circuits.task.starts import Start, rules_digest
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.files import write_json, write_text

_SHORT_S = 1.0  # comparisons up to this are made at once
_PAUSE = 9  # times as long as a longer one, of many qubits, until the next
LATER = "by its rewrites, repeated, each of a verified rule; to be compared as a whole later"


@dataclass(frozen=True, slots=True)
class Best:
    """verified: by what it is known to be equal to the original. is_start: episodes may begin there."""

    found: Found
    verified: str
    is_start: bool


class BestFile:
    """Keeps both files whole at every moment; the JSON is what is read again.

    improvements: of each best, cost, gates, cx, depth and rewrites, and the environment steps and seconds of the run.
    """

    def __init__(self, folder: Path, label: str, start: Start, rewriter: Rewriter) -> None:
        self._path = folder / f"{label}.json"
        self._start = start
        self._rewriter = rewriter
        self.improvements: list[dict[str, float]] = []
        self._not_before = 0.0  # seconds of time.monotonic(), of the next comparison
        self.best = Best(
            Found(start.name, start.circuit, start.circuit, start.cost, ()), "it is the original", True
        )
        if self._path.exists():
            self._read()

    def improve(self, found: Found, *, is_start: bool, env_steps: int, wall_s: float) -> None:
        """Write a circuit that costs less, once its rewrites are repeated and its unitary is the original's.

        The latter may be left to `settle`. Raises TrainingError where it is not.
        """
        check_repeats(found, self._rewriter)
        self.best = Best(found, self._compared(found) if self._is_time() else LATER, is_start)
        when = {"env_steps": env_steps, "wall_s": wall_s}
        self.improvements.append({**numbers(found), **when})
        write_json(self._path, self._said())
        self._write_qasm()

    def settle(self, *, at_once: bool) -> None:
        """Compare the best with the original where that was left for later, if it is time. Raises as improve."""
        if self.best.verified == LATER and (at_once or self._is_time()):
            try:
                self._settled(self._compared(self.best.found))
            except TrainingError as e:
                self._settled(f"it is not equal: {e}")
                raise

    def _settled(self, verified: str) -> None:
        self.best = replace(self.best, verified=verified)
        write_json(self._path, self._said())

    def _is_time(self) -> bool:
        return time.monotonic() >= self._not_before

    def _compared(self, found: Found) -> str:
        began = time.monotonic()
        said = verified(found)
        ended = time.monotonic()
        if ended - began > _SHORT_S:
            self._not_before = ended + _PAUSE * (ended - began)
        return said

    def _said(self) -> dict[str, Any]:
        found = self.best.found
        return {
            "name": found.name,
            **numbers(found),
            "original_cost": self._start.cost,
            "original": as_qasm(self._start.circuit),
            "smaller": as_qasm(found.circuit),
            "verified": self.best.verified,
            "is_start": self.best.is_start,
            "rules": rules_digest(self._rewriter),
            "improvements": self.improvements,
            "rewrites": found.rewrites,
        }

    def _read(self) -> None:
        """Go on from the file of a run before. Raises RunFolderError if it is of another circuit or other rules."""
        try:
            said = json.loads(self._path.read_text())
            original, smaller = (parse(said[key]).circuit.canonical() for key in ("original", "smaller"))
            rules, rewrites = said["rules"], tuple((node, rule) for node, rule in said["rewrites"])
            self.improvements = said["improvements"]
            found = Found(self._start.name, self._start.circuit, smaller, float(said["cost"]), rewrites)
            self.best = Best(found, said["verified"], said["is_start"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{self._path} cannot be read ({e}): move it elsewhere") from e
        if original != self._start.circuit or rules != rules_digest(self._rewriter):
            raise RunFolderError(
                f"{self._path} is of another circuit or other rules than this run's: move it elsewhere, or choose "
                "another folder"
            )
        try:
            check_replay(found, self._rewriter)
        except ConfigError as e:
            raise RunFolderError(f"{self._path} is damaged: {e}") from e
        self._write_qasm()  # of a run that ended between the two

    def _write_qasm(self) -> None:
        write_text(self._path.with_suffix(".qasm"), as_qasm(self.best.found.circuit))


def numbers(found: Found) -> dict[str, float]:
    circuit = found.circuit
    return {"cost": found.cost, **measures(circuit), "num_rewrites": len(found.rewrites)}


def compared(found: Found) -> str:
    """Return the counts of the original and of what was found, in words."""
    before, after = (measures(circuit) for circuit in (found.original, found.circuit))
    return ", ".join(f"{before[what]} -> {after[what]} {what}" for what in before)


def check_repeats(found: Found, rewriter: Rewriter) -> None:
    """Repeat the rewrites. Raises TrainingError where they lead elsewhere."""
    try:
        check_replay(found, rewriter)
    except ConfigError as e:
        raise TrainingError(f"a best circuit that cannot be repeated: {e}") from e


def verified(found: Found) -> str:
    """Return how it is known that a circuit that repeats is equal to its original. Raises TrainingError if not."""
    try:
        verdict = verify(found.original, found.circuit)
    except ConfigError as e:  # more qubits than memory holds
        return f"by its rewrites, each of a verified rule; not compared as a whole: {e}"
    if not verdict.is_equal:
        raise TrainingError(
            f"{found.name}: {len(found.rewrites)} rewrites led to a circuit that is {verdict}: a rule or the rewriting "
            "is wrong"
        )
    return f"by its rewrites, repeated, and {verdict}"
