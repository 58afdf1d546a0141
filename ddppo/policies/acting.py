"""A trained policy for use in any program: from the task's own observations to the task's own actions.

policy = load_policy("outputs/cartpole/<stamp>", checkpoint="best")
obs, info = env.reset()
policy.reset()
obs, reward, terminated, truncated, info = env.step(policy(obs))

Training works on rows of numbers; a task has spaces of Gymnasium. `LoadedPolicy` encodes an observation as a row, as
training does, runs the model, and decodes its action.
"""

import os
from typing import Any

import numpy as np

from ddppo.envs.encoding.gym_spaces import MASK, decode_actions, space_leaves
from ddppo.envs.encoding.observations import RowEncoder, WrongOutput
from ddppo.envs.registration import numbered
from ddppo.loop.evaluation import PolicyMemory, evaluator_of
from ddppo.plugins import imported
from ddppo.policies.loading import Trained, spaces, trained
from ddppo.seeding import stream


def load_policy(
    run: str | os.PathLike[str],
    checkpoint: str = "last",
    *,
    device: str = "cpu",
    seed: int = 0,
    other_spaces: bool = False,
) -> "LoadedPolicy":
    """Return the policy of a run.

    Args:
        run: the run folder, or what ddppo.train returned.
        checkpoint: last, best, or the path of a checkpoint.
        device: for the model.
        seed: for sampled actions.
        other_spaces: load the policy even if the task's spaces differ from those in training.

    For a task of text it is a ddppo.domains.text.playing.TextPolicy. Raises ConfigError if `run` is no run folder, if
    there is no such checkpoint, if the task cannot be made here, or if its spaces differ.
    """
    found = trained(os.fspath(run), checkpoint, device, other_spaces=other_spaces)
    kind: type[LoadedPolicy] = imported(evaluator_of(found.spec).policy_class or f"{__name__}:LoadedPolicy")
    return kind(found, seed)


class LoadedPolicy:
    """The policy of a checkpoint, with its observation normaliser.

    A model with memory keeps its state from one call to the next: call `reset` at the start of every episode. Without
    memory, calls are independent, except that sampled actions use up one stream of random numbers.
    """

    def __init__(self, trained: Trained, seed: int = 0) -> None:
        self.trained = trained
        self.observation_space, self.action_space = spaces(trained.config.env, trained.spec)
        self._encode = RowEncoder(self.observation_space, trained.spec)
        self.layout = self._encode.layout
        # The first array in an observation: its number of dimensions tells a batch from a single observation.
        self._first = space_leaves(self._encode.space)[0]
        self._stream = stream(seed, "action")
        self._remembered: PolicyMemory | None = None

    def __call__(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return the action for one observation, or the actions `[n, ...]` for n observations.

        Args:
            obs: an observation of the task's space, or a batch of n as Gymnasium's vector environments return it.
            mask: allowed choices, `[mask_size]` or `[n, mask_size]`, if the task has masks in its infos.
            deterministic: return the likeliest action, rather than sample one.

        Raises ValueError if `obs` is not of the task's space.
        """
        # A single observation is a batch of one.
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
        """Clear the memory, since the next observations begin episodes; a model without memory ignores it.

        starts: bool `[n]`, the environments of the batch in which episodes begin; None for all. Raises ValueError if
        the last batch had another size.
        """
        if starts is None:
            self._remembered = None
        elif self._remembered is not None:
            where = np.asarray(starts, bool)
            self._check_size(where.size, "told where episodes start in")
            self._remembered.forget(where)

    def _memory(self, n: int) -> PolicyMemory | None:
        """Return the state of n environments, or None for a model without memory."""
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
        # Encode, run the model, decode.
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
        """Encode observations as new rows `[n]` of `layout`. Raises WrongOutput if one is not of the task's space."""
        return np.stack([self._encode(obs, info) for obs, info in zip(observations, infos, strict=True)])

    def _batch_size(self, obs: Any) -> int | None:
        """Return the number of observations in a batch, None for a single observation."""
        # One dimension more than the space has means a batch.
        path, space = self._first
        for key in path:
            try:
                obs = obs[key]
            except (KeyError, TypeError, IndexError):
                return None  # not of the space: encoding it raises the error
        shape = np.shape(obs)
        return shape[0] if len(shape) == len(space.shape or ()) + 1 else None


def _row(batch: Any, i: int) -> Any:
    """Return observation (or mask) i of a batch, which is an array or dicts and tuples of arrays."""
    if isinstance(batch, dict):
        return {key: _row(part, i) for key, part in batch.items()}
    # A tuple of texts is a batch of texts.
    is_tuple = isinstance(batch, tuple) and not isinstance(batch[0], str)
    return tuple(_row(part, i) for part in batch) if is_tuple else batch[i]
