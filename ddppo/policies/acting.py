"""A trained policy as any program uses it: observations as the task hands them over, actions as it takes them.

policy = load_policy("outputs/cartpole/<stamp>", checkpoint="best")
obs, info = env.reset()
policy.reset()
obs, reward, terminated, truncated, info = env.step(policy(obs))
"""

from pathlib import Path
from typing import Any

import numpy as np

from ddppo.envs.encoding.gym_spaces import MASK, decode_actions, space_leaves
from ddppo.envs.encoding.observations import RowEncoder, WrongOutput
from ddppo.envs.registration import numbered
from ddppo.loop.evaluation import Remembered
from ddppo.policies.loading import Trained, no_text, spaces, trained
from ddppo.seeding import stream


def load_policy(
    run: str | Path,
    checkpoint: str = "last",
    *,
    device: str = "cpu",
    seed: int = 0,
    other_spaces: bool = False,
) -> "LoadedPolicy":
    """Return the policy of a run folder. checkpoint: last, best, or the path of one; seed: of sampled actions.

    Raises ConfigError for a folder that holds no run, a checkpoint that is none, a task of text or one that cannot be
    made here, or (unless other_spaces) one with other spaces than the policy was trained on.
    """
    found = trained(run, checkpoint, device, other_spaces=other_spaces)
    no_text(found, f"load_policy({str(run)!r})")
    return LoadedPolicy(found, seed)


class LoadedPolicy:
    """The policy of a checkpoint with its observation normaliser.

    Calls do not depend on one another but by `seed`, and by what a model with memory remembers from one to the next:
    it is to be told by `reset` where episodes start.
    """

    def __init__(self, of: Trained, seed: int = 0) -> None:
        self.trained = of
        self.observation_space, self.action_space = spaces(of.config.env, of.spec)
        self._encode = RowEncoder(self.observation_space, of.spec)
        self.layout = self._encode.layout
        self._first = space_leaves(self._encode.space)[0]
        self._stream = stream(seed, "action")
        self._remembered: Remembered | None = None

    def __call__(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return the action for an observation, or the actions `[n, ...]` for n of them.

        obs: of the task's space, or n at once as a vector environment of Gymnasium hands them over. mask: allowed
        choices `[mask_size]` or `[n, mask_size]`, where the task hands them over in its infos.
        deterministic: the likeliest action, else a sampled one. Raises ValueError for what is of another space.
        """
        n = self._batch_size(obs)
        try:
            if n is None:
                return self._act([numbered(self.observation_space, obs)], [mask], deterministic)[0]
            masks = [None] * n if mask is None else [_row(mask, i) for i in range(n)]
            observations = [numbered(self.observation_space, _row(obs, i)) for i in range(n)]
            return self._act(observations, masks, deterministic)
        except WrongOutput as e:
            raise ValueError(f"the policy was given {e.found}, {e.wanted}") from e

    def reset(self, starts: Any = None) -> None:
        """Forget all, or of a batch where `starts` `[n]` bool is true: the next observations begin episodes there.

        Without memory there is nothing to forget. Raises ValueError where the batch of the last call had another size.
        """
        if starts is None:
            self._remembered = None
        elif self._remembered is not None:
            where = np.asarray(starts, bool)
            self._check_size(where.size, "told where episodes start in")
            self._remembered.forget(where)

    def _memory(self, n: int) -> Remembered | None:
        """Return what is remembered of n environments."""
        if self._remembered is None:
            self._remembered = self.trained.policy.memory(n)
        else:
            self._check_size(n, "given observations of")
        return self._remembered

    def _check_size(self, n: int, what: str) -> None:
        assert self._remembered is not None
        if n != (known := len(self._remembered.state)):
            raise ValueError(
                f"the policy remembers {known} environments and was {what} {n}: call reset() before others are played"
            )

    def _act(self, observations: list[Any], masks: list[Any], deterministic: bool) -> np.ndarray:
        """Return actions `[n, *action_space.shape]`."""
        if self.trained.spec.mask_size is None and any(mask is not None for mask in masks):
            raise ValueError(
                f"the policy was given a mask, and {self.trained.config.env.id} has none: leave it out"
            )
        rows = self.rows(observations, [{} if mask is None else {MASK: mask} for mask in masks])
        obs, mask = self.layout.obs(rows), self.layout.mask(rows)
        policy = self.trained.policy
        known = self._memory(len(rows))
        if deterministic:
            actions = policy.act(obs, mask, known)
        else:
            actions = policy.sample(obs, mask, policy.noise([self._stream] * len(rows)), known)
        return decode_actions(self.action_space, actions)

    def rows(self, observations: list[Any], infos: list[dict[str, Any]]) -> np.ndarray:
        """Return rows `[n]` of `layout`, new ones. Raises WrongOutput for what is of another space."""
        return np.stack([self._encode(obs, info) for obs, info in zip(observations, infos, strict=True)])

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
    is_tuple = isinstance(batch, tuple) and not isinstance(batch[0], str)  # of texts a batch is a tuple too
    return tuple(_row(part, i) for part in batch) if is_tuple else batch[i]
