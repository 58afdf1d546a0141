"""Replay: the transitions of earlier iterations, exact for any number of learners, and after a resume.

Each learner keeps a ring of rows for each of its environments. In an iteration all learners draw the same pairs
(environment, row) from one stream of integers, and each takes those of its own environments. A loss is then the sum
over a learner's own samples / n, and the samples are the same for any number of learners.

    add         rows of a rollout go behind the last rows of their environments; autoreset pseudo-steps do not
    batches     draw, and return n-step returns of this learner's samples with their successors
    state       the rows by environment, for a checkpoint; `merged` joins those of all learners, `load` takes a share
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.contract import Step, Transitions
from ddppo.config.replay_settings import ReplaySettings
from ddppo.device import wide_dtype
from ddppo.models.actor_critic import Obs
from ddppo.spaces import each, leaves

_DRAWS = 0  # the number of the stream of integers (Step.stream)


@dataclass(frozen=True, slots=True)
class Batch:
    """This learner's samples among the n of all learners; it has k of them."""

    num_samples: int  # n: what divides the loss
    places: np.ndarray  # [k] ascending, the samples' places among the n
    obs: Obs  # [k, *shape]
    mask: torch.Tensor | None  # [k, mask_size] choices that were allowed; None without masks
    actions: torch.Tensor  # [k, *action.shape]
    returns: torch.Tensor  # [k] sum of gamma^j r_j over the m <= n_step steps that were taken
    discounts: torch.Tensor  # [k] gamma^m; 0 if the episode ended in a terminal state
    next_obs: Obs  # [k, *shape] the observation after these m steps
    next_mask: torch.Tensor | None


class ReplayBuffer:
    """A ring of rows for each environment of this learner.

    Row r of an environment is its r-th valid step of the run, in slot r % C. The successor of a row is the observation
    of the next row, except where an episode ended, where the environment's steps were interrupted, and after the newest
    row: there `_after` holds it.
    """

    def __init__(
        self,
        capacity: int,  # rows of all environments of the run
        gamma: float,
        n_step: int = 1,
    ) -> None:
        self._capacity = capacity
        self._gamma = gamma
        self._num_steps = n_step
        self._size = 0  # C, slots of a ring
        self._envs = np.zeros(
            0, np.int64
        )  # [R] global indices of the environments of this learner, ascending
        self._counts = np.zeros(0, np.int64)  # [R] rows of each environment so far
        # Arrays [R, C, ...].
        self._obs: Any = None
        self._actions = self._masks = torch.empty(0)
        self._rewards = np.zeros(0)
        self._terminated = self._ended = np.zeros(
            0, bool
        )  # ended: the next row continues another sequence of steps
        self._has_masks = False
        self._device = torch.device("cpu")  # of batches; the rows are on the CPU
        # Of each environment: row -> (observation, mask) after it, rows ascending.
        self._after: list[dict[int, tuple[Obs, torch.Tensor | None]]] = []
        self._restored: dict[str, Any] | None = None  # until the first rollout

    # -- Adding.

    def add(self, rollout: Transitions, step: Step) -> int:
        """Store the valid steps of a rollout; return their number over all learners."""
        if not self._size:
            self._allocate(rollout, step)
        columns, follows = step.envs.numpy(), step.share.follows.numpy()
        left = np.arange(len(columns))
        while len(left):  # a second rollout of the same environment comes after its first (async_actors)
            _, first = np.unique(columns[left], return_index=True)
            chosen = left[first]
            self._add(rollout, chosen, np.searchsorted(self._envs, columns[chosen]), follows[chosen])
            left = np.setdiff1d(left, chosen)
        return int(step.sum(float(rollout.valid.sum())).item())

    def _add(
        self,
        rollout: Transitions,
        columns: np.ndarray,  # [E] of the rollout
        rings: np.ndarray,  # [E] to which they are added
        follows: np.ndarray,  # [E] whether the first step comes after the last one that was added
    ) -> None:
        size, starts = self._size, self._counts[rings]
        valid, terminated, truncated, episode_start = (
            x[:, columns].cpu().numpy()
            for x in (rollout.valid, rollout.terminated, rollout.truncated, rollout.episode_start)
        )
        ended = terminated | truncated
        rows = starts + valid.cumsum(axis=0) - 1  # [T, E] of valid steps

        # 1. Where the first step does not continue the newest row, that row keeps the successor that it has.
        newest = (starts - 1) % size
        is_open = (starts > 0) & ~self._ended[rings, newest]
        continues = is_open & follows & valid[0] & ~episode_start[0]
        for ring, row in zip(rings[continues], starts[continues] - 1, strict=True):
            del self._after[ring][row]
        broken = is_open & ~continues
        self._ended[rings[broken], newest[broken]] = True

        # 2. Successors that are not the next row: behind the last row, an interruption, or the end of an episode.
        goes_on = np.zeros_like(valid)
        goes_on[:-1] = valid[1:] & ~episode_start[1:]
        has_own = valid & (ended | ~goes_on)
        finals = self._finals(rollout)
        for place, t in zip(*np.nonzero(has_own.T), strict=True):  # by environment, rows ascending
            column = int(columns[place])
            found = finals.get((int(t), column)) if ended[t, place] else None
            self._after[rings[place]][int(rows[t, place])] = found or _next(rollout, int(t), column)
        is_cut = has_own & ~ended
        is_cut[-1] = False  # the newest row: the next rollout says whether it continues

        # 3. The rows themselves.
        t, place = np.nonzero(valid)
        at = rings[place], rows[t, place] % size
        self._rewards[at] = rollout.rewards.cpu().double().numpy()[t, columns[place]]
        self._terminated[at] = terminated[t, place]
        self._ended[at] = (ended | is_cut)[t, place]
        there, here = _tensors(*at), _tensors(t, columns[place])
        each(lambda to, x: _put(to, there, x, here), self._obs, rollout.obs)
        _put(self._actions, there, rollout.actions, here)
        if self._has_masks:
            assert rollout.action_mask is not None
            _put(self._masks, there, rollout.action_mask, here)

        # 4. Forget the successors of rows that were overwritten.
        self._counts[rings] += valid.sum(axis=0)
        for ring in rings:
            after, oldest = self._after[ring], self._counts[ring] - size
            while after and (row := next(iter(after))) < oldest:
                del after[row]

    @staticmethod
    def _finals(rollout: Transitions) -> dict[tuple[int, int], tuple[Obs, torch.Tensor | None]]:
        """Return the final observations by (row, column). A task says no mask of them: all choices are allowed."""
        assert rollout.ends is not None
        assert rollout.final_obs is not None
        mask = None if rollout.action_mask is None else torch.ones_like(rollout.action_mask[0, 0]).cpu()
        return {
            (t, i): (each(lambda x, k=k: x[k].cpu().clone(), rollout.final_obs), mask)
            for k, (t, i) in enumerate(rollout.ends.tolist())
        }

    def _allocate(self, rollout: Transitions, step: Step) -> None:
        self._envs = np.sort(step.share.envs.numpy())
        self._size, self._device = self._capacity // step.share.run_envs, rollout.rewards.device
        num_steps = len(rollout.rewards)
        assert self._size >= num_steps, (self._capacity, step.share.run_envs, num_steps)
        shape = (len(self._envs), self._size)

        def ring(x: torch.Tensor) -> torch.Tensor:  # memory is taken as rows come
            return torch.zeros(*shape, *x.shape[2:], dtype=x.dtype)

        self._obs, self._actions = each(ring, rollout.obs), ring(rollout.actions)
        self._has_masks = rollout.action_mask is not None
        if rollout.action_mask is not None:
            self._masks = ring(rollout.action_mask)
        self._rewards = np.zeros(shape)
        self._terminated, self._ended = np.zeros(shape, bool), np.zeros(shape, bool)
        self._counts = np.zeros(len(self._envs), np.int64)
        self._after = [{} for _ in self._envs]
        if self._restored is not None:
            self._take(self._restored)
            self._restored = None

    # -- Sampling.

    def receive(
        self, rollout: Transitions, step: Step, kept: Mapping[str, torch.Tensor], settings: ReplaySettings
    ) -> int:
        """Store a rollout; return how many updates are owed now, so that the replay ratio is kept to an integer.

        kept: "num_rows", the rows that owe updates, which this function moves on, and "num_updates", those made. Rows
        that came before the buffer held `learning_starts` owe none.
        """
        num_new = self.add(rollout, step)
        if self.num_stored(step) < settings.learning_starts:
            return 0
        kept["num_rows"].add_(num_new)
        return math.floor(settings.updates_per_step * kept["num_rows"].item()) - int(
            kept["num_updates"].item()
        )

    def num_stored(self, step: Step) -> int:
        """Return the number of rows of all learners."""
        return int(self._sizes_of_all(step).sum())

    def batches(self, step: Step, num_batches: int, batch_size: int) -> Iterator[Batch]:
        """Yield this learner's share of batches of `batch_size` rows, each row of all learners equally likely."""
        sizes = self._sizes_of_all(step)
        ends = sizes.cumsum()
        draws = step.stream(_DRAWS).integers(ends[-1], size=(num_batches, batch_size))
        envs = np.searchsorted(ends, draws, side="right")
        ring_of = np.full(len(sizes), -1)
        ring_of[self._envs] = np.arange(len(self._envs))
        for chosen, drawn in zip(envs, draws, strict=True):
            (places,) = np.nonzero(ring_of[chosen] >= 0)
            own = chosen[places]
            rings, newer = ring_of[own], ends[own] - drawn[places]  # 1 for the newest row
            yield self._batch(batch_size, places, rings, self._counts[rings] - newer)

    def _sizes_of_all(self, step: Step) -> np.ndarray:
        """Return the number of rows stored of every environment of the run `[N]`."""
        sizes = torch.zeros(step.share.run_envs, dtype=torch.float64)
        sizes[torch.from_numpy(self._envs)] = torch.from_numpy(np.minimum(self._counts, self._size)).double()
        return step.sum(sizes).long().numpy()

    def _batch(self, num_samples: int, places: np.ndarray, rings: np.ndarray, rows: np.ndarray) -> Batch:
        returns, discounts, last = self._n_step(rings, rows)
        at, after = _tensors(rings, rows % self._size), _tensors(rings, (last + 1) % self._size)
        next_obs = each(lambda x: x[after], self._obs)
        next_mask = self._masks[after] if self._has_masks else None
        (own,) = np.nonzero(self._ended[rings, last % self._size] | (last == self._counts[rings] - 1))
        if len(own):
            kept, to = [self._after[rings[k]][last[k]] for k in own], torch.from_numpy(own)
            each(lambda all, *x: all.index_copy_(0, to, torch.stack(x)), next_obs, *(obs for obs, _ in kept))
            if next_mask is not None:
                next_mask[to] = torch.stack([mask for _, mask in kept if mask is not None])
        device, wide = self._device, wide_dtype(self._device)
        return Batch(
            num_samples,
            places,
            each(lambda x: x[at].to(device), self._obs),
            self._masks[at].to(device) if self._has_masks else None,
            self._actions[at].to(device),
            torch.from_numpy(returns).to(device, wide),
            torch.from_numpy(discounts).to(device, wide),
            each(lambda x: x.to(device), next_obs),
            None if next_mask is None else next_mask.to(device),
        )

    def _n_step(self, rings: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return R = sum_{j < m} gamma^j r_{t+j}, the factor gamma^m of what follows, and row t + m - 1 `[k]`.

        m <= n_step is the number of steps until the episode ends, or until the newest row (Sutton 1988; Hessel et al.
        2018, arXiv:1710.02298). The factor is 0 after a terminal state: nothing follows. After a time limit it is not.
        """
        newest = self._counts[rings] - 1
        last, returns, discounts = rows.copy(), np.zeros(len(rows)), np.ones(len(rows))
        is_open = np.ones(len(rows), bool)
        for j in range(self._num_steps):
            slots = last % self._size
            returns += np.where(is_open, discounts * self._rewards[rings, slots], 0.0)
            discounts = np.where(is_open, discounts * self._gamma, discounts)
            is_open &= ~self._ended[rings, slots] & (last < newest)
            if j < self._num_steps - 1:
                last += is_open
        return returns, discounts * ~self._terminated[rings, last % self._size], last

    # -- Checkpoints.

    def state(self) -> dict[str, torch.Tensor]:
        """Return the rows of this learner's environments as tensors, environment after environment, oldest first."""
        if not self._size:
            return {}
        sizes = np.minimum(self._counts, self._size)
        rings = np.repeat(np.arange(len(sizes)), sizes)
        rows = np.concatenate(
            [np.arange(count - n, count) for count, n in zip(self._counts, sizes, strict=True)]
        )
        slots = rows % self._size
        at = _tensors(rings, slots)
        found = {
            "envs": torch.from_numpy(self._envs.copy()),
            "counts": torch.from_numpy(self._counts.copy()),
            "sizes": torch.from_numpy(sizes),
            "actions": self._actions[at],
            "rewards": torch.from_numpy(self._rewards[rings, slots]),
            "terminated": torch.from_numpy(self._terminated[rings, slots]),
            "ended": torch.from_numpy(self._ended[rings, slots]),
            "after_rows": torch.tensor([row for after in self._after for row in after], dtype=torch.int64),
            "after_sizes": torch.tensor([len(after) for after in self._after]),
        }
        found |= _named("obs", each(lambda x: x[at], self._obs))
        kept = [kept for after in self._after for kept in after.values()]
        found |= _named("after_obs", each(lambda *x: torch.stack(x), *(obs for obs, _ in kept)))
        if self._has_masks:
            found |= {
                "masks": self._masks[at],
                "after_masks": torch.stack([m for _, m in kept if m is not None]),
            }
        return found

    @staticmethod
    def merged(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return the states of all learners as one, environments ascending."""
        states = sorted((state for state in states if state), key=lambda state: int(state["envs"][0]))
        return {name: torch.cat([state[name] for state in states]) for name in states[0]} if states else {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begin with the rows of this learner's environments in a state of all learners."""
        self._restored, self._size = dict(state), 0

    def _take(self, state: Mapping[str, torch.Tensor]) -> None:
        if not state:
            return
        envs, counts, sizes, after_sizes = (
            state[name].numpy() for name in ("envs", "counts", "sizes", "after_sizes")
        )
        first, first_after = sizes.cumsum() - sizes, after_sizes.cumsum() - after_sizes
        for place, env in enumerate(envs):
            (found,) = np.nonzero(self._envs == env)
            if not len(found):
                continue
            ring, count = int(found[0]), int(counts[place])
            num_rows = int(sizes[place])
            part = slice(first[place], first[place] + num_rows)
            slots = np.arange(count - num_rows, count) % self._size
            at = _tensors(np.full(num_rows, ring), slots)
            for own, saved in zip(leaves(self._obs), _of(state, "obs"), strict=True):
                own[at] = saved[part]
            self._actions[at] = state["actions"][part]
            if self._has_masks:
                self._masks[at] = state["masks"][part]
            self._rewards[ring, slots] = state["rewards"][part].numpy()
            self._terminated[ring, slots] = state["terminated"][part].numpy()
            self._ended[ring, slots] = state["ended"][part].numpy()
            self._counts[ring] = count
            for k in range(first_after[place], first_after[place] + after_sizes[place]):
                row = int(state["after_rows"][k])
                if row >= count - num_rows:
                    saved_obs = [x[k].clone() for x in _of(state, "after_obs")]
                    obs = (
                        dict(zip(self._obs, saved_obs, strict=True))
                        if isinstance(self._obs, dict)
                        else saved_obs[0]
                    )
                    self._after[ring][row] = obs, state["after_masks"][k].clone() if self._has_masks else None


def _next(rollout: Transitions, t: int, column: int) -> tuple[Obs, torch.Tensor | None]:
    """Return the observation that came with step t, and its mask: row t + 1 of the rollout, or what follows it."""
    is_last = t + 1 == len(rollout.rewards)
    obs, mask = (rollout.last_obs, rollout.last_mask) if is_last else (rollout.obs, rollout.action_mask)
    assert obs is not None, "the algorithm has needs_successors=False"
    at = column if is_last else (t + 1, column)
    return each(lambda x: x[at].cpu().clone(), obs), None if mask is None else mask[at].cpu().clone()


def _tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))


def _put(
    to: torch.Tensor, there: tuple[torch.Tensor, ...], x: torch.Tensor, here: tuple[torch.Tensor, ...]
) -> None:
    to[there] = x.cpu()[here]


def _named(name: str, obs: Obs) -> dict[str, torch.Tensor]:
    """Return the arrays of observations as one dict: obs.0, obs.1, ..."""
    return {f"{name}.{k}": x for k, x in enumerate(leaves(obs))}


def _of(state: Mapping[str, torch.Tensor], name: str) -> list[torch.Tensor]:
    return [x for key, x in state.items() if key.startswith(f"{name}.")]
