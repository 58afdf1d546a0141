"""Making a user's circuit smaller: walks by rules in several processes, at random or by a run's policy.

In reading order: Walk, what one process does; Workers, the processes; `search`, rounds of walks until time, steps or
patience are over; walks by a run's policy; files of rewrites, which say how a circuit was found.
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

from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.circuit import Cost, measures
from ddppo.domains.circuits.quantum.qasm_reader import parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter, merged
from ddppo.domains.circuits.task.board import growth_of, rewriter, rules_digest
from ddppo.domains.circuits.task.env import CircuitEnv, Obs
from ddppo.domains.circuits.task.lineage import Found, replayed
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.processes.signals import StopRequest, die_with_parent, stop_signals_kill
from ddppo.records import checkpoint
from ddppo.seeding import derived_seed, stream
from ddppo.terminal import warn

# -- A walk over the circuits that rules make of one: a few environments side by side, and what chooses for them -----


Choose = Callable[
    [Sequence[Obs]], Sequence[int]
]  # of each environment's observation the row of `pairs` to take


class WalkProgress(NamedTuple):
    """Steps and rewrites since the walk began; the least cost so far, and the rewrites that lead there.

    rewrites: None where there is none better than was told before. news: for the other walks, one of each environment.
    """

    num_steps: int
    num_rewrites: int
    cost: float
    rewrites: tuple[tuple[int, int], ...] | None
    news: list[bytes]


class Walk:
    """Environments of one circuit, stepped in turn; each has its own stream and its own buffer of circuits."""

    def __init__(self, envs: Sequence[CircuitEnv], choose: Choose, seeds: Sequence[int]) -> None:
        self._envs = envs
        self._choose = choose
        self._obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        self._num_steps = self._num_rewrites = 0
        self._told = np.inf

    def go(self, news: Sequence[bytes], num_steps: int, until: float) -> WalkProgress:
        """Hear what all walks found, then take so many steps, rounded up to one of each environment.

        until: seconds of time.monotonic() from which on no further one is taken.
        """
        for env in self._envs:
            env.receive(news)
        for _ in range(-(-num_steps // len(self._envs))):
            if time.monotonic() >= until:
                break
            self._step()
        best = self._best()
        is_better, self._told = best.cost < self._told, min(best.cost, self._told)
        rewrites = best.rewrites if is_better else None
        told = [env.publish() for env in self._envs]
        return WalkProgress(self._num_steps, self._num_rewrites, best.cost, rewrites, told)

    def _step(self) -> None:
        for i, (env, action) in enumerate(zip(self._envs, self._choose(self._obs), strict=True)):
            rule = self._obs[i]["pairs"][action, 1]
            self._num_rewrites += int(rule != env.rewriter.nop)
            self._obs[i], _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                self._obs[i], _ = env.reset()
        self._num_steps += len(self._envs)

    def _best(self) -> Found:
        return min((env.best()[0] for env in self._envs), key=lambda found: found.cost)


class AtRandom:
    """Chooses among the rewrites, one that adds n gates more with a chance in proportion to e^(-bias n)."""

    def __init__(self, env: CircuitEnv, bias: float, rng: np.random.Generator) -> None:
        self._weights = np.exp(-bias * growth_of(env.rewriter))
        self._weights[env.rewriter.nop] = 0.0
        self._rng = rng

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        return [self._chosen(each["pairs"][: each["num_pairs"][0], 1]) for each in obs]

    def _chosen(self, rules: np.ndarray) -> int:
        sums = np.cumsum(self._weights[rules])
        # Where nothing but to change nothing is left, that is row 0.
        return int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right")) if sums[-1] else 0


def random_walk(env: Mapping[str, Any], bias: float, index: int, seed: int) -> Walk:
    """Return the walk of one environment, the one of this index, made of these keyword arguments."""
    alone = CircuitEnv(**env)
    choose = AtRandom(alone, bias, stream(seed, "action", 0, index))
    return Walk([alone], choose, [derived_seed(seed, "env", index)])


# -- Processes that walk side by side, in rounds: what they find after so many steps follows from the seed -----------


_ANSWER_S = 600.0  # of a round of a second or so
# The rules, read and verified, are there already. On macOS too: no library has started threads by then.
_FORK = multiprocessing.get_context("fork")


class Workers:
    """One process for each of `makes`, which make its walk there. Close it, or use it in a `with`."""

    def __init__(self, makes: Sequence[Callable[[], Walk]]) -> None:
        self._alive: dict[int, tuple[Any, Connection]] = {}
        self._news: list[bytes] = []  # of the last round
        for number, make in enumerate(makes):
            line, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_work, args=(make, theirs, line, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._alive[number] = (process, line)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def go(self, num_steps: int, until: float) -> dict[int, WalkProgress]:
        """Have every process take so many steps, or what there is time for, and return what each says, by its number.

        One that was killed is told of and left out from then on. Raises ConfigError and TrainingError as a walk does,
        and TrainingError where all were lost.
        """
        for _, line in self._alive.values():
            with suppress(OSError):  # it is lost, and will not answer
                line.send((self._news, num_steps, until))
        told: dict[int, WalkProgress] = {}
        for number, (process, line) in list(self._alive.items()):
            try:
                if not line.poll(_ANSWER_S):
                    raise TrainingError(
                        f"worker {number} has given no answer for {_ANSWER_S:.0f} s: its cost may hang"
                    )
                answer = line.recv()
            except (EOFError, OSError):
                del self._alive[number]
                process.join()
                line.close()
                warn(f"worker {number} ended (exit code {process.exitcode}): going on without it")
                continue
            if isinstance(answer, Exception):
                raise answer
            told[number] = answer
        if not told:
            raise TrainingError("every worker was lost: give fewer of them, workers=1, if memory was short")
        self._news = [each for progress in told.values() for each in progress.news]
        return told

    def close(self) -> None:
        """End all, in the middle of a round too: they hold nothing that is not told."""
        for process, line in self._alive.values():
            process.kill()
            process.join()
            line.close()


def _work(make: Callable[[], Walk], line: Connection, of_parent: Connection, parent: int) -> None:
    """Walk as far as the parent says, until it hangs up. Ctrl-C reaches all of a terminal: the parent decides."""
    die_with_parent(parent)
    stop_signals_kill()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    of_parent.close()
    with suppress(EOFError, BrokenPipeError):
        asked = line.recv()
        try:
            walk = make()
            while True:
                line.send(walk.go(*asked))
                asked = line.recv()
        except (ConfigError, TrainingError) as e:  # not as they are: some take more than one argument
            line.send((ConfigError if isinstance(e, ConfigError) else TrainingError)(str(e)))


_ROUND_STEPS = 1000  # of one walk, a fraction of a second: then walks tell each other what they found
_SAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How long: seconds of the clock, and steps of every walk. inf is no limit."""

    seconds: float
    steps: float


@dataclass(slots=True)
class BestSoFar:
    """The best circuit so far, and when it became better.

    rewrites lead to it from `start`. improvements: cost, gates, cx, depth and number of rewrites of each best, and the
    steps of all walks and the seconds until it was there.
    """

    start: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...] = ()
    improvements: list[dict[str, float]] = field(default_factory=list)

    def hear(self, told: Mapping[int, WalkProgress], rewriter: Rewriter, cost: Cost, seconds: float) -> None:
        """Take the least costly of what walks tell, of the first of them where several are. Raises ConfigError."""
        for progress in told.values():
            if progress.rewrites is None or progress.cost >= self.cost:
                continue
            self.circuit, self.rewrites = replayed(rewriter, self.start, progress.rewrites), progress.rewrites
            self.cost = float(cost(self.circuit))
            if self.cost != progress.cost:
                raise ConfigError(
                    f"the cost of one circuit was {progress.cost:g} in a worker and {self.cost:g} here: it has to "
                    "follow from the circuit alone"
                )
            steps = sum(each.num_steps for each in told.values())
            said = {"cost": self.cost, **measures(self.circuit), "num_rewrites": len(self.rewrites)}
            self.improvements.append({**said, "env_steps": steps, "wall_s": round(seconds, 3)})


def search(
    workers: Workers, best: BestSoFar, rewriter: Rewriter, cost: Cost, budget: Budget, stop: StopRequest
) -> int:
    """Walk until the budget is spent, or a signal asks for the end; return how many rewrites were tried."""
    began = time.monotonic()
    until, left, said = began + budget.seconds, budget.steps, began
    told: dict[int, WalkProgress] = {}
    while left > 0 and time.monotonic() < until and not stop.requested:
        try:
            told |= workers.go(int(min(_ROUND_STEPS, left)), until)
        except TrainingError as e:
            if not best.rewrites:
                raise
            warn(f"{e}; the search ends with what was found")
            break
        left -= _ROUND_STEPS
        now = time.monotonic()
        best.hear(told, rewriter, cost, now - began)
        if now - said >= _SAY_S:
            said = now
            _say(best, sum(progress.num_rewrites for progress in told.values()), now - began, until - now)
    return sum(progress.num_rewrites for progress in told.values())


def _say(best: BestSoFar, num_rewrites: int, seconds: float, left_s: float) -> None:
    counts = ", ".join(f"{what} {number}" for what, number in measures(best.circuit).items())
    ends = "" if math.isinf(left_s) else f", {max(0.0, left_s):.0f} s left"
    print(
        f"{seconds:5.0f} s: best cost {best.cost:g} ({counts}), {num_rewrites:,} rewrites tried, "
        f"{num_rewrites / seconds:,.0f}/s{ends}",
        file=sys.stderr,
        flush=True,
    )


# -- Walks by a run's policy. torch is imported here alone, in the processes that walk -------------------------------


_NUM_ENVS = 16  # of one walk: as many observations as one forward takes


class ByPolicy:
    """Samples a rewrite from the policy of a checkpoint, for each environment by noise of its own.

    To change nothing is no choice here: it ends an episode, and what was found is kept anyway.
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
        rows = np.stack([self._encode(each, {}) for each in obs])
        layout = self._encode.layout
        offered = layout.mask(rows)
        rewrites = offered & np.stack([each["pairs"][:, 1] != self._nop for each in obs])
        rewrites |= offered & ~rewrites.any(axis=1, keepdims=True)  # where there is nothing else
        noise = np.stack([rng.random(self._policy.model.num_noise) for rng in self._rngs])
        actions: list[int] = self._policy.sample(layout.obs(rows), rewrites, noise).tolist()
        return actions


def policy_walk(env: Mapping[str, Any], config: Config, path: Path, index: int, seed: int) -> Walk:
    """Return the walk of this index: environments made of these keyword arguments, by the policy of a run.

    config: the run's; path: its checkpoint. Raises RunFolderError where they do not fit.
    """
    import torch

    torch.set_num_threads(1)
    of_env = dataclasses.replace(config.env, kwargs=dict(env))  # of another circuit, so of other sizes
    of_walk = dataclasses.replace(config, device="cpu", env=of_env, other_spaces=True)
    indices = range(index * _NUM_ENVS, (index + 1) * _NUM_ENVS)
    envs = [CircuitEnv(**env) for _ in indices]
    choose = ByPolicy(of_walk, path, envs[0], [stream(seed, "action", 0, i) for i in indices])
    return Walk(envs, choose, [derived_seed(seed, "env", i) for i in indices])


# -- What a run folder brings to `optimise`: how its task was set, and its policy ------------------------------------


_TASK = "ddppo/Circuit-v0"
_OF_ONE_SIZE = ("mlp", "cnn")
_OF_THE_RUN_ALONE = ("circuit", "sizes")  # keywords of the task that another circuit has its own of


@dataclass(frozen=True, slots=True)
class OfRun:
    """The run's configuration, a checkpoint, and the task's keywords that a circuit of the user's shares."""

    config: Config
    checkpoint: Path
    keywords: dict[str, Any]


def of_run(folder: str, which: str, rules: str | None) -> OfRun:
    """Return what the run brings. Raises ConfigError where its policy cannot act on circuits by these rules.

    which: last, best or the path of a checkpoint; rules: the user's file, if any.
    """
    run_dir = Path(folder)
    if not (run_dir / "config.yaml").is_file():
        raise RunFolderError(f"run={folder}: not a run folder, it has no config.yaml")
    config = stored.load_config(run_dir / "config.yaml")
    if config.env.id != _TASK:
        raise ConfigError(
            f"run={folder}: it was trained on {config.env.id}, and only a run of env=circuit knows circuits"
        )
    if config.model.name in _OF_ONE_SIZE:
        raise ConfigError(
            f"run={folder}: its model {config.model.name} takes circuits of one size alone: use a run with model=gnn"
        )
    learned = config.env.kwargs.get("rules")
    if rules is not None and rules_digest(rewriter(rules)) != rules_digest(rewriter(learned)):
        raise ConfigError(
            f"rules={rules}: its rules are not those that run={folder} was trained by: leave rules= out, for the run's"
        )
    keywords = {key: value for key, value in config.env.kwargs.items() if key not in _OF_THE_RUN_ALONE}
    keywords["episode"] = {
        **(keywords.get("episode") or {}),
        "mask": True,
    }  # what never matches is no way to anything
    return OfRun(config, checkpoint.chosen(which, run_dir), keywords)


# -- Files that say by which rewrites a circuit was found, so that anyone can repeat and check it --------------------
# `optimise` writes them, and runs do, best/<circuit>.json.


STARTS = ("merge", "given")


class Rewrites(NamedTuple):
    """What a file holds: (node, rule) of every rewrite, and the start from which they lead.

    original and rules are those it was found by, None where the file does not say.
    """

    path: Path
    start: str
    rewrites: tuple[tuple[int, int], ...]
    original: Circuit | None
    rules: str | None


def read_rewrites(path: Path) -> Rewrites:
    """Return what a file says. Raises ConfigError where it is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: cannot be read ({e}): name a file that `optimise` or a run wrote"
        ) from e
    try:
        pairs = tuple((int(node), int(rule)) for node, rule in held["rewrites"])
        start, rules = held.get("start", "given"), held.get("rules")
        original = parse(held["original"]).circuit if "original" in held else None
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: not a file of rewrites ({type(e).__name__}: {e}): name one that `optimise` or a run "
            "wrote"
        ) from e
    if start not in STARTS:
        raise ConfigError(f"rewrites={path}: its start={start} is none of {', '.join(STARTS)}")
    return Rewrites(path, start, pairs, original, rules)


def repeated(held: Rewrites, original: Circuit, rewriter: Rewriter) -> Circuit:
    """Return what the rewrites make of the original. Raises ConfigError where they are of another, or other rules."""
    if held.original is not None and held.original.canonical() != original.canonical():
        raise ConfigError(
            f"rewrites={held.path}: they begin from another circuit, of {len(held.original)} gates, which the file "
            f"holds as `original`; this one has {len(original)}"
        )
    if held.rules is not None and held.rules != rules_digest(rewriter):
        raise ConfigError(
            f"rewrites={held.path}: they were found by other rules than these {len(rewriter.rules)}: name the file of "
            "those by rules="
        )
    try:
        return replayed(rewriter, started(original, held.start), held.rewrites)
    except ConfigError as e:
        raise ConfigError(f"rewrites={held.path}: {e}") from e


def started(original: Circuit, start: str) -> Circuit:
    """Return the circuit that rewriting begins from."""
    return merged(original) if start == "merge" else original
