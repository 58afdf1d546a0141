"""A trained policy as any program uses it: observations as the task hands them over, actions as it takes them.

policy = load_policy("outputs/cartpole/<stamp>", checkpoint="best")
obs, info = env.reset()
obs, reward, terminated, truncated, info = env.step(policy(obs))
"""

from pathlib import Path
from typing import Any

import numpy as np

from ddppo.envs.codec import MASK, decode_actions, space_leaves
from ddppo.envs.rows import RowEncoder, WrongOutput
from ddppo.policies.loading import Trained, no_text, spaces, trained
from ddppo.seeding import stream


def load_policy(
    run: str | Path, checkpoint: str = "last", *, device: str = "cpu", seed: int = 0
) -> "LoadedPolicy":
    """Return the policy of a run folder. checkpoint: last, best, or the path of one; seed: of sampled actions.

    Raises ConfigError for a folder that holds no run, a checkpoint that is none, a task of text or one that cannot be
    made here.
    """
    found = trained(run, checkpoint, device)
    no_text(found, f"load_policy({str(run)!r})")
    return LoadedPolicy(found, seed)


class LoadedPolicy:
    """The policy of a checkpoint with its observation normaliser. Calls do not depend on one another but by `seed`."""

    def __init__(self, of: Trained, seed: int = 0) -> None:
        self.trained = of
        self.observation_space, self.action_space = spaces(of.config.env, of.spec)
        self._encode = RowEncoder(self.observation_space, of.spec)
        self.layout = self._encode.layout
        self._first = space_leaves(self._encode.space)[0]
        self._stream = stream(seed, "action")

    def __call__(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return the action for an observation, or the actions `[n, ...]` for n of them.

        obs: of the task's space, or n at once as a vector environment of Gymnasium hands them over. mask: allowed
        choices `[mask_size]` or `[n, mask_size]`, where the task hands them over in its infos.
        deterministic: the likeliest action, else a sampled one. Raises ValueError for what is of another space.
        """
        n = self._batch_size(obs)
        try:
            if n is None:
                return self._act([obs], [mask], deterministic)[0]
            masks = [None] * n if mask is None else [_row(mask, i) for i in range(n)]
            return self._act([_row(obs, i) for i in range(n)], masks, deterministic)
        except WrongOutput as e:
            raise ValueError(f"the policy was given {e.found}, {e.wanted}") from e

    def _act(self, observations: list[Any], masks: list[Any], deterministic: bool) -> np.ndarray:
        """Return actions `[n, *action_space.shape]`."""
        if self.trained.spec.mask_size is None and any(mask is not None for mask in masks):
            raise ValueError(
                f"the policy was given a mask, and {self.trained.config.env.id} has none: leave it out"
            )
        rows = self.rows(observations, [{} if mask is None else {MASK: mask} for mask in masks])
        obs, mask = self.layout.obs(rows), self.layout.mask(rows)
        policy = self.trained.policy
        actions = policy.act(obs, mask) if deterministic else policy.sample(obs, mask, self._noise(len(rows)))
        return decode_actions(self.action_space, actions)

    def rows(self, observations: list[Any], infos: list[dict[str, Any]]) -> np.ndarray:
        """Return rows `[n]` of `layout`, new ones. Raises WrongOutput for what is of another space."""
        return np.stack([self._encode(obs, info) for obs, info in zip(observations, infos, strict=True)])

    def _noise(self, n: int) -> np.ndarray:
        size = (n, self.trained.policy.model.num_noise)
        is_normal = self.trained.spec.action.kind == "box"
        return self._stream.standard_normal(size) if is_normal else self._stream.random(size)

    def _batch_size(self, obs: Any) -> int | None:
        """Return how many observations these are, None for one by itself."""
        path, space = self._first
        for key in path:
            try:
                obs = obs[key]
            except (KeyError, TypeError, IndexError):
                return None  # which is said where it is read
        shape = np.shape(obs)
        return shape[0] if len(shape) == len(space.shape or ()) + 1 else None


def _row(batch: Any, i: int) -> Any:
    """Return observation, or mask, i of a batch in dicts and tuples of arrays."""
    if isinstance(batch, dict):
        return {key: _row(part, i) for key, part in batch.items()}
    return tuple(_row(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]
