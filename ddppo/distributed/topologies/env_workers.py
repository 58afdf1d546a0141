"""env_workers: rank 0 acts and learns, the other ranks step its environments.

A step is two messages: all actions to all ranks, and what the environments answered back. Rank 0 sees one batch of
environments as if it stepped them itself, to the bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.envs.encoding.observations import RowLayout
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep, ObsArrays, Options, Unsaved, VecEnv, no_options
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.spaces import each


class EnvWorkers(Topology):
    """Rank 0, who acts and learns, or one of those that step for it."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        shape = context.shape
        dealt = {rank: shape.env_indices(place) for place, rank in enumerate(context.layout.stepping)}
        self._line = Line(context.group, context.spec, dealt, context.config.dtype)
        self.learners = Group()  # of one
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, 0, self.sync)
        self.env: VecEnv | None = None
        self.collector: Collector | None = None
        if context.role.steps:
            self.env = context.envs()
        else:
            names = EnvNames(range(shape.num_envs), context.group.rank)
            self.collector = context.collector(FarEnvs(self._line, context.spec, names), 0)

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(range(self._context.shape.num_envs)))
        else:
            assert self.env is not None
            self._line.answer_reset(*self.env.reset(*sample.of(self._context.env_indices)))

    def collect(self, iteration: int) -> Collected:
        if self.collector is not None:
            return self._context.act(self.collector, range(self._context.shape.num_envs), iteration)
        assert self.env is not None
        mine = slice(self._context.env_indices.start, self._context.env_indices.stop)
        with self._context.guarded():
            for _ in range(self._context.shape.rollout_steps):
                self._line.answer(self.env.step(self._line.actions()[mine]))
        return Collected(0, [], None)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        if collected.rollout is None:
            return NO_UPDATE
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        return self._context.restarts(self.env) if self.env is not None else {}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


class Line:
    """What travels each step: actions `[N, *shape]` from rank 0, answers of its environments from each other rank.

    dealt: the environments of each rank that steps some, in order. Messages of a gather are of one size: who has fewer
    environments than another sends rows that nobody reads. Every rank has room for all actions and its own answers;
    nothing is allocated while stepping.
    """

    def __init__(self, group: Group, spec: EnvSpec, dealt: Mapping[int, range], dtype: str) -> None:
        self._group = group
        most = max(map(len, dealt.values()))
        rows = [torch.arange(len(envs)) + rank * most for rank, envs in dealt.items()]
        self._rows = torch.cat(rows)  # [N], of environments in their order among the W * most that come
        kind = np.dtype(dtype if spec.action.kind == "box" else np.int64)
        self._actions = torch.from_numpy(np.zeros((len(self._rows), *spec.action.shape), kind))
        self._layout = RowLayout(spec)
        flags = [(name, bool) for name in ("terminated", "truncated", "valid", "ended", "is_life_loss")]
        fields: list[Any] = [
            ("row", self._layout.dtype),
            ("final_row", self._layout.dtype),
            ("reward", np.float64),
        ]
        message = np.zeros(most, np.dtype([*fields, *flags], align=True))
        self._bytes = torch.from_numpy(message.view(np.uint8))
        self._answers = message[: len(dealt.get(group.rank, ()))]

    def actions(self) -> np.ndarray:
        """Return the next actions of all environments; of a rank that steps."""
        return self._group.broadcast_(self._actions).numpy()

    def answer_reset(self, obs: ObsArrays, mask: np.ndarray | None) -> None:
        self._write("row", obs, mask)
        self._group.gather_at_root(self._bytes)

    def answer(self, step: EnvStep) -> None:
        answers = self._answers
        self._write("row", step.obs, step.action_mask)
        answers["reward"] = step.rewards
        answers["terminated"], answers["truncated"], answers["valid"] = (
            step.terminated,
            step.truncated,
            step.valid,
        )
        answers["ended"] = False
        answers["ended"][step.ended] = True
        if len(step.ended):
            finals = self._layout.obs(answers["final_row"])
            each(lambda out, x: out.__setitem__(step.ended, x), finals, step.final_obs)
            answers["is_life_loss"][step.ended] = False if step.is_life_loss is None else step.is_life_loss
        self._group.gather_at_root(self._bytes)

    def _write(self, field: str, obs: ObsArrays, mask: np.ndarray | None) -> None:
        rows = self._answers[field]
        each(lambda out, x: out.__setitem__(..., x), self._layout.obs(rows), obs)
        if mask is not None:
            out = self._layout.mask(rows)
            assert out is not None
            out[...] = mask

    def ask(self, actions: np.ndarray | None) -> np.ndarray:
        """Send actions to all, unless it is a reset that they begin by themselves; return all answers `[N]`."""
        if actions is not None:
            self._actions.numpy()[...] = actions
            self._group.broadcast_(self._actions)
        parts = self._group.gather_at_root(self._bytes)
        assert parts is not None
        rows = parts.view(-1, self._answers.itemsize).index_select(0, self._rows)
        return rows.numpy().reshape(-1).view(self._answers.dtype)

    def read(self, rows: np.ndarray) -> tuple[ObsArrays, np.ndarray | None]:
        return self._layout.obs(rows), self._layout.mask(rows)


class FarEnvs(Unsaved):
    """`VecEnv` of rank 0 over the environments of the other ranks."""

    def __init__(self, line: Line, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._line = line

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        # Who steps an environment knows its seed.
        return self._line.read(self._line.ask(None)["row"])

    def step(self, actions: np.ndarray) -> EnvStep:
        answers = self._line.ask(actions)
        obs, mask = self._line.read(answers["row"])
        ended = np.flatnonzero(answers["ended"])
        final_obs, _ = self._line.read(answers["final_row"][ended])
        is_life_loss = answers["is_life_loss"][ended]
        return EnvStep(
            obs=obs,
            rewards=answers["reward"],
            terminated=answers["terminated"],
            truncated=answers["truncated"],
            valid=answers["valid"],
            ended=ended,
            final_obs=final_obs,
            action_mask=mask,
            is_life_loss=is_life_loss if is_life_loss.any() else None,
        )

    def close(self) -> None:
        """Nothing is rank 0's own."""
