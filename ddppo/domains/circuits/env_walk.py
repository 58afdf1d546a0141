"""Walks that step environments (task/env.py): at random by any cost, and by the policy of a run.

`Walk` is a walk of a few environments; AtRandom, ByPairs and ByPolicy choose its rewrites. `random_walk`,
`learning_walk` and `policy_walk` make the walks of `optimise`, in C++ (walk.py) where the cost is a sum over gates.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.domains.circuits.task.board import growth_of, rewriter, rules_digest
from ddppo.domains.circuits.task.env import CircuitEnv, Obs
from ddppo.domains.circuits.task.lineage import Found
from ddppo.domains.circuits.walk import FastWalk, LearningRule, WalkProgress, why_not
from ddppo.errors import ConfigError, RunFolderError
from ddppo.records import checkpoint
from ddppo.seeding import derived_seed, stream

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
# Of walks that learn, see FastWalk. They reach in a second what others need several for, so that they can begin anew.
PATIENCE = 2.0
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
    rule = LearningRule()
    return FastWalk(env, derived_seed(seed, "env", index), prior=bias, patience=PATIENCE, learning=rule)


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
