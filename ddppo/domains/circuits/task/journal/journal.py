"""`CircuitJournal`: what rank 0 keeps of a run of the circuit task."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config import EnvConfig
from ddppo.domains.circuits.quantum.costs import measures
from ddppo.domains.circuits.quantum.pixels import as_pixels
from ddppo.domains.circuits.quantum.rewriting import digest
from ddppo.domains.circuits.task.counts import ENDS, Counts
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.found import Found
from ddppo.domains.circuits.task.journal.best import BestFile, compared, numbers
from ddppo.domains.circuits.task.news import News, OfStart, Told, read_all, written
from ddppo.domains.circuits.task.packing import packed, packed_rewrites, unpacked, unpacked_rewrites
from ddppo.files import remove_leftovers, stored

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
        return [written(News(tuple(of_starts), None))] if any(best.found.rewrites for best in bests) else []

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

    def _of_starts(self, every: Sequence[News]) -> dict[str, float]:
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
