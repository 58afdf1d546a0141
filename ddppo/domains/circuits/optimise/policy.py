"""Walks whose choices are a run's policy. Imports torch, so only the processes that walk import it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddppo.config import Config
from ddppo.domains.circuits.optimise.walk import Walk
from ddppo.domains.circuits.task.env import CircuitEnv, Obs
from ddppo.envs.encoding.rows import RowEncoder
from ddppo.run import checkpoint
from ddppo.run.evaluating.evaluation import load_policy
from ddppo.seeding import derived_seed, stream

_NUM_ENVS = 16  # of one walk: as many observations as one forward takes


class ByPolicy:
    """Samples a rewrite from the policy of a checkpoint, for each environment by noise of its own.

    To change nothing is no choice here: it ends an episode, and what was found is kept anyway.
    """

    def __init__(
        self, config: Config, path: Path, env: CircuitEnv, rngs: Sequence[np.random.Generator]
    ) -> None:
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
    torch.set_num_threads(1)
    of_env = dataclasses.replace(config.env, kwargs=dict(env))  # of another circuit, so of other sizes
    of_walk = dataclasses.replace(config, device="cpu", env=of_env, other_spaces=True)
    indices = range(index * _NUM_ENVS, (index + 1) * _NUM_ENVS)
    envs = [CircuitEnv(**env) for _ in indices]
    choose = ByPolicy(of_walk, path, envs[0], [stream(seed, "action", 0, i) for i in indices])
    return Walk(envs, choose, [derived_seed(seed, "env", i) for i in indices])
