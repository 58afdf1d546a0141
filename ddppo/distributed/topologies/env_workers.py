"""env_workers: rank 0 acts and learns, the other ranks step its environments.

Each step takes two messages: `StepMessages` broadcasts all actions from rank 0, and gathers the results at rank 0. If
an iteration is whole episodes, rank 0 says with a last broadcast that all of them are over.
There, `RankEnvs` looks like any other batch of environments, so collector and learner are those of one process, and
results are equal to the bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.envs.encoding.observations import RowLayout
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep, ObsArrays, Options, Unsaved, VecEnv
from ddppo.plugins import imported
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import RolloutCollector
from ddppo.spaces import each


def make(context: RankContext) -> Topology:
    """Return the topology of this rank. A model with a collector of its own brings its own messages too."""
    return EnvWorkers(context) if context.model.collector_class is None else OwnEnvWorkers(context)


class LearnerWithWorkers(Topology):
    """What rank 0, which acts and learns, and the ranks that step its environments have in common."""

    collector: RolloutCollector | None = None  # on rank 0

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self.learners = Group()  # of one rank: gradients do not travel
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        if collected.rollout is None:
            return NO_UPDATE
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        if self.collector is not None:
            return self.collector.measured()
        return self._context.restarts(self.env)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


class EnvWorkers(LearnerWithWorkers):
    """A rank of tasks that step together, with arrays."""

    env: VecEnv | None = None
    collector: Collector | None = None

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        shape = context.shape
        env_ranges = {rank: shape.env_indices(place) for place, rank in enumerate(context.layout.stepping)}
        self._messages = StepMessages(
            context.group,
            context.spec,
            env_ranges,
            context.config.dtype,
            ends_early=context.has_whole_episodes,
        )
        if context.role.steps:
            self.env = context.envs()
        else:
            names = EnvNames(range(shape.num_envs), context.group.rank)
            self.collector = context.collector(RankEnvs(self._messages, context.spec, names), 0)

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(range(self._context.shape.num_envs)))
        else:
            assert self.env is not None
            seeds, options = sample.of(self._context.env_indices)
            self._messages.send_reset(*self.env.reset(seeds, options if options and any(options) else None))

    def collect(self, iteration: int) -> Collected:
        if self.collector is not None:
            collected = self._context.act(self.collector, range(self._context.shape.num_envs), iteration)
            self._messages.send_end()
            return collected
        # A stepping rank answers as often as rank 0 asks: once for each step of its rollout.
        assert self.env is not None
        own = slice(self._context.env_indices.start, self._context.env_indices.stop)
        with self._context.guarded():
            for actions in self._messages.actions_of(self._context.shape.rollout_steps):
                self._messages.send_step(self.env.step(actions[own]))
        return Collected(0, [], None)


class OwnEnvWorkers(LearnerWithWorkers):
    """A rank of a model with a collector of its own, such as one for text."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        self._server: EnvServer | None = None
        made = imported(context.model.collector_class or "").over_ranks(context)
        if context.role.steps:
            self._server = made
            self.env = made.env
        else:
            self.collector = made

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(range(self._context.shape.num_envs)))

    def collect(self, iteration: int) -> Collected:
        if self.collector is not None:
            return self._context.act(self.collector, range(self._context.shape.num_envs), iteration)
        assert self._server is not None
        with self._context.guarded():
            self._server.serve()
        return Collected(0, [], None)

    def assist(self) -> None:
        if self._server is not None:
            with self._context.guarded():
                self._server.assist()

    def release(self) -> None:
        if self.collector is not None:
            self.collector.env.release()


class EnvServer(Protocol):
    """What steps environments for rank 0, of a model with a collector of its own."""

    @property
    def env(self) -> Any:
        """The environments; they have `close()`."""

    def serve(self) -> None:
        """Step them as rank 0 asks, for one rollout."""
        ...

    def assist(self) -> None:
        """Step them as rank 0 asks, for one evaluation."""
        ...


class StepMessages:
    """The messages of a step: actions `[N, *shape]` from rank 0, and each stepping rank's results to rank 0.

    All memory is allocated here once, so that stepping allocates nothing.
    """

    def __init__(
        self,
        group: Group,
        spec: EnvSpec,
        env_ranges: Mapping[int, range],  # global indices of the environments of each stepping rank
        dtype: str,
        *,
        ends_early: bool = False,  # whether a rollout may have fewer than T steps
    ) -> None:
        self._group = group
        self._ends_early = ends_early
        # A gather takes messages of one size. So every rank, rank 0 too, sends rows for as many environments as any
        # rank has; `_rows` `[N]` finds the row of each environment among the W * most rows that arrive.
        most = max(map(len, env_ranges.values()))
        rows = [torch.arange(len(envs)) + rank * most for rank, envs in env_ranges.items()]
        self._rows = torch.cat(rows)
        kind = np.dtype(dtype if spec.action.kind == "box" else np.int64)
        # Actions as a vector; behind them a flag, if rollouts end early: 1 says that this one has ended.
        shape = (len(self._rows), *spec.action.shape)
        self._message = torch.from_numpy(np.zeros(int(np.prod(shape)) + ends_early, kind))
        self._actions = self._message[: int(np.prod(shape))].view(shape)
        # One record per environment: packed observation, packed final observation, reward, flags.
        self._layout = RowLayout(spec)
        flags = [(name, bool) for name in ("terminated", "truncated", "valid", "ended", "is_life_loss")]
        fields: list[Any] = [
            ("row", self._layout.dtype),
            ("final_row", self._layout.dtype),
            ("reward", np.float64),
        ]
        message = np.zeros(most, np.dtype([*fields, *flags], align=True))
        self._bytes = torch.from_numpy(message.view(np.uint8))
        self._results = message[: len(env_ranges.get(group.rank, ()))]

    # -- On a rank that steps environments.

    def actions_of(self, rollout_steps: int) -> Iterator[np.ndarray]:
        """Yield the actions of all N environments for each step of a rollout; the caller answers each."""
        actions = self._actions.numpy()
        if not self._ends_early:
            for _ in range(rollout_steps):
                self._group.broadcast_(self._message)
                yield actions
            return
        while self._group.broadcast_(self._message)[-1] == 0:
            yield actions

    def send_reset(self, obs: ObsArrays, mask: np.ndarray | None) -> None:
        self._write("row", obs, mask)
        self._group.gather_at_root(self._bytes)

    def send_step(self, step: EnvStep) -> None:
        results = self._results
        self._write("row", step.obs, step.action_mask)
        results["reward"] = step.rewards
        results["terminated"], results["truncated"], results["valid"] = (
            step.terminated,
            step.truncated,
            step.valid,
        )
        results["ended"] = False
        results["ended"][step.ended] = True
        # Final observations exist only for environments in which an episode ended in this step.
        if len(step.ended):
            finals = self._layout.obs(results["final_row"])
            each(lambda out, x: out.__setitem__(step.ended, x), finals, step.final_obs)
            results["is_life_loss"][step.ended] = False if step.is_life_loss is None else step.is_life_loss
        self._group.gather_at_root(self._bytes)

    def _write(self, field: str, obs: ObsArrays, mask: np.ndarray | None) -> None:
        rows = self._results[field]
        each(lambda out, x: out.__setitem__(..., x), self._layout.obs(rows), obs)
        if mask is not None:
            out = self._layout.mask(rows)
            assert out is not None
            out[...] = mask

    # -- On rank 0.

    def request(self, actions: np.ndarray | None) -> np.ndarray:
        """Send actions and return the results of all environments `[N]`.

        None for a reset: every rank then starts its environments without a message, because it knows their seeds.
        """
        if actions is not None:
            self._actions.numpy()[...] = actions
            self._group.broadcast_(self._message)
        messages = self._group.gather_at_root(self._bytes)
        assert messages is not None
        rows = messages.view(-1, self._results.itemsize).index_select(0, self._rows)
        return rows.numpy().reshape(-1).view(self._results.dtype)

    def send_end(self) -> None:
        """Say that the rollout has ended, if it may end early: every stepping rank then leaves `actions_of`."""
        if self._ends_early:
            self._message[-1] = 1
            self._group.broadcast_(self._message)
            self._message[-1] = 0

    def read(self, rows: np.ndarray) -> tuple[ObsArrays, np.ndarray | None]:
        """Return the observations and action masks in packed rows."""
        return self._layout.obs(rows), self._layout.mask(rows)


class RankEnvs(Unsaved):
    """The `VecEnv` of rank 0: the environments of all other ranks."""

    def __init__(self, messages: StepMessages, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._messages = messages

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        # Seeds and options are not sent: each stepping rank has them from its own task sampler.
        return self._messages.read(self._messages.request(None)["row"])

    def step(self, actions: np.ndarray) -> EnvStep:
        results = self._messages.request(actions)
        obs, mask = self._messages.read(results["row"])
        ended = np.flatnonzero(results["ended"])
        final_obs, _ = self._messages.read(results["final_row"][ended])
        is_life_loss = results["is_life_loss"][ended]
        return EnvStep(
            obs=obs,
            rewards=results["reward"],
            terminated=results["terminated"],
            truncated=results["truncated"],
            valid=results["valid"],
            ended=ended,
            final_obs=final_obs,
            action_mask=mask,
            is_life_loss=is_life_loss if is_life_loss.any() else None,
        )

    def close(self) -> None:
        """Do nothing: the environments belong to the other ranks."""
