"""`CircuitJournal`: rank 0 reads the messages of all environments, and keeps the best circuit from each original.

`BestFile` verifies and writes one best circuit; `CircuitJournal.note` is called after every iteration.
"""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.domains.circuits.quantum.costs import measures
from ddppo.domains.circuits.quantum.drawing import as_pixels
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest
from ddppo.domains.circuits.task.board import Start, rules_digest
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.domains.circuits.task.lineage import (
    EnvMessage,
    Found,
    SharedCircuit,
    StartMessage,
    check_replay,
    decode_messages,
    encode_message,
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

# -- The best circuit from one original, in two files that anyone can check: NAME.json and NAME.qasm -----------------


# A comparison of unitaries of many qubits takes long. After one of more than _SHORT_S seconds, the next waits for
# _PAUSE times its duration, so that comparing takes at most a tenth of a run.
_SHORT_S = 1.0
_PAUSE = 9
LATER = "by its rewrites, repeated, each of a verified rule; to be compared as a whole later"


@dataclass(frozen=True, slots=True)
class Best:
    """The best circuit so far."""

    found: Found
    verified: str  # how its equality to the original was checked, in words
    is_start: bool  # episodes may start there


class BestFile:
    """The files of one best circuit. Each file is complete at every moment; a later run reads the JSON file.

    `improvements` lists for each best its cost, gates, cx, depth and rewrites, and the environment steps and seconds of
    the run at that moment.
    """

    def __init__(self, folder: Path, label: str, start: Start, rewriter: Rewriter) -> None:
        self._path = folder / f"{label}.json"
        self._start = start
        self._rewriter = rewriter
        self.improvements: list[dict[str, float]] = []
        self._not_before = 0.0  # time.monotonic() of the next comparison
        self.best = Best(
            Found(start.name, start.original.circuit, start.circuit, start.cost, ()),
            "it is the original",
            True,
        )
        if self._path.exists():
            self._read_json()

    def improve(self, found: Found, *, is_start: bool, env_steps: int, wall_s: float) -> None:
        """Check a better circuit and write it: its rewrites are repeated, and its unitary compared with the original's.

        The comparison may be postponed to `settle`. Raises TrainingError if a check fails.
        """
        check_repeats(found._replace(original=self._start.circuit), self._rewriter)
        self.best = Best(found, self._compared(found) if self._is_time() else LATER, is_start)
        when = {"env_steps": env_steps, "wall_s": wall_s}
        self.improvements.append({**numbers(found), **when})
        write_json(self._path, self._as_json())
        self._write_qasm()

    def settle(self, *, at_once: bool) -> None:
        """Make the postponed comparison, if there is one and it is time. Raises as improve."""
        if self.best.verified == LATER and (at_once or self._is_time()):
            try:
                self._set_verified(self._compared(self.best.found))
            except TrainingError as e:
                self._set_verified(f"it is not equal: {e}")
                raise

    def last(self, what: str) -> float:
        """Return env_steps or wall_s of the last improvement; 0 if there is none."""
        return self.improvements[-1][what] if self.improvements else 0.0

    def _set_verified(self, verified: str) -> None:
        self.best = replace(self.best, verified=verified)
        write_json(self._path, self._as_json())

    def _is_time(self) -> bool:
        return time.monotonic() >= self._not_before

    def _compared(self, found: Found) -> str:
        began = time.monotonic()
        how = verified(found)
        ended = time.monotonic()
        if ended - began > _SHORT_S:
            self._not_before = ended + _PAUSE * (ended - began)
        return how

    def _as_json(self) -> dict[str, Any]:
        found = self.best.found
        return {
            "name": found.name,
            **numbers(found),
            "original_cost": self._start.original.cost,
            "original": as_qasm(self._start.original.circuit),
            "start": self._start.how,
            "smaller": as_qasm(found.circuit),
            "verified": self.best.verified,
            "is_start": self.best.is_start,
            "rules": rules_digest(self._rewriter),
            "improvements": self.improvements,
            "rewrites": found.rewrites,
        }

    def _read_json(self) -> None:
        """Continue from the file of an earlier run. Raises RunFolderError for another circuit or other rules."""
        # 1. Parse it.
        try:
            held = json.loads(self._path.read_text())
            original, smaller = (parse(held[key]).circuit.canonical() for key in ("original", "smaller"))
            how, rules = held.get("start", "given"), held["rules"]
            rewrites = tuple((node, rule) for node, rule in held["rewrites"])
            self.improvements = held["improvements"]
            original_of_run = self._start.original.circuit
            found = Found(self._start.name, original_of_run, smaller, float(held["cost"]), rewrites)
            self.best = Best(found, held["verified"], held["is_start"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise RunFolderError(f"{self._path} cannot be read ({e}): move it elsewhere") from e
        # 2. It has to belong to this run's circuit and rules, and its rewrites have to lead to its circuit.
        if (original, how, rules) != (original_of_run, self._start.how, rules_digest(self._rewriter)):
            raise RunFolderError(
                f"{self._path} belongs to another circuit or other rules than this run, or to another start: move it "
                "elsewhere, or choose another folder"
            )
        try:
            check_replay(found._replace(original=self._start.circuit), self._rewriter)
        except ConfigError as e:
            raise RunFolderError(f"{self._path} is damaged: {e}") from e
        self._write_qasm()  # the earlier run may have ended between writing both files

    def _write_qasm(self) -> None:
        write_text(self._path.with_suffix(".qasm"), as_qasm(self.best.found.circuit))


def numbers(found: Found) -> dict[str, float]:
    circuit = found.circuit
    return {"cost": found.cost, **measures(circuit), "num_rewrites": len(found.rewrites)}


def compared(found: Found) -> str:
    """Return gates, cx and depth of the original and of the found circuit, in words."""
    before, after = (measures(circuit) for circuit in (found.original, found.circuit))
    return ", ".join(f"{before[what]} -> {after[what]} {what}" for what in before)


def check_repeats(found: Found, rewriter: Rewriter) -> None:
    """Repeat the rewrites. Raises TrainingError if they do not lead to the found circuit."""
    try:
        check_replay(found, rewriter)
    except ConfigError as e:
        raise TrainingError(f"a best circuit that cannot be repeated: {e}") from e


def verified(found: Found) -> str:
    """Compare a circuit with its original, after its rewrites were repeated; return in words how.

    Raises TrainingError if they differ.
    """
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
_RANDOM_STEPS = 250  # between two looks at the clock
_RANDOM_S = 5.0  # seconds of CPU, at most, that a run's end spends on rewriting at random
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
    """Reads the messages of each iteration, and keeps the best circuit of each original in best/NAME.json and
    NAME.qasm.

    NAME is the benchmark's name, or the name of the QASM file; a number is appended if two are equal. Sums over
    iterations start when the journal is made.
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
        self._keywords = dict(env.kwargs)
        self._began_cpu_s = time.process_time()
        self._patience = int(env.kwargs.get("patience") or 0)
        self._env_steps = 0  # of the run at the last iteration
        self._counted_from = 0  # patience is counted from there, or from the last improvement after it
        self._wall_s: float | None = None  # seconds of the run at the last iteration
        self._drawn = [each.best.found.cost for each in self._files]  # cost of the last picture of each

    def note(self, messages: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        """Read the messages of an iteration; return its metrics. Raises TrainingError if a best fails its checks."""
        every = decode_messages(tuple(messages))
        # 1. The cheapest circuit that was sent, for each original. Ties go to the first environment.
        for at, file in enumerate(self._files):
            circuits = [shared for each in every for shared in each.starts[at].circuits]
            least = min(circuits, key=lambda shared: shared.cost, default=None)
            if least is not None and least.cost < file.best.found.cost:
                found = self._found(at, least)
                file.improve(found, is_start=least.is_start, env_steps=env_steps, wall_s=wall_s)
            file.settle(at_once=False)
        # A run that was resumed after its patience was used up gets it anew.
        if self._wall_s is None and 0 < self._patience < env_steps - self._last_improvement():
            self._counted_from = env_steps
        # 2. Counts of rewrites and ends, over all environments. (Messages of a journal have none.)
        counts = Counts(self._rewriter.num_rules)
        for each in every:
            if each.counts is not None:
                counts.add(each.counts)
        self._counts.add(counts.state())
        seconds = 0.0 if self._wall_s is None else wall_s - self._wall_s
        self._wall_s, self._env_steps = wall_s, env_steps
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
        """Return a message with the best circuits of the folder, for environments that start without a state."""
        # Without counts and caps, which environments have of their own.
        bests = [file.best for file in self._files]
        starts = []
        for best in bests:
            found = best.found
            shared = SharedCircuit(
                found.cost,
                digest(found.circuit),
                packed(found.circuit),
                packed_rewrites(found.rewrites),
                (),
                best.is_start,
            )
            starts.append(StartMessage((shared,) if found.rewrites else (), 0, (0, 0, 0)))
        return (
            [encode_message(EnvMessage(tuple(starts), None))]
            if any(best.found.rewrites for best in bests)
            else []
        )

    def is_finished(self) -> bool:
        """Return whether no circuit has become smaller for `patience` environment steps."""
        last = max(self._last_improvement(), self._counted_from)
        return 0 < self._patience <= self._env_steps - last

    def _last_improvement(self) -> float:
        return max((file.last("env_steps") for file in self._files), default=0)

    def summary(self) -> dict[str, Any]:
        """Return the best circuits, all of them compared, the totals of the run and the most used rules."""
        # Postponed comparisons are made now, at the end of the run.
        for file in self._files:
            file.settle(at_once=True)
        files = dict(zip(self._labels, self._files, strict=True))
        at_random = dict(zip(self._labels, self._at_random(), strict=True))
        ended = (
            {"ended": f"nothing became smaller for {self._patience:,} steps (env.patience)"}
            if self.is_finished()
            else {}
        )
        return {
            "said": ended
            | {
                label: f"{compared(file.best.found)}, cost {file.best.found.cost:g}, "
                f"found after {file.last('env_steps'):,.0f} steps and "
                f"{file.last('wall_s'):.1f} s: {FOLDER}/{label}.qasm; at random, {at_random[label]['cpu_s']:.1f} s of "
                f"CPU: cost {at_random[label]['cost']:g}"
                if file.best.found.rewrites
                else _without_rewrites(start)
                for (label, file), start in zip(files.items(), self._starts, strict=True)
            },
            "circuits": {
                label: {
                    "original": {"cost": start.original.cost, **measures(start.original.circuit)},
                    "best": numbers(file.best.found),
                    "found_at": {what: file.last(what) for what in ("env_steps", "wall_s")},
                    "at_random": at_random[label],
                    "verified": file.best.verified,
                    "file": f"{FOLDER}/{label}.qasm",
                }
                for label, start, file in zip(self._labels, self._starts, self._files, strict=True)
            },
            "counts": self._counts.totals,
            "most_used_rules": self._most_used(),
        }

    def _at_random(self) -> list[dict[str, Any]]:
        """Return the least cost that rewriting at random reaches from each original, and the seconds of CPU it took.

        "improvements" has every lower cost on the way, with the seconds of CPU until then.

        It has as much CPU time as this process used since the run was started, but at most _RANDOM_S, and the buffers
        and episodes of the run.
        """
        from ddppo.domains.circuits.env_walk import BIAS, random_walk

        used = time.process_time() - self._began_cpu_s
        each_s = min(used, _RANDOM_S) / len(self._starts)
        found = []
        for start in self._starts:
            began = time.process_time()
            # A mask, because a search offers only what matches; the graph, because random choices read its pairs.
            episode = {**(self._keywords.get("episode") or {}), "mask": True}
            keywords = self._keywords | {"circuit": start.name, "observe": "graph", "episode": episode}
            walk, messages = random_walk(keywords, BIAS, 0, 0), list[bytes]()
            cost, improvements = start.cost, []
            while (cpu_s := time.process_time() - began) < each_s:
                progress = walk.go(messages, _RANDOM_STEPS, math.inf)
                if progress.cost < cost:
                    improvements.append({"cpu_s": time.process_time() - began, "cost": progress.cost})
                messages, cost = progress.messages, progress.cost
            found.append({"cost": cost, "cpu_s": cpu_s, "improvements": improvements})
        return found

    def _found(self, at: int, shared: SharedCircuit) -> Found:
        start = self._starts[at]
        circuit = unpacked(start.circuit.num_qubits, shared.packed)
        rewrites = tuple(unpacked_rewrites(shared.rewrites))
        return Found(start.name, start.original.circuit, circuit, shared.cost, rewrites)

    def _of_rewrites(self, counts: Counts, seconds: float) -> dict[str, float]:
        # Shares over the iteration, the use of rules since the journal was made.
        done = counts.totals["rewrites"]
        applied = sorted((rule.applied for rule in self._counts.rules().values()), reverse=True)
        metrics: dict[str, float] = {"rewrites": done, "rules_used": int(np.count_nonzero(applied))}
        if done:
            metrics |= {f"rewrites_{way}": counts.totals[way] / done for way in ("lowered", "raised")}
            metrics["most_used_share"] = sum(applied[:_MOST_USED]) / sum(applied)
            if seconds > 0:
                metrics["rewrites_per_s"] = done / seconds
        return metrics | {f"ended_{end}": counts.totals[end] for end in ENDS}

    def _of_starts(self, every: Sequence[EnvMessage]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for at, (label, file) in enumerate(zip(self._labels, self._files, strict=True)):
            best = numbers(file.best.found)
            sent = [each.starts[at] for each in every]
            metrics |= {f"best_{what}/{label}": best[what] for what in ("cost", "gates", "cx", "depth")}
            metrics[f"best_rewrites/{label}"] = best["num_rewrites"]
            if sent:
                circuits, levels, sizes = np.array([start.buffer for start in sent]).T
                metrics[f"buffer_circuits/{label}"] = float(circuits.mean())
                metrics[f"buffer_levels/{label}"] = float(levels.mean())
                metrics[f"buffer_bytes/{label}"] = float(sizes.sum())
                metrics[f"max_steps/{label}"] = max(start.cap for start in sent)
        return metrics

    def _most_used(self) -> list[dict[str, Any]]:
        rules = sorted(self._counts.rules().items(), key=lambda item: (-item[1].applied, item[0]))
        return [
            {"number": number, "rule": str(self._rewriter.rules[number]), **counts._asdict()}
            for number, counts in rules[:_MOST_USED]
            if counts.applied
        ]


def labels(names: Sequence[str]) -> list[str]:
    """Return a label for each circuit, for files and metrics; no two are equal."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^\w.^+-]", "_", re.sub(r"\.qasm$", "", Path(name).name))
        number, label = 1, stem
        while label in found:
            number, label = number + 1, f"{stem}_{number + 1}"
        found.append(label)
    return found


def _without_rewrites(start: Start) -> str:
    """Return in words that rewriting found nothing, and what merging rotations had saved before."""
    if start.before is None:
        return "no smaller circuit found"
    return f"cost {start.original.cost:g} -> {start.cost:g} by merging rotations; rewriting found nothing smaller"
