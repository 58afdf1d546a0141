"""The search behind `ddppo-circuit optimise`: walks by rewrites in several processes.

Walks at random and those that learn are C++ (walk.py). Read here in this order: `Walk`, the same for any cost and for
policies of runs, runs in one process; `Workers` are the processes; `search` lets them walk in rounds until
time or steps are used up; `ByPolicy` chooses rewrites by the policy of a run; `Rewrites` is the file that records how
a circuit was found.
"""

import dataclasses
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import Cost, measures
from ddppo.domains.circuits.quantum.qasm_reader import parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter, merged
from ddppo.domains.circuits.task.board import STARTS, growth_of, rewriter, rules_digest
from ddppo.domains.circuits.task.env import CircuitEnv, Obs
from ddppo.domains.circuits.task.lineage import Found, replayed
from ddppo.domains.circuits.walk import FastWalk, LearningRule, WalkProgress, rewrites_of, why_not
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.processes.signals import StopRequest, die_with_parent, stop_signals_kill
from ddppo.records import checkpoint
from ddppo.seeding import derived_seed, stream
from ddppo.terminal import warn

# -- A walk: a few environments of one circuit, stepped in turn ------------------------------------------------------


# From the observation of each environment to the row of `pairs` that it takes.
Choose = Callable[[Sequence[Obs]], Sequence[int]]


class Walk:
    """Environments of one circuit. Each has its own random stream and its own buffer of circuits."""

    def __init__(self, envs: Sequence[CircuitEnv], choose: Choose, seeds: Sequence[int]) -> None:
        self._envs = envs
        self._choose = choose
        self._obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        self._num_steps = self._num_rewrites = 0
        self._reported = np.inf  # the least cost of earlier rounds

    def go(self, messages: Sequence[bytes], num_steps: int, until: float) -> WalkProgress:
        """Receive the messages of all walks, then take `num_steps` steps, rounded up to one step of each environment.

        Args:
            until: time.monotonic() after which no further step begins.
        """
        for env in self._envs:
            env.receive(messages)
        for _ in range(-(-num_steps // len(self._envs))):
            if time.monotonic() >= until:
                break
            self._step()
        best = self._best()
        is_better, self._reported = best.cost < self._reported, min(best.cost, self._reported)
        rewrites = best.rewrites if is_better else None
        published = [env.publish() for env in self._envs]
        counts = (self._num_steps, self._num_rewrites)
        return WalkProgress(*counts, best.cost, rewrites, published, cpu_s=time.process_time())

    def _step(self) -> None:
        for i, (env, action) in enumerate(zip(self._envs, self._choose(self._obs), strict=True)):
            rule = env.pairs[action, 1]
            self._num_rewrites += int(rule != env.rewriter.nop)
            self._obs[i], _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                self._obs[i], _ = env.reset()
        self._num_steps += len(self._envs)

    def _best(self) -> Found:
        return min((env.best()[0] for env in self._envs), key=lambda found: found.cost)


# Measured: of biases 0 to 6 the best on mod5_4, vbe_adder_3 and gf2^4_mult after 20,000 steps, by a small margin.
BIAS = 3.0
# Episodes and buffers as in conf/env/circuit.yaml. With draw=power and episodes of 600 steps, walks of 8,000 steps
# ended several gates higher (experiments/circuits).
AT_RANDOM = {"buffer": {"draw": "greedy"}, "episode": {"max_steps": 100}}


class AtRandom:
    """Chooses a rewrite at random; one that adds n gates has a probability in proportion to e^(-bias n)."""

    def __init__(self, env: CircuitEnv, bias: float, rng: np.random.Generator) -> None:
        # Weights of rules; to change nothing has none, because it ends the episode.
        self._weights = np.exp(-bias * growth_of(env.rewriter))
        self._weights[env.rewriter.nop] = 0.0
        self._rng = rng

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        return [self._choose(each["pairs"][: each["num_pairs"][0], 1]) for each in obs]

    def _choose(self, rules: np.ndarray) -> int:
        sums = np.cumsum(self._weights[rules])
        # If the only choice is to change nothing, it is row 0 and has weight 0.
        return int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right")) if sums[-1] else 0


def random_walk(env: Mapping[str, Any], bias: float, index: int, seed: int) -> Walk | FastWalk:
    """Return a walk at random with the random streams of environment `index`, in C++ if the cost allows it.

    Args:
        env: keyword arguments of CircuitEnv.
    """
    if why_not(env) is None:
        return FastWalk(env, derived_seed(seed, "env", index), prior=bias)
    alone = CircuitEnv(**env)
    choose = AtRandom(alone, bias, stream(seed, "action", 0, index))
    return Walk([alone], choose, [derived_seed(seed, "env", index)])


def learning_walk(env: Mapping[str, Any], bias: float, index: int, seed: int) -> FastWalk:
    """Return a walk that prefers what paid on other circuits, and learns more on this one (src/learning.hpp).

    Args:
        env: keyword arguments of CircuitEnv, for which there is a walk in C++.
    """
    return FastWalk(env, derived_seed(seed, "env", index), prior=bias, learning=LearningRule())


# -- Processes that walk in rounds. With a given number of steps, the result depends on the seed alone. --------------


_ANSWER_S = 600.0  # timeout of a round, which takes about a second
# Forked processes inherit the rules, which are read and verified once. Safe on macOS too: no threads run yet.
_FORK = multiprocessing.get_context("fork")


class Workers:
    """One process for each function in `makes`; the function makes the walk there. Use it in a `with`, or close it."""

    def __init__(self, makes: Sequence[Callable[[], Walk | FastWalk]]) -> None:
        self._alive: dict[int, tuple[Any, Connection]] = {}
        self._messages: list[bytes] = []  # of all walks in the last round
        self._are_made = False
        for number, make in enumerate(makes):
            pipe, child_end = _FORK.Pipe()
            process = _FORK.Process(target=_work, args=(make, child_end, pipe, os.getpid()), daemon=True)
            process.start()
            child_end.close()
            self._alive[number] = (process, pipe)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until all processes have made their walks, which takes seconds where torch is loaded. Raises as `go`."""
        if not self._are_made:
            self._are_made = True
            self._answers()

    def go(self, num_steps: int, until: float) -> dict[int, WalkProgress]:
        """Run a round of `num_steps` steps in every process; return the progress of each by its number.

        A process that was killed is reported and left out from then on. Raises ConfigError and TrainingError as a walk
        does, and TrainingError if all processes are lost.
        """
        self.wait()
        # Start the round everywhere, with the messages of the last one.
        for _, pipe in self._alive.values():
            with suppress(OSError):  # a lost process is found below
                pipe.send((self._messages, num_steps, until))
        found = self._answers()
        self._messages = [each for progress in found.values() for each in progress.messages]
        return found

    def _answers(self) -> dict[int, Any]:
        """Return one answer of each process, in their order, so that ties are broken the same way each time."""
        found: dict[int, Any] = {}
        for number, (process, pipe) in list(self._alive.items()):
            try:
                if not pipe.poll(_ANSWER_S):
                    raise TrainingError(
                        f"worker {number} has given no answer for {_ANSWER_S:.0f} s: its cost may hang"
                    )
                answer = pipe.recv()
            except (EOFError, OSError):
                del self._alive[number]
                process.join()
                pipe.close()
                warn(f"worker {number} ended (exit code {process.exitcode}): continuing without it")
                continue
            if isinstance(answer, Exception):
                raise answer
            found[number] = answer
        if not found:
            raise TrainingError("every worker was lost: give fewer of them, workers=1, if memory was short")
        return found

    def close(self) -> None:
        """Kill all processes, even in the middle of a round: they hold nothing that was not sent."""
        for process, pipe in self._alive.values():
            process.kill()
            process.join()
            pipe.close()


def _work(make: Callable[[], Walk | FastWalk], pipe: Connection, parent_end: Connection, parent: int) -> None:
    """Walk in rounds until the parent closes its end of the pipe.

    Ctrl-C reaches all processes of a terminal; only the parent reacts to it.
    """
    # This process must end with its parent, however that ends.
    die_with_parent(parent)
    stop_signals_kill()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_end.close()
    with suppress(EOFError, BrokenPipeError):
        try:
            walk = make()
            pipe.send(None)  # an answer to `wait`
            while True:
                pipe.send(walk.go(*pipe.recv()))
        except (ConfigError, TrainingError) as e:
            # Some subclasses take several arguments, and cannot be unpickled.
            pipe.send((ConfigError if isinstance(e, ConfigError) else TrainingError)(str(e)))


_ROUND_STEPS = 5000  # of each walk in a round, a fraction of a second in C++; then walks exchange circuits
_REPORT_S = 5.0  # seconds between two lines on the terminal


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a search; inf is no limit."""

    seconds: float
    steps: float  # of every walk


@dataclass(slots=True)
class BestSoFar:
    """The best circuit so far."""

    start: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...] = ()  # from `start` to `circuit`
    places: NDArray[np.int32] | None = None  # the same as a walk in C++ has them, until `settle`
    # For each best: its cost, gates, cx, depth and rewrites, the steps of all walks, and the seconds until then, of the
    # clock and of CPU time.
    improvements: list[dict[str, float]] = field(default_factory=list)

    def update(
        self, found: Mapping[int, WalkProgress], rewriter: Rewriter, cost: Cost, seconds: float
    ) -> None:
        """Take the cheapest circuit of all walks, from the first of them if several are equal. Raises ConfigError."""
        for progress in found.values():
            is_new = progress.rewrites is not None or progress.circuit is not None
            if not is_new or progress.cost >= self.cost:
                continue
            # Compute the cost again, and repeat the rewrites, here or at the end (`settle`): a worker's result is not
            # taken on trust.
            if progress.circuit is not None:
                self.circuit, self.places = progress.circuit, progress.places
            else:
                assert progress.rewrites is not None
                self.circuit = replayed(rewriter, self.start, progress.rewrites)
                self.rewrites, self.places = progress.rewrites, None
            self.cost = float(cost(self.circuit))
            if not math.isclose(self.cost, progress.cost, abs_tol=1e-9):
                raise ConfigError(
                    f"the cost of one circuit was {progress.cost:g} in a worker and {self.cost:g} here: it has to "
                    "follow from the circuit alone"
                )
            steps = sum(each.num_steps for each in found.values())
            cpu_s = round(sum(each.cpu_s for each in found.values()), 3)
            numbers = {"cost": self.cost, **measures(self.circuit), "num_rewrites": self.num_rewrites}
            self.improvements.append(
                {**numbers, "env_steps": steps, "wall_s": round(seconds, 3), "cpu_s": cpu_s}
            )

    @property
    def num_rewrites(self) -> int:
        return len(self.rewrites if self.places is None else self.places)

    def settle(self, rewriter: Rewriter) -> None:
        """Repeat the rewrites of the best circuit. Raises TrainingError if they do not lead there."""
        if self.places is None:
            return
        again, self.rewrites = rewrites_of(rewriter, self.start, self.places)
        if again != self.circuit:
            raise TrainingError(
                f"{len(self.rewrites)} rewrites lead to a circuit of {len(again)} gates, not to the one of "
                f"{len(self.circuit)} that was found: the rewriting is wrong, and nothing was written"
            )
        self.circuit, self.places = again, None


def search(
    workers: Workers, best: BestSoFar, rewriter: Rewriter, cost: Cost, budget: Budget, stop: StopRequest
) -> int:
    """Walk in rounds until the budget is used up or a signal stops the search; return the number of rewrites tried."""
    # Each round has at most _ROUND_STEPS steps; the last one has the steps that are left.
    workers.wait()
    began = time.monotonic()
    until, left = began + budget.seconds, budget.steps
    found: dict[int, WalkProgress] = {}  # the last progress of each worker, lost ones included
    with SearchDisplay(budget) as display:
        while left > 0 and time.monotonic() < until and not stop.requested:
            try:
                found |= workers.go(int(min(_ROUND_STEPS, left)), until)
            except TrainingError as e:
                if not best.num_rewrites:
                    raise
                warn(f"{e}; the search ends with what was found")
                break
            # Take the best circuit, and show how far the search is.
            left -= _ROUND_STEPS
            seconds = time.monotonic() - began
            best.update(found, rewriter, cost, seconds)
            num_rewrites = sum(progress.num_rewrites for progress in found.values())
            display.show(best, num_rewrites, seconds, budget.steps - left)
    best.settle(rewriter)
    return sum(progress.num_rewrites for progress in found.values())


class SearchDisplay:
    """Shows how far a search is, on standard error: a bar on a terminal, elsewhere a line every few seconds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._reported = 0.0  # seconds at the last line
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (BarColumn(30), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> "SearchDisplay":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, best: BestSoFar, num_rewrites: int, seconds: float, num_steps: float) -> None:
        """Show the state after a round. num_steps: of each walk so far."""
        # 1. In words.
        counts = ", ".join(f"{what} {number}" for what, number in measures(best.circuit).items())
        is_timed = math.isfinite(self._budget.seconds)
        ends = f", {max(0.0, self._budget.seconds - seconds):.0f} s left" if is_timed else ""
        line = (
            f"{seconds:5.0f} s: best cost {best.cost:g} ({counts}), {num_rewrites:,} rewrites tried, "
            f"{num_rewrites / max(seconds, 1e-9):,.0f}/s{ends}"
        )
        # 2. On the bar, or as a line from time to time.
        if self._bar is not None:
            done = seconds / self._budget.seconds if is_timed else num_steps / self._budget.steps
            self._bar.update(self._task, completed=min(done, 1.0), description=line.strip())
        elif seconds - self._reported >= _REPORT_S:
            self._reported = seconds
            print(line, file=sys.stderr, flush=True)


# -- Walks by the policy of a run. Only these import torch, and only in the worker processes. ------------------------


_NUM_ENVS = 16  # environments of a walk by a graph network: the batch of one forward pass


class ByPairs:
    """Samples rewrites from a `model=pairs`. Its logits are sums of a few weights, so a decision takes microseconds.

    The choice to change nothing is masked: it ends an episode, and the best circuit is kept anyway.
    """

    def __init__(self, policy: Any, envs: Sequence[CircuitEnv], rngs: Sequence[np.random.Generator]) -> None:
        self._weights = policy.table()
        self._prior, self._limit = policy.prior, policy.limit
        self._envs, self._rngs = envs, rngs

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        return [self._choose(*each) for each in zip(obs, self._envs, self._rngs, strict=True)]

    def _choose(self, obs: Obs, env: CircuitEnv, rng: np.random.Generator) -> int:
        number = int(obs["num_pairs"][0])
        learned = self._weights[obs["features"][:number]].sum(axis=1)
        if self._limit is not None:
            learned = self._limit * np.tanh(learned / self._limit)
        logits = learned - self._prior * obs["growth"][:number]
        chances = np.exp(logits - logits.max())
        chances *= env.pairs[:number, 1] != env.rewriter.nop
        sums = np.cumsum(chances)
        return int(np.searchsorted(sums, rng.random() * sums[-1], side="right")) if sums[-1] else 0


class ByPolicy:
    """Samples a rewrite from the policy of a checkpoint, with noise of its own for each environment.

    The choice to change nothing is masked: it ends an episode, and the best circuit is kept anyway.
    """

    def __init__(
        self, config: Config, path: Path, env: CircuitEnv, rngs: Sequence[np.random.Generator]
    ) -> None:
        from ddppo.envs.encoding.observations import RowEncoder
        from ddppo.loop.evaluation import load_policy  # torch, in the processes that walk alone

        self._policy = load_policy(config, checkpoint.load(path))
        self._encode = RowEncoder(env.observation_space, self._policy.spec)
        self._nop = env.rewriter.nop
        self._rngs = rngs

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        # Encode the observations as a batch, mask the choice to change nothing, and sample.
        rows = np.stack([self._encode(each, {}) for each in obs])
        layout = self._encode.layout
        offered = layout.mask(rows)
        rewrites = offered & np.stack([each["pairs"][:, 1] != self._nop for each in obs])
        rewrites |= offered & ~rewrites.any(axis=1, keepdims=True)  # unless it is the only choice
        noise = np.stack([rng.random(self._policy.model.num_noise) for rng in self._rngs])
        actions: list[int] = self._policy.sample(layout.obs(rows), rewrites, noise).tolist()
        return actions


def policy_walk(env: Mapping[str, Any], config: Config, path: Path, index: int, seed: int) -> Walk:
    """Return walk number `index` of a search by the policy of a run. Raises RunFolderError if config and path differ.

    Args:
        env: keyword arguments of its environments.
        config: of the run.
        path: a checkpoint of the run.
    """
    import torch

    # Processes are the parallelism here: more threads would compete for the same cores.
    torch.set_num_threads(1)
    # Another circuit has observations of other sizes.
    of_env = dataclasses.replace(config.env, kwargs=dict(env))
    of_walk = dataclasses.replace(config, device="cpu", env=of_env, other_spaces=True)
    is_cheap = config.model.name == "pairs"  # no batch is needed: one environment, as at random
    number = 1 if is_cheap else _NUM_ENVS
    indices = range(index * number, (index + 1) * number)
    envs = [CircuitEnv(**env) for _ in indices]
    rngs = [stream(seed, "action", 0, i) for i in indices]
    choose: Choose
    if is_cheap:
        from ddppo.loop.evaluation import load_policy

        choose = ByPairs(load_policy(of_walk, checkpoint.load(path)).model, envs, rngs)
    else:
        choose = ByPolicy(of_walk, path, envs[0], rngs)
    return Walk(envs, choose, [derived_seed(seed, "env", i) for i in indices])


# -- The policy of a run folder, and the settings of its task --------------------------------------------------------


_TASK = "ddppo/Circuit-v0"
_FIXED_SIZE_MODELS = ("mlp", "cnn")  # they read observations of one size only
_OWN_KEYWORDS = ("circuit", "sizes")  # keyword arguments of CircuitEnv that are not taken over from the run


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """A run folder as the source of a policy."""

    config: Config
    checkpoint: Path
    keywords: dict[str, Any]  # of CircuitEnv, as in the run


def policy_of_run(folder: str, which: str, rules: str | None, coupling: str | None = None) -> RunPolicy:
    """Return the policy of a run. Raises ConfigError if it cannot act on other circuits or by these rules.

    Args:
        which: last, best or the path of a checkpoint.
        rules: the user's file of rules, if any.
        coupling: the user's coupling map, if any; it leaves out rules.
    """
    run_dir = Path(folder)
    if not (run_dir / "config.yaml").is_file():
        raise RunFolderError(f"run={folder}: not a run folder, it has no config.yaml")
    config = stored.load_config(run_dir / "config.yaml")
    if config.env.id != _TASK:
        raise ConfigError(
            f"run={folder}: it was trained on {config.env.id}, and only a run of env=circuit knows circuits"
        )
    if config.model.name in _FIXED_SIZE_MODELS:
        raise ConfigError(
            f"run={folder}: its model {config.model.name} takes circuits of one size alone: use a run with model=pairs"
        )
    # The policy has an output for each rule: with other rules, its outputs would mean something else.
    learned = config.env.kwargs.get("rules")
    if coupling is not None and config.env.kwargs.get("coupling") is None:
        raise ConfigError(
            f"coupling={coupling}: run={folder} was trained without a coupling map, so with other rules: leave run= "
            "out, or use a run that was trained with env.coupling= of any map"
        )
    if rules is not None and rules_digest(rewriter(rules)) != rules_digest(rewriter(learned)):
        raise ConfigError(
            f"rules={rules}: its rules are not those that run={folder} was trained by: leave rules= out, for the run's"
        )
    keywords = {key: value for key, value in config.env.kwargs.items() if key not in _OWN_KEYWORDS}
    # A rule that does not match leads nowhere: search with the mask, even if the run trained without it.
    keywords["episode"] = {**(keywords.get("episode") or {}), "mask": True}
    return RunPolicy(config, checkpoint.chosen(which, run_dir), keywords)


# -- Files of rewrites, by which anyone can repeat a search's result and check it ------------------------------------
# `optimise` writes them by rewrites=, and runs write best/<circuit>.json.


class Rewrites(NamedTuple):
    """The content of a file of rewrites."""

    path: Path
    start: str  # one of STARTS
    rewrites: tuple[tuple[int, int], ...]  # (node, rule) of each
    original: Circuit | None  # None if the file does not hold it
    rules: str | None  # digest of the rules; None if the file does not hold it
    smaller: Circuit | None  # what the rewrites lead to, as the file has it
    verified: str  # how it was compared with the original, in words; "" if the file does not say
    improvements: list[dict[str, float]]  # each best on the way: cost, gates, env_steps, wall_s and more


def read_rewrites(path: Path) -> Rewrites:
    """Read a file of rewrites. Raises ConfigError."""
    # A file may be any JSON: check the type of every value that is used.
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: cannot be read ({e}): name a file that `optimise` or a run wrote"
        ) from e
    try:
        pairs = tuple((int(node), int(rule)) for node, rule in held["rewrites"])
        start, rules = held.get("start", "given"), held.get("rules")
        original, smaller = (
            parse(held[key]).circuit if key in held else None for key in ("original", "smaller")
        )
        improvements = [
            {str(key): float(value) for key, value in each.items()} for each in held.get("improvements", [])
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: not a file of rewrites ({type(e).__name__}: {e}): name one that `optimise` or a run "
            "wrote"
        ) from e
    if start not in STARTS:
        raise ConfigError(f"rewrites={path}: its start={start} is none of {', '.join(STARTS)}")
    verified = str(held.get("verified", ""))
    return Rewrites(path, start, pairs, original, rules, smaller, verified, improvements)


def rewriter_of(held: Rewrites, rules: str | None) -> Rewriter:
    """Return the rules of a file (null: the package's) by which the rewrites were found: all, or those that keep pairs.

    If neither are, return all; `repeated` then raises the error.
    """
    for keeps_pairs in (False, True):
        found = rewriter(rules, keeps_pairs=keeps_pairs)
        if held.rules in (None, rules_digest(found)):
            return found
    return rewriter(rules)


def repeated(held: Rewrites, original: Circuit, rewriter: Rewriter) -> Circuit:
    """Return the circuit after these rewrites. Raises ConfigError for another original or other rules."""
    if held.original is not None and held.original.canonical() != original.canonical():
        raise ConfigError(
            f"rewrites={held.path}: they start from another circuit: the file's `original` has {len(held.original)} "
            f"gates, this one has {len(original)}"
        )
    if held.rules is not None and held.rules != rules_digest(rewriter):
        raise ConfigError(
            f"rewrites={held.path}: they were found with other rules than these {len(rewriter.rules)}: name the file "
            "of the right ones by rules="
        )
    try:
        return replayed(rewriter, started(original, held.start), held.rewrites)
    except ConfigError as e:
        raise ConfigError(f"rewrites={held.path}: {e}") from e


def started(original: Circuit, start: str) -> Circuit:
    """Return the circuit that rewriting starts from."""
    return merged(original) if start == "merge" else original
