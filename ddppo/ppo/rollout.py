"""What a rank collected in one iteration: `Transitions` or PPO's `Rollout`, and the state kept between rollouts.

All tensors are time-major: T = rollout_steps rows, E = local_num_envs columns. This file is the one place that says
their shapes.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ddppo.errors import TrainingError
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.spaces import each

# Why an episode ended, by one word: in records, in metrics, and by its place here in `Transitions.ended_by`.
ENDS = (
    "terminated",  # by the task
    "time_limit",  # truncated by the task
    "max_turns",  # cut: env.max_turns turns are played
    "tokens",  # cut: all of rollout_steps are used; a turn that is cut short is not played
    "prompt",  # cut: a prompt or answer does not fit into the tokens that are left
    "failed",  # the environment raised an error, or was lost
)
CUTS = ("max_turns", "tokens", "prompt")  # by the limits of training, and not by the task


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """T steps of E environments, as any algorithm learns from them. The next rollout reuses the tensors."""

    obs: Obs  # [T, E, *shape] as the policy saw them: normalised, with normalize_obs=true
    actions: torch.Tensor  # [T, E, *action.shape]
    rewards: torch.Tensor  # [T, E] in the type of the parameters; float64 if whole episodes are collected
    terminated: torch.Tensor  # [T, E] bool: the episode ended in a terminal state, which has no value
    truncated: torch.Tensor  # [T, E] bool: the episode was cut, by a time limit for example
    # [T, E] bool: False on autoreset pseudo-steps, which are never learned from or counted.
    valid: torch.Tensor
    episode_start: torch.Tensor  # [T, E] bool: the first step of an episode
    action_mask: torch.Tensor | None  # [T, E, mask_size] bool; None without masks
    raw_obs: Obs  # [T, E, *shape] as the task returned them; shares memory with obs if the two are equal
    # [E] of whole episodes: 1 or 0, whether the goal was achieved; NaN if unknown. None if the task never says.
    achieved: torch.Tensor | None = None
    ended_by: torch.Tensor | None = None  # [E] int8 of whole episodes: place in ENDS
    extras: dict[str, torch.Tensor] = field(default_factory=dict)  # [T, E, ...] that `Algorithm.act` recorded
    # Successors, for an algorithm that needs them, else None. The successor of step (t, i) is obs[t + 1, i], or
    # last_obs[i] after the last row; where an episode ended it is the final observation of that episode.
    last_obs: Obs | None = None  # [E, *shape]
    last_mask: torch.Tensor | None = None  # [E, mask_size] of last_obs
    final_obs: Obs | None = None  # [n, *shape] final observations, in the order of `ends`
    ends: torch.Tensor | None = None  # [n, 2] int64: rows and columns of the steps in which episodes ended

    def successors(self) -> Obs:
        """Return the true successor of every step `[T, E, *shape]`.

        Raises TrainingError unless the algorithm needs them (`Algorithm.needs_successors`).
        """
        if self.last_obs is None:
            raise TrainingError(
                "rollout.successors() has none, for successors travel with a rollout only if the algorithm needs them: "
                "add needs_successors = True to its class"
            )
        assert self.final_obs is not None
        assert self.ends is not None
        ends = self.ends

        def of(obs: torch.Tensor, last: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
            found = torch.cat([obs[1:], last.unsqueeze(0)])
            found[ends[:, 0], ends[:, 1]] = final
            return found

        return each(of, self.obs, self.last_obs, self.final_obs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Transitions):
    """What PPO and GRPO learn from: transitions, with the policy's probabilities and values of states."""

    logprobs: torch.Tensor  # [T, E] log pi(action), by the policy that acted
    values: torch.Tensor  # [T, E] V(obs)
    # [T, E] V of the true successor: of the final observation where an episode ended.
    next_values: torch.Tensor
    # [T, E] pi(a) / mu(a) if an older policy mu acted, and logprobs and values are those of pi; None if pi acted.
    ratios: torch.Tensor | None = None
    # [C, E, S] state of a model with memory before rows 0, T / C, 2 T / C, ...; None without memory.
    state: torch.Tensor | None = None
    is_full: bool = False  # known: all rows are valid, so that a device need not be asked which
    # Text: obs and actions are tokens, row l describes the choice of token l + 1, and valid rows are those that the
    # policy chose. Then rows that are not valid lie within an episode.
    has_gaps: bool = False


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A training episode that ended in this rollout."""

    step: int  # row of its last step
    env_index: int  # global index of its environment
    episode_return: float  # undiscounted sum of its rewards
    length: int  # steps


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """A whole episode of an iteration, in plain values. Collectors of whole episodes return them by `outcomes()`."""

    env_index: int  # global index of its environment
    ended_by: str  # one of ENDS; an episode that "failed" counts in no metric
    length: int  # tokens that the policy typed
    num_turns: int  # of the policy, as far as they were played
    num_tool_failures: int | None = None  # turns with a failed tool or no action; None if none is known
    reward_parts: Mapping[str, float] = field(default_factory=dict)  # sums over the episode, by name


def outcome_metrics(outcomes: Sequence[EpisodeOutcome], group_size: int = 1) -> dict[str, float]:
    """Return metrics of the episodes of all ranks, without those that failed.

    group_size: environments of a group, which share a task; 1 without groups.
    """
    of = [outcome for outcome in outcomes if outcome.ended_by != "failed"]
    if not of:
        return {}
    lengths = [outcome.length for outcome in of]
    found = {
        "rollout/truncated": sum(outcome.ended_by in CUTS for outcome in of) / len(of),
        "rollout/tokens_min": float(min(lengths)),
        "rollout/tokens_mean": sum(lengths) / len(of),
        "rollout/tokens_max": float(max(lengths)),
        "rollout/turns_mean": sum(outcome.num_turns for outcome in of) / len(of),
    }
    ends = Counter(outcome.ended_by for outcome in of)
    found |= {f"rollout/ended_by_{word}": ends[word] / len(of) for word in ENDS if word != "failed"}
    # A turn without an action is a failure also in an episode, or a task, that never says whether a tool failed.
    num_turns = sum(o.num_turns for o in of)
    if num_turns and any(o.num_tool_failures is not None for o in of):
        found["rollout/tool_failures"] = sum(o.num_tool_failures or 0 for o in of) / num_turns
    # The parts of the reward: mean over episodes, and deviation within groups. Tasks may have other parts each; an
    # episode without any part, as one in which the policy never acted, counts 0 for each of them.
    for name in sorted({name for o in of for name in o.reward_parts}):
        told = [o for o in of if name in o.reward_parts or not o.reward_parts]
        values = np.array([o.reward_parts.get(name, 0.0) for o in told])
        found[f"reward/{name}"] = values.mean().item()
        if group_size > 1:
            groups = np.array([o.env_index // group_size for o in told])
            stds = [values[groups == group].std() for group in np.unique(groups)]
            found[f"reward/{name}_std"] = np.mean(stds).item()
    return found


class RolloutCollector(Protocol):
    """Acts in the environments of a rank: `Collector`, or a class that `ActorCritic.collector_class` names.

    A class of a model's own also has `make(context: RankContext)`, which makes the environments and returns the
    collector, and `check(config, shape)`, which raises ConfigError before a run begins, as `check_task(config, spec)`
    does if there is one. For distributed=env_workers it
    has `over_ranks(context)`. On rank 0 this returns a collector that acts in the environments of the other ranks; its
    `env` has `release()`. On the other ranks it returns an `EnvServer` (ddppo/distributed/topologies/env_workers.py).
    """

    first_env: int  # global index of the first environment

    @property
    def env(self) -> Any:
        """The environments; they have `close()`."""

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start an episode in every environment, each from its own seed and with its own options, if any."""
        ...

    def collect(self, noise: Any) -> tuple[Transitions, list[FinishedEpisode]]:
        """Act with noise `[T, E, num_noise]`; return the rollout and the episodes that ended in it. Raises EnvError.

        noise: an array, or a tensor for environments on a device (`DeviceCollector`).
        """
        ...

    def measured(self) -> dict[str, float]:
        """Return measurements of the last `collect`, by the names of TOPOLOGY_METRICS."""
        ...

    # A collector of whole episodes may also have `outcomes() -> list[EpisodeOutcome]`, of the last `collect`.


class OwnWriter(Protocol):
    """Records rollouts in the run folder: a class that `ActorCritic.rollout_writer_class` names.

    It is made on every rank as `Class(context, run_dir, iteration, env_steps)`, and goes on after this iteration.
    """

    def write(self, iteration: int) -> None:
        """Record rollouts of the iteration just collected and learned from. All ranks call it. Raises StorageError."""
        ...


# -- Returns and lengths of training episodes.


def count_(
    returns: np.ndarray,  # [E] of the episodes under way: before the rollout, and when this function returns after it
    lengths: np.ndarray,  # [E] likewise
    rewards: np.ndarray,  # [T, E]
    valid: np.ndarray,  # [T, E]
    ends: list[tuple[int, int]],  # (row, environment) of every end, in this order
    first_env: int,
) -> list[FinishedEpisode]:
    """Return the episodes that ended in a rollout, in the order of `ends`."""
    rewards = np.where(valid, rewards, 0.0)
    first_rows = np.zeros(len(returns), dtype=np.int64)  # of the episodes under way
    episodes: list[FinishedEpisode] = []
    for t, i in ends:
        rows = slice(first_rows[i], t + 1)
        episode_return = float(returns[i] + rewards[rows, i].sum())
        length = int(lengths[i] + valid[rows, i].sum())
        episodes.append(FinishedEpisode(t, first_env + i, episode_return, length))
        returns[i], lengths[i], first_rows[i] = 0.0, 0, t + 1
    is_under_way = np.arange(len(rewards))[:, None] >= first_rows
    # Row after row, by cumsum: NumPy's sum adds in another order if there is only one environment.
    returns += (rewards * is_under_way).cumsum(axis=0)[-1:].sum(axis=0)
    lengths += (valid & is_under_way).sum(axis=0)
    return episodes


# -- Ending a rollout early (distributed=ddp_preempt).


@dataclass(frozen=True, slots=True)
class Cut:
    """Ends a rollout once enough other ranks have ended theirs, or its time is over."""

    # [n] int64, written by other ranks meanwhile: the number of the last rollout that each ended.
    cells: np.ndarray
    number: int  # of this rollout
    awaited: int  # ends once so many cells have reached `number`
    least_steps: int  # not before so many steps
    deadline: float  # of time.perf_counter; infinity for none

    def __call__(self, num_steps: int) -> bool:
        """Return whether to end after `num_steps` steps, without waiting."""
        if num_steps < self.least_steps:
            return False
        num_ended = int(np.count_nonzero(self.cells >= self.number))
        return num_ended >= self.awaited or time.perf_counter() >= self.deadline


# -- The state of a model with memory.


Envs = slice | torch.Tensor
_ALL = slice(None)


class RecurrentState:
    """The state of a model with memory in each of E environments; 0 where an episode starts."""

    def __init__(
        self,
        model: ActorCritic,
        like: torch.Tensor,
        num_envs: int,
        num_steps: int,
        sequence_length: int | None,
    ) -> None:
        self._model = model
        self._length = sequence_length or num_steps  # L
        self.state = like.new_zeros(num_envs, model.state_size)  # [E, S] before the row that is acted on next
        # [T / L, E, S] before rows 0, L, 2 L, ... of the rollout
        self.kept = like.new_zeros(num_steps // self._length, num_envs, model.state_size)
        self._final_states: list[torch.Tensor] = []  # of the episodes that ended in the rollout

    def reset(self) -> None:
        self.state.zero_()

    def begin(self) -> None:
        """Begin a rollout."""
        self.kept[0] = self.state
        self._final_states.clear()

    def act(self, obs: Obs, envs: Envs = _ALL) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]` for obs of some environments, and update their state."""
        params, values, self.state[envs] = self._model.step(obs, self._of(envs))
        return params, values

    def stepped(self, row: int, ended: np.ndarray, starts: np.ndarray, envs: slice = _ALL) -> None:
        """Store the state of the episodes that ended in this row, and zero it where an episode starts in the next.

        ended: environments `[k]`. starts `[E]` bool. envs: the environments that were stepped.
        """
        if len(ended):
            self._final_states.append(self.state[torch.from_numpy(ended)])
        if starts.any():
            self.state[torch.from_numpy(starts)] = 0
        sequence, step = divmod(row + 1, self._length)
        if step == 0 and sequence < len(self.kept):
            self.kept[sequence, envs] = self.state[envs]

    def stepped_on_device(self, row: int, ended: torch.Tensor) -> None:
        """Zero the state where an episode ended in this row, `[E]` bool; the caller keeps final states."""
        self.state.masked_fill_(ended.unsqueeze(1), 0)
        sequence, step = divmod(row + 1, self._length)
        if step == 0 and sequence < len(self.kept):
            self.kept[sequence] = self.state

    def values(self, obs: Obs, envs: Envs = _ALL) -> torch.Tensor:
        """Return values `[n]` of the observations after the last row; the state stays as it is."""
        return self._model.step(obs, self._of(envs))[1]

    def final_values(self, obs: Obs, which: Any = _ALL) -> torch.Tensor:
        """Return values `[n]` of final observations, of the episodes `which` among all that ended, in their order."""
        return self._model.step(obs, torch.cat(self._final_states)[which])[1]

    def _of(self, envs: Envs) -> torch.Tensor:
        """Return the state of some environments: a copy, because kernels may give other bits at other addresses."""
        is_all = isinstance(envs, slice) and envs == _ALL
        return self.state if is_all else self.state[envs].clone()
