"""sync_actors and multi_learner: a learner learns from the rollouts of its actors, which act in step with it.

Each learner and its actors form a group, with the learner as root; the learners form another one, which sums gradients.
In an iteration the actors collect, the learner gathers their rollouts, learns, and broadcasts the parameters.
sync_actors has one learner, rank 0; multi_learner has several.

Results are those of distributed=ddp with as many workers as there are learners: every environment keeps its seeds and
its noise, and a learner sees the environments of its actors side by side, in order.

Rollouts and parameters travel as one flat message each (second half of this file), because every collective costs a
wait, and a rollout has a dozen tensors.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from itertools import pairwise
from typing import Any

import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import in_words
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.errors import NonFiniteError
from ddppo.models.actor_critic import Obs, raw_dtype, tensor_dtype
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves


class SyncActors(Topology):
    """A learner, or one of its actors."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._is_learner = context.role.learns
        # A learner steps no environments, and an actor's learner object only holds the parameters that it acts with.
        self.env = context.envs() if context.role.acts else None
        self.collector: Collector | None = None
        if self.env is not None:
            self.collector = context.collector(self.env, context.env_indices.start)
        self.learners, self._team, team_ranks = self._make_groups()
        self.groups = tuple(
            g for g in (self.learners, self._team) if 1 < g.world_size < context.group.world_size
        )
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)
        self._rollouts = RolloutMessage(
            context.spec,
            context.shape.rollout_steps,
            context.shape.local_num_envs,
            getattr(torch, context.config.dtype),
            with_raw_obs=context.obs_normalizer is not None,
            state_size=context.state_size,
        )
        self._num_envs = [len(context.envs_of(rank)) for rank in team_ranks[1:]]  # of each actor of the team
        self._parameters = ParameterMessage(context.parameters, context.obs_normalizer, context.synchronised)

    def _make_groups(self) -> tuple[Group, Group, range]:
        """Return the group of the learners, and this rank's team, a learner with its actors: its group and its ranks.

        On an actor the group of the learners is a group of this rank alone. All ranks call it, because all ranks make
        subgroups together.
        """
        context = self._context
        learning, team, team_ranks = context.layout.learning, Group(), range(0)
        learners = context.subgroup(learning) or Group()
        # Ranks are ordered learner, its actors, next learner, its actors, ...
        for first, end in pairwise((*learning, context.group.world_size)):
            if (group := context.subgroup(range(first, end))) is not None:
                team, team_ranks = group, range(first, end)
        return learners, team, team_ranks

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        if self.collector is None:
            return Collected(0, [], None)
        return self._context.act(self.collector, self._context.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        update = NO_UPDATE
        messages = self._team.gather_at_root(self._rollouts.pack(collected.rollout))
        if self._is_learner:
            assert messages is not None
            # The learner's own message, the first, is empty: it does not act.
            rollout = self._rollouts.unpack(messages[1:], self._num_envs, self._context.device)
            try:
                update = self.learner.update(rollout, iteration, progress)
            except NonFiniteError as e:
                if self.learners.world_size == 1:
                    raise
                learner_ranks = in_words(self._context.layout.learning)
                raise NonFiniteError(f"{e}. Its ranks are places among the learners, {learner_ranks}") from e
        self._parameters.broadcast(self._team)
        return update

    def measured(self) -> dict[str, float]:
        return self._context.restarts(self.env) if self.env is not None else {}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


# -- Rollouts and parameters as one message each.

_ALIGN = 16  # bytes; every array starts at a multiple, so that it can be viewed in its own type


class RolloutMessage:
    """The layout of a rollout of T steps and up to E environments in one vector of bytes.

    Collectives take messages of one size, so a rollout of fewer environments leaves the last columns unused.
    """

    def __init__(
        self,
        spec: EnvSpec,
        rollout_steps: int,
        num_envs: int,  # E, the most that any rank steps
        dtype: torch.dtype,
        *,
        with_raw_obs: bool,
        state_size: tuple[int, int] = (0, 0),
    ) -> None:
        self._spec = spec
        self._most_envs = num_envs
        self._with_raw_obs = (
            with_raw_obs  # unnormalised observations travel too, for the learner's normaliser
        )
        self._sizes: list[tuple[int, ...]] = []
        self._types: list[torch.dtype] = []
        self._starts: list[int] = []  # byte offsets
        self.num_bytes = 0
        # Lay out an empty rollout, array after array; `pack` and `unpack` follow the same order.
        empty = _empty(spec, rollout_steps, num_envs, dtype, with_raw_obs=with_raw_obs)
        num_states, state_numbers = state_size  # C and S of Rollout.state
        self._has_state = state_numbers > 0
        if self._has_state:
            empty = replace(empty, state=torch.zeros(num_states, num_envs, state_numbers, dtype=dtype))
        for x in self._arrays(empty):
            self._sizes.append(tuple(x.shape))
            self._types.append(x.dtype)
            self._starts.append(self.num_bytes)
            self.num_bytes += -(-x.numel() * x.element_size() // _ALIGN) * _ALIGN
        self._bytes = torch.zeros(self.num_bytes, dtype=torch.uint8)

    def pack(self, rollout: Rollout | None) -> torch.Tensor:
        """Return the rollout as bytes `[num_bytes]`, valid until the next call; zeros for None."""
        if rollout is not None:
            for x, out in zip(self._arrays(rollout), self._views(self._bytes.unsqueeze(0)), strict=True):
                out[0, :, : x.shape[1]].copy_(x)
        return self._bytes

    def unpack(self, messages: torch.Tensor, num_envs: Sequence[int], device: torch.device) -> Rollout:
        """Return the rollouts of several ranks `[ranks, num_bytes]` as one, with environments in rank order.

        num_envs: environments of each of these ranks.
        """
        # [ranks, T, E, ...] -> [T, ranks, E, ...] -> [T, ranks * E, ...]
        side_by_side = [x.transpose(0, 1).flatten(1, 2) for x in self._views(messages)]
        if min(num_envs) < self._most_envs:
            # [T, ranks * E, ...] -> [T, N, ...]
            used = [torch.arange(number) + k * self._most_envs for k, number in enumerate(num_envs)]
            side_by_side = [x.index_select(1, torch.cat(used)) for x in side_by_side]
        arrays = iter([x.to(device) for x in side_by_side])

        def next_obs() -> Obs:
            return each(lambda _: next(arrays), self._spec.obs)

        # In the order of `_arrays`.
        found: dict[str, Obs | None] = {"obs": next_obs()}
        for name in _ALWAYS_PRESENT:
            found[name] = next(arrays)
        found["action_mask"] = next(arrays) if self._spec.mask_size is not None else None
        found["raw_obs"] = next_obs() if self._with_raw_obs else found["obs"]
        found["state"] = next(arrays) if self._has_state else None
        return Rollout(**found)  # type: ignore[arg-type]

    def _arrays(self, rollout: Rollout) -> list[torch.Tensor]:
        arrays = [*leaves(rollout.obs), *(getattr(rollout, name) for name in _ALWAYS_PRESENT)]
        if rollout.action_mask is not None:
            arrays.append(rollout.action_mask)
        arrays += leaves(rollout.raw_obs) if self._with_raw_obs else []
        return arrays if rollout.state is None else [*arrays, rollout.state]

    def _views(self, messages: torch.Tensor) -> list[torch.Tensor]:
        """Return every array of messages `[ranks, num_bytes]` as `[ranks, *shape]`, without a copy."""
        views = []
        for size, dtype, start in zip(self._sizes, self._types, self._starts, strict=True):
            num_bytes = torch.Size(size).numel() * dtype.itemsize
            views.append(messages[:, start : start + num_bytes].view(dtype).unflatten(1, size))
        return views


# Tensors that every rollout has: the fields without a default. `unpack` treats the three named here on their own.
_ALWAYS_PRESENT = [
    f.name
    for f in fields(Rollout)
    if f.default is MISSING
    and f.default_factory is MISSING
    and f.name not in ("obs", "action_mask", "raw_obs")
]


def _empty(spec: EnvSpec, steps: int, envs: int, dtype: torch.dtype, *, with_raw_obs: bool) -> Rollout:
    """Return a rollout of zeros, with the shapes and types of a collector's."""

    def zeros(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(steps, envs, *shape, dtype=kind)

    def obs_of(leaf: ArraySpec) -> torch.Tensor:
        return zeros(*leaf.shape, kind=tensor_dtype(leaf, dtype))

    def raw_obs_of(leaf: ArraySpec) -> torch.Tensor:
        return zeros(*leaf.shape, kind=raw_dtype(leaf, dtype, is_normalized=with_raw_obs))

    obs = each(obs_of, spec.obs)
    others: dict[str, Any] = {name: zeros() for name in ("logprobs", "values", "next_values", "rewards")}
    flags = ("terminated", "truncated", "valid", "episode_start")
    others |= {name: zeros(kind=torch.bool) for name in flags}
    return Rollout(
        obs=obs,
        actions=zeros(*spec.action.shape, kind=dtype if spec.action.kind == "box" else torch.int64),
        **others,
        action_mask=None if spec.mask_size is None else zeros(spec.mask_size, kind=torch.bool),
        raw_obs=each(raw_obs_of, spec.obs) if with_raw_obs else obs,
    )


class ParameterMessage:
    """Everything that a rank acts with: parameters, and the moments that normalise observations.

    Parameters without a part in acting stay with the learner: those outside of `Algorithm.synchronised`.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        normalizer: ObsNormalizer | None,
        prefixes: Sequence[str] = ("",),  # of the parameters that act
    ) -> None:
        self._slices = [parameters.vector.data[start:end] for start, end in parameters.slices(prefixes)]
        self._normalizer = normalizer

    def broadcast(self, group: Group) -> None:
        """Replace the parameters and moments of all ranks by rank 0's."""
        if len(self._slices) == 1:
            group.broadcast_(self._slices[0])
        else:
            flat = group.broadcast_(torch.cat(self._slices))
            for own, sent in zip(self._slices, flat.split([len(x) for x in self._slices]), strict=True):
                own.copy_(sent)
        if self._normalizer is not None:
            self._normalizer.load(group.broadcast_(self._normalizer.state.clone()))
