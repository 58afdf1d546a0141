"""Try `learn` on random rollouts before a run: by one learner, and by two that share the environments.

Two learners must compute the gradient of one. A loss that is a mean over a learner's own samples, or advantages that
are normalised by its own moments, give another gradient: results would depend on the number of ranks.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ddppo.algorithms.contract import Acted, Algorithm
from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.collectives.group import Group
from ddppo.errors import NonFiniteError
from ddppo.models.actor_critic import ActorCritic, Obs, random_obs
from ddppo.ppo.learner import GradientSync, Normalizers
from ddppo.ppo.rollout import Transitions
from ddppo.scaling import BatchShape
from ddppo.spaces import each

if TYPE_CHECKING:
    from ddppo.algorithms.trial import AlgorithmTrial

MakeSync = Callable[[ActorCritic], GradientSync]  # of one learner

_MAX_ROWS, _MAX_NUMBERS = 2048, 2**20  # steps of the tried rollout, and numbers in their observations
_MAX_ROLLOUTS = 300  # an algorithm that replays waits until it has enough rows
_MAX_STEPS, _MAX_MOVED = 100, 2**24  # steps of a trial, and numbers that they move
_END_SHARE = 0.15  # share of the steps of a tried rollout in which an episode ends
_OTHER_GRADIENT = 1e-3  # difference between gradients of one and of two learners, relative to their norm


class LearningTrial:
    """Lets an algorithm learn that has acted in `trial`."""

    def __init__(self, trial: "AlgorithmTrial", make_sync: MakeSync) -> None:
        self.trial = trial
        self.kind = trial.kind
        self.make_sync = make_sync
        most = min(_MAX_ROWS, max(16, _MAX_NUMBERS // max(1, trial.spec.obs_size)))
        self.num_envs = min(trial.shape.num_envs, 8)
        if self.kind.hands_over == "groups":
            self.num_envs = max(1, trial.settings.group_size)
        # A divisor of rollout_steps, for an algorithm may cut the steps into equal sequences.
        steps = trial.shape.rollout_steps
        longest = max(1, min(steps, most // self.num_envs))
        self.num_steps = max(n for n in range(1, longest + 1) if steps % n == 0)
        self.rollouts: list[Transitions] = []  # learned from in turn
        self.num_rollouts = 0  # until the first step was made
        self._where = f" for a rollout of {self.num_steps} steps of {self.num_envs} environments:"

    def check(self) -> list[str]:
        """Learn until a step was made. Returns a warning if two learners learn otherwise. Raises ConfigError."""
        alone = _Recording()
        self._learn(self.trial.algorithm, alone)
        if self.num_envs < 2 or not alone.gradients:
            return []
        return self._check_sharing(alone.gradients)

    def _learn(self, algorithm: Algorithm, group: Group) -> None:
        learner = self._learner(algorithm, group)
        kept = dict(algorithm.kept)
        self.rollouts = [self._rollout() for _ in range(2)]
        for iteration in range(1, _MAX_ROLLOUTS + 1):
            self.num_rollouts = iteration
            try:
                num_steps = self.trial.call("learn", partial(self._update, learner, iteration), self._where)
            except NonFiniteError as e:
                what = "a loss" if str(e).startswith("the loss") else "a gradient or parameter"
                raise self.trial.fails(
                    "learn", f"computes {what} that is not finite, from random rollouts"
                ) from e
            now = algorithm.kept
            if now.keys() != kept.keys() or any(now[name] is not x for name, x in kept.items()):
                raise self.trial.fails(
                    "learn", "replaces tensors in kept: change them in place, as self.kept['x'].copy_(y)"
                )
            if num_steps:
                return

    def _update(self, learner: AlgorithmLearner, iteration: int, envs: slice | None = None) -> int:
        """Learn from one of the rollouts, or from some of its environments; return the number of steps made."""
        rollout = self.rollouts[iteration % len(self.rollouts)]
        try:
            return learner.update(rollout if envs is None else _columns(rollout, envs), iteration, 0.0).steps
        except _Enough:
            return learner.step.num_steps + 1

    def _learner(self, algorithm: Algorithm, group: Group) -> AlgorithmLearner:
        trial, num_learners = self.trial, group.world_size
        shape = BatchShape(
            self.num_envs, self.num_steps, num_learners, trial.shape.num_minibatches, trial.shape.num_epochs
        )
        return AlgorithmLearner(
            algorithm, trial.settings, shape, self.make_sync(algorithm.model), group, Normalizers(), seed=0
        )

    # -- Two learners.

    def _check_sharing(self, alone: list[tuple[int, torch.Tensor]]) -> list[str]:
        """Compare the first gradient of each part with that of two learners. Returns a warning."""
        subject = f"{self.trial.subject}: {self.kind.__name__}.learn"
        together = self._by_two()
        remedy = (
            "so that results depend on dist.world_size: give step the sum of this learner's losses and their count "
            "over all learners, and use step.sum, step.normalized and step.minibatches"
        )
        if len(together) != len(alone):
            return [
                f"{subject} makes {len(together)} steps with two learners and {len(alone)} with one, {remedy}"
            ]
        seen: set[int] = set()
        for (size, gradient), (_, shared) in zip(alone, together, strict=True):
            if size in seen:
                continue
            seen.add(size)
            off = (gradient - shared).norm() / gradient.norm().clamp(min=1e-12)
            if off > _OTHER_GRADIENT:
                return [f"{subject} computes another gradient with two learners than with one, {remedy}"]
        return []

    def _by_two(self) -> list[tuple[int, torch.Tensor]]:
        """Let two threads share the environments and learn; return the gradients of all steps."""
        shared = _Shared()
        algorithms = [self.trial.made() for _ in range(2)]  # with the same initial parameters
        errors: list[BaseException | None] = [None, None]

        def learn(rank: int) -> None:
            try:
                learner = self._learner(algorithms[rank], shared.groups[rank])
                own = learner.shape.env_indices(rank)  # as in a run, the first one has more if they are odd
                for iteration in range(1, self.num_rollouts + 1):
                    self._update(learner, iteration, slice(own.start, own.stop))
            except (Exception, _OtherCalls) as e:
                errors[rank] = e
            finally:
                shared.end(rank)

        threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # An error of one learner is the cause of the other calls of the other.
        for error in errors:
            if isinstance(error, Exception):
                self.trial.call("learn", partial(_raise, error), " on one of two learners:")
        if any(errors):
            raise self.trial.fails(
                "learn",
                "makes other calls of step on one of two learners: every learner makes the same calls",
            )
        return shared.groups[0].gradients

    # -- Random rollouts.

    def _rollout(self) -> Transitions:
        """Return a random rollout, acted by the algorithm row by row."""
        trial, steps, envs = self.trial, self.num_steps, self.num_envs
        obs = random_obs(trial.spec, (steps + 1) * envs, trial.dtype, trial.generator)
        obs = each(lambda x: x.unflatten(0, (steps + 1, envs)), obs)
        mask = trial.mask((steps + 1) * envs)
        mask = None if mask is None else mask.unflatten(0, (steps + 1, envs))
        terminated, truncated, valid = self._flags()
        ended = terminated | truncated
        starts = torch.ones_like(valid)
        starts[1:] = (ended | ~valid)[:-1]
        # Act on each row, with memory that is 0 where an episode starts.
        rows: list[Acted] = []
        memory = None
        for t in range(steps):
            _, _, noise, blank = trial.inputs(envs)
            if blank is not None:
                memory = blank if memory is None else memory.masked_fill(starts[t].unsqueeze(1), 0)
            row = each(lambda x, t=t: x[t], obs)
            rows.append(trial.acted(row, None if mask is None else mask[t], noise, memory))
            memory = rows[-1].memory
        return Transitions(
            obs=each(lambda x: x[:-1], obs),
            actions=torch.stack([row.actions for row in rows]).clone(),
            rewards=torch.randn(steps, envs, dtype=torch.float64, generator=trial.generator),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            episode_start=starts & valid,
            action_mask=None if mask is None else mask[:-1],
            raw_obs=each(lambda x: x[:-1], obs),
            extras={name: torch.stack([row.extras[name] for row in rows]) for name in rows[0].extras},
            **self._successors(obs, mask, ended),
        )

    def _flags(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return terminated, truncated and valid `[T, E]`: ends at random, or one whole episode of each environment."""
        steps, envs, generator = self.num_steps, self.num_envs, self.trial.generator

        def drawn() -> torch.Tensor:
            return torch.rand(steps, envs, generator=generator)

        if self.kind.hands_over == "steps":
            ended = drawn() < _END_SHARE
            valid = torch.ones_like(ended)
            valid[1:] = ~(ended[:-1] & (drawn()[1:] < 0.5))  # autoreset pseudo-steps
            ended &= valid
        else:
            last = torch.randint(steps // 2, steps, (envs,), generator=generator)
            row = torch.arange(steps).unsqueeze(1)
            ended, valid = row == last, row <= last
        terminated = ended & (drawn() < 0.5)
        return terminated, ended & ~terminated, valid

    def _successors(self, obs: Obs, mask: torch.Tensor | None, ended: torch.Tensor) -> dict[str, Any]:
        if not self.kind.needs_successors:
            return {}
        trial, ends = self.trial, ended.nonzero()
        return {
            "last_obs": each(lambda x: x[-1].clone(), obs),
            "last_mask": None if mask is None else mask[-1],
            "final_obs": random_obs(trial.spec, len(ends), trial.dtype, trial.generator),
            "ends": ends,
        }


def _columns(rollout: Transitions, envs: slice) -> Transitions:
    """Return the part of a rollout of some environments."""

    def of(x: Any) -> Any:
        return None if x is None else each(lambda part: part[:, envs].clone(), x)

    names = (
        "obs",
        "actions",
        "rewards",
        "terminated",
        "truncated",
        "valid",
        "episode_start",
        "action_mask",
        "raw_obs",
    )
    found: dict[str, Any] = {name: of(getattr(rollout, name)) for name in names}
    found["extras"] = {name: of(x) for name, x in rollout.extras.items()}
    if rollout.ends is not None:
        own = (rollout.ends[:, 1] >= envs.start) & (rollout.ends[:, 1] < envs.stop)
        found["ends"] = rollout.ends[own] - torch.tensor([0, envs.start])
        found["final_obs"] = each(lambda x: x[own], rollout.final_obs)
        found["last_obs"] = each(lambda x: x[envs], rollout.last_obs)
        found["last_mask"] = None if rollout.last_mask is None else rollout.last_mask[envs]
    return replace(rollout, **found)


# -- Groups of threads.


class _Recording(Group):
    """Keeps for each sum of a gradient its size, and the gradient if it is the first of that size."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[tuple[int, torch.Tensor]] = []

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes = {size for size, _ in self.gradients}
        self.gradients.append((tensor.numel(), torch.empty(0) if tensor.numel() in sizes else tensor.clone()))
        if len(self.gradients) >= min(_MAX_STEPS, max(8, _MAX_MOVED // tensor.numel())):
            raise _Enough
        return tensor


class _Enough(BaseException):
    """Ends a trial after so many steps: no `except Exception` of an algorithm catches it."""


class _OtherCalls(BaseException):
    """Ends a learner if the other one makes another call, or has ended: no `except Exception` catches it."""


class _Shared:
    """Where two threads meet in each call, however long one of them computes."""

    def __init__(self) -> None:
        self.groups = [_OfThreads(self, rank) for rank in range(2)]
        self._changed = threading.Condition()
        self._calls = [0, 0]  # of each thread so far
        self._has_ended = [False, False]
        # What each thread gave in its last two calls: it may be one call ahead of a thread that is yet to read.
        self._given: list[list[Any]] = [[None, None], [None, None]]

    def end(self, rank: int) -> None:
        """Say that this thread makes no further call."""
        with self._changed:
            self._has_ended[rank] = True
            self._changed.notify_all()

    def exchange(self, rank: int, given: Any) -> list[Any]:
        """Return what both threads give in their n-th call. Raises _OtherCalls if the other one ends before."""
        other = 1 - rank
        with self._changed:
            number = self._calls[rank]
            self._given[rank][number % 2] = given
            self._calls[rank] += 1
            self._changed.notify_all()
            # No limit of time: the other one calls, ends, or computes.
            self._changed.wait_for(lambda: self._calls[other] > number or self._has_ended[other])
            if self._calls[other] <= number:
                raise _OtherCalls
            return [each_given[number % 2] for each_given in self._given]


class _OfThreads(_Recording):
    """The group of two learners that are threads of this process."""

    world_size = 2
    members = (0, 1)

    def __init__(self, shared: _Shared, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self._shared = shared

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._of_both("gather", values))

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        a, b = self._of_both("sum", tensor)
        return super().sum_(tensor.copy_(a + b))

    def _of_both(self, what: str, x: torch.Tensor) -> list[torch.Tensor]:
        """Return x of both learners. Raises _OtherCalls if they make different calls."""
        (a, first), (b, second) = self._shared.exchange(self.rank, (what, x.clone()))
        if (a, first.shape, first.dtype) != (b, second.shape, second.dtype):
            raise _OtherCalls
        return [first, second]


def _raise(error: BaseException) -> None:
    raise error
