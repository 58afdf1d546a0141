"""`CircuitJournal`: what rank 0 keeps of a run of the circuit task."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.domains.circuits.quantum.circuit import measures
from ddppo.domains.circuits.quantum.drawing import as_pixels
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest
from ddppo.domains.circuits.task.board import Start, rules_digest
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.lineage import (
    Found,
    OfStart,
    PublishedCircuits,
    Told,
    check_replay,
    read_all,
    written,
)
from ddppo.domains.circuits.task.settings import (
    ENDS,
    Counts,
    packed,
    packed_rewrites,
    unpacked,
    unpacked_rewrites,
)
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.files import remove_leftovers, stored, write_json, write_text

# -- The best circuit of a run from one original, in files that anyone can check: NAME.json and NAME.qasm ------------


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


FOLDER = "best"
_MOST_USED = 10

METRICS = {
    "best_cost": ("cost", "of the best circuit that was found from one original"),
    "best_gates": ("gates", "of the best circuit"),
    "best_cx": ("gates", "of two qubits in the best circuit"),
    "best_depth": ("gates", "on the longest path of the best circuit"),
    "best_rewrites": ("rewrites", "that lead from the original to the best circuit"),
    "buffer_circuits": ("circuits", "of one original kept by an environment, mean over environments"),
    "buffer_levels": ("levels", "of cost among them, mean over environments"),
    "buffer_bytes": ("bytes", "that they take, sum over environments"),
    "max_steps": ("steps", "the length cap of episodes from one original"),
    "rewrites": ("rewrites", "applied in the iteration"),
    "rewrites_per_s": (
        "rewrites/s",
        "of all environments, over the seconds of the iteration; from the second on",
    ),
    "rewrites_lowered": ("fraction", "of the iteration's rewrites: those that lowered the cost"),
    "rewrites_raised": ("fraction", "of the iteration's rewrites: those that raised the cost"),
    "rules_used": ("rules", "that were applied at least once so far"),
    "most_used_share": ("fraction", f"of all rewrites so far: those by the {_MOST_USED} most used rules"),
    **{
        f"ended_{end}": ("episodes", f"that ended in the iteration because {why}")
        for end, why in zip(
            ENDS,
            (
                "they cost too much",
                "nothing was to be changed",
                "no rule matched",
                "what was chosen does not match",
                "they reached the length cap",
            ),
            strict=True,
        )
    },
}


class CircuitJournal:
    """Notes each iteration's news, and keeps the best circuit from each original in best/NAME.json and NAME.qasm.

    NAME is the benchmark's, or the file's without its folder and ending; a number follows where that is there twice.
    What is summed over iterations counts from this journal's making.
    """

    metrics = METRICS

    def __init__(self, env: EnvConfig, folder: Path) -> None:
        task = CircuitEnv(**env.kwargs)
        self._starts = task.starts
        self._rewriter = task.rewriter
        self._labels = labels([start.name for start in self._starts])
        with stored(folder / FOLDER):
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder / FOLDER)
        self._files = [
            BestFile(folder / FOLDER, label, start, self._rewriter)
            for label, start in zip(self._labels, self._starts, strict=True)
        ]
        self._counts = Counts(self._rewriter.num_rules)
        self._wall_s: float | None = None
        self._drawn = [each.best.found.cost for each in self._files]

    def note(self, news: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        """Take notice of an iteration; return its metrics. Raises TrainingError for a best that is not verified."""
        every = read_all(tuple(news))
        for at, file in enumerate(self._files):
            circuits = [told for each in every for told in each.of_starts[at].circuits]
            least = min(circuits, key=lambda told: told.cost, default=None)  # the first of equals
            if least is not None and least.cost < file.best.found.cost:
                found = self._found(at, least)
                file.improve(found, is_start=least.is_start, env_steps=env_steps, wall_s=wall_s)
            file.settle(at_once=False)
        counts = Counts(self._rewriter.num_rules)
        for each in every:
            if each.counts is not None:
                counts.add(each.counts)
        self._counts.add(counts.state())
        seconds = 0.0 if self._wall_s is None else wall_s - self._wall_s
        self._wall_s = wall_s
        return self._of_starts(every) | self._of_rewrites(counts, seconds)

    def pictures(self) -> dict[str, np.ndarray]:
        """Return pictures of the best circuits that are new since the last call, [H, W, 3] uint8."""
        pictures = {}
        for at, (label, file) in enumerate(zip(self._labels, self._files, strict=True)):
            found = file.best.found
            if found.cost < self._drawn[at]:
                self._drawn[at] = found.cost
                pictures[f"best/{label}"] = as_pixels(found.circuit, title=f"{label}: {compared(found)}")
        return pictures

    def before(self) -> list[bytes]:
        """Return as news the best circuits that the folder knows, for environments that begin anew."""
        bests = [file.best for file in self._files]
        of_starts = []
        for best in bests:
            found = best.found
            told = Told(
                found.cost,
                digest(found.circuit),
                packed(found.circuit),
                packed_rewrites(found.rewrites),
                (),
                best.is_start,
            )
            of_starts.append(OfStart((told,) if found.rewrites else (), 0, (0, 0, 0)))
        return (
            [written(PublishedCircuits(tuple(of_starts), None))]
            if any(best.found.rewrites for best in bests)
            else []
        )

    def summary(self) -> dict[str, Any]:
        """Return the best circuits, all compared, and what episodes and the most used rules came to."""
        for file in self._files:
            file.settle(at_once=True)
        files = dict(zip(self._labels, self._files, strict=True))
        return {
            "said": {
                label: f"{compared(file.best.found)}: {FOLDER}/{label}.qasm"
                if file.best.found.rewrites
                else "no smaller circuit found"
                for label, file in files.items()
            },
            "circuits": {
                label: {
                    "original": {"cost": start.cost, **measures(start.circuit)},
                    "best": numbers(file.best.found),
                    "verified": file.best.verified,
                    "file": f"{FOLDER}/{label}.qasm",
                }
                for label, start, file in zip(self._labels, self._starts, self._files, strict=True)
            },
            "counts": self._counts.totals,
            "most_used_rules": self._most_used(),
        }

    def _found(self, at: int, told: Told) -> Found:
        start = self._starts[at]
        circuit = unpacked(start.circuit.num_qubits, told.packed)
        return Found(start.name, start.circuit, circuit, told.cost, tuple(unpacked_rewrites(told.rewrites)))

    def _of_rewrites(self, counts: Counts, seconds: float) -> dict[str, float]:
        done = counts.totals["rewrites"]
        applied = sorted((rule.applied for rule in self._counts.rules().values()), reverse=True)
        metrics: dict[str, float] = {"rewrites": done, "rules_used": int(np.count_nonzero(applied))}
        if done:
            metrics |= {f"rewrites_{way}": counts.totals[way] / done for way in ("lowered", "raised")}
            metrics["most_used_share"] = sum(applied[:_MOST_USED]) / sum(applied)
            if seconds > 0:
                metrics["rewrites_per_s"] = done / seconds
        return metrics | {f"ended_{end}": counts.totals[end] for end in ENDS}

    def _of_starts(self, every: Sequence[PublishedCircuits]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for at, (label, file) in enumerate(zip(self._labels, self._files, strict=True)):
            best = numbers(file.best.found)
            told = [each.of_starts[at] for each in every]
            metrics |= {f"best_{what}/{label}": best[what] for what in ("cost", "gates", "cx", "depth")}
            metrics[f"best_rewrites/{label}"] = best["num_rewrites"]
            if told:
                circuits, levels, sizes = np.array([of.buffer for of in told]).T
                metrics[f"buffer_circuits/{label}"] = float(circuits.mean())
                metrics[f"buffer_levels/{label}"] = float(levels.mean())
                metrics[f"buffer_bytes/{label}"] = float(sizes.sum())
                metrics[f"max_steps/{label}"] = max(of.cap for of in told)
        return metrics

    def _most_used(self) -> list[dict[str, Any]]:
        rules = sorted(self._counts.rules().items(), key=lambda item: (-item[1].applied, item[0]))
        return [
            {"number": number, "rule": str(self._rewriter.rules[number]), **counts._asdict()}
            for number, counts in rules[:_MOST_USED]
            if counts.applied
        ]


def labels(names: Sequence[str]) -> list[str]:
    """Return what each circuit is called in files and metrics, no two alike."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^\w.^+-]", "_", re.sub(r"\.qasm$", "", Path(name).name))
        number, label = 1, stem
        while label in found:
            number, label = number + 1, f"{stem}_{number + 1}"
        found.append(label)
    return found
