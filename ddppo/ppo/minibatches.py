"""Minibatches: which samples each holds, the same for any number of ranks, and how they are cut out of a rollout.

Every rank derives the same permutation of the global batch from (seed, iteration, epoch) and keeps the samples of its
own environments (`local_minibatches`). So minibatch m holds the same transitions for any W that leaves the
global batch as it is (scaling.py), and no index travels.

A minibatch is cut from one of four sources: `SampleBatch` (independent samples), `SequenceBatch` (sequences, for a
model with memory), `EpisodeBatch` (whole rollouts) or a class of the model's own (`ActorCritic.minibatch_class`, such
as one for tokens). The unit of a source, a sample, a sequence or a rollout, is what the permutation orders.
"""

import ctypes
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ddppo.native import loaded
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.rollout import Rollout
from ddppo.scaling import BatchShape
from ddppo.seeding import minibatch_permutation
from ddppo.spaces import each, zipped

Minibatch = dict[str, Any]  # tensors `[n, ...]` by field; obs is one tensor or a dict of them

# -- Which samples a minibatch holds.


class EpochPlan(NamedTuple):
    """One epoch of this rank."""

    order: np.ndarray  # [n] numbers of this rank's units, minibatch after minibatch
    bounds: list[int]  # M + 1 offsets into `order`: minibatch m is order[bounds[m]:bounds[m + 1]]


def minibatch_bounds(batch_size: int, num_minibatches: int) -> list[int]:
    """Return M + 1 offsets that cut B samples into M parts; their sizes differ by at most one."""
    return [m * batch_size // num_minibatches for m in range(num_minibatches + 1)]


def local_minibatches(seed: int, iteration: int, epoch: int, shape: BatchShape, rank: int) -> EpochPlan:
    """Return this rank's samples `[E * T]` of one epoch, and M + 1 offsets of its minibatches.

    Sample (t, i) of the global batch has number t * N + i. A rank keeps the samples of its own E environments and
    renumbers them t * E + (i - first). Minibatches of a rank may differ in size, and E from rank to rank.
    """
    permutation = minibatch_permutation(seed, iteration, epoch, shape.batch_size)
    bounds = minibatch_bounds(shape.batch_size, shape.num_minibatches)
    if shape.world_size == 1:
        return EpochPlan(permutation, bounds)
    own = shape.env_indices(rank)
    # The C++ library does the same in one pass, if this process has loaded it.
    if (native := loaded()) is not None and shape.batch_size < 2**32:
        local = np.empty(len(own) * shape.rollout_steps, np.int64)
        offsets = np.empty(len(bounds), np.int64)
        sizes = (shape.num_envs, own.start, len(own))
        cuts = (ctypes.c_int64 * len(bounds))(*bounds)
        native.stream_share(
            permutation.ctypes, ctypes.c_int64(len(permutation)), *map(ctypes.c_int64, sizes), cuts,
            ctypes.c_int64(len(bounds)), local.ctypes, offsets.ctypes,
        )  # fmt: skip
        return EpochPlan(local, offsets.tolist())
    steps, envs = np.divmod(permutation, shape.num_envs)
    local_envs = envs - own.start
    is_local = (local_envs >= 0) & (local_envs < len(own))
    local = steps[is_local] * len(own) + local_envs[is_local]
    num_local_before = np.concatenate([[0], np.cumsum(is_local)])
    return EpochPlan(local, [int(num_local_before[b]) for b in bounds])


def by_shard(order: np.ndarray, bounds: list[int], shape: BatchShape) -> EpochPlan:
    """Return the plan with each minibatch cut into the rank's S shards, and M * S + 1 offsets of these parts.

    A shard is E / S neighbouring environments (dist.reduction=ordered). Its samples keep their order, which does not
    depend on W.
    """
    shards, envs = shape.local_num_shards, shape.local_num_envs
    if shards == 1:
        return EpochPlan(order, bounds)
    if (native := loaded()) is not None and shape.batch_size < 2**32:
        sorted_, offsets = np.empty_like(order), np.empty((len(bounds) - 1) * shards + 1, np.int64)
        cuts = (ctypes.c_int64 * len(bounds))(*bounds)
        native.stream_by_shard(
            order.ctypes, *map(ctypes.c_int64, (envs, shards)), cuts, ctypes.c_int64(len(bounds) - 1),
            sorted_.ctypes, offsets.ctypes,
        )  # fmt: skip
        return EpochPlan(sorted_, offsets.tolist())
    num_parts = (len(bounds) - 1) * shards
    parts = np.repeat(np.arange(0, num_parts, shards), np.diff(bounds)) + order % envs // (envs // shards)
    small = parts.astype(np.min_scalar_type(num_parts))  # NumPy sorts integers of up to 16 bits by radix
    offsets = np.cumsum(np.bincount(parts, minlength=num_parts))
    return EpochPlan(order[np.argsort(small, kind="stable")], [0, *offsets.tolist()])


def of_first(num_samples: int, order: np.ndarray, bounds: list[int]) -> EpochPlan:
    """Return the plan without samples from number `num_samples` on: for a rollout that ended early."""
    return only(np.arange(order.max(initial=-1) + 1) < num_samples, order, bounds)


def only(is_used: np.ndarray, order: np.ndarray, bounds: list[int]) -> EpochPlan:
    """Return the plan without the units that `is_used` `[n]` excludes."""
    keeps = is_used[order]
    num_kept_before = np.concatenate([[0], np.cumsum(keeps)])
    return EpochPlan(order[keeps], [int(num_kept_before[b]) for b in bounds])


# -- Minibatches of independent samples.


def fields_of(rollout: Rollout, estimates: Estimates) -> Minibatch:
    """Return the fields that learning reads, `[T, E, ...]`, by their names in a minibatch."""
    has_returns = estimates.returns is not None
    fields: Minibatch = {  # compiled libraries expect this order
        "obs": rollout.obs,
        "actions": rollout.actions,
        "logprobs": rollout.logprobs,
        **({"values": rollout.values} if has_returns else {}),
        "advantages": estimates.advantages,
        **({"returns": estimates.returns} if has_returns else {}),
        "weights": estimates.weights,
    }
    if rollout.action_mask is not None:
        fields["mask"] = rollout.action_mask
    return fields


class SampleBatch:
    """A rollout flattened to samples: fields `[T * E, ...]`."""

    def __init__(
        self,
        rollout: Rollout,
        estimates: Estimates,
        *,
        apart: bool = False,  # every minibatch in memory of its own: some kernels give other bits at other addresses
    ) -> None:
        self.fields = _by_field(lambda x: x.flatten(0, 1), fields_of(rollout, estimates))
        self._apart = apart
        self._room: Minibatch = {}  # allocated at the first epoch, and used again in the others

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> list[Minibatch]:
        """Return views of the samples in `order` `[n]`, n <= T * E, cut at `bounds`; valid until the next call."""
        sizes = [end - start for start, end in itertools.pairwise(bounds)]
        if self._apart:
            return [
                _by_field(functools.partial(torch.index_select, dim=0, index=part), self.fields)
                for part in order.split(sizes)
            ]
        if len(self._room) < len(self.fields):
            self._room = _by_field(torch.empty_like, self.fields)

        def gather(x: torch.Tensor, room: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.index_select(x, 0, order, out=room[: len(order)]).split(sizes)

        return zipped({name: zipped(x) for name, x in _by_field(gather, self.fields, self._room).items()})


def _by_field(function: Callable[..., Any], fields: Minibatch, *others: Minibatch) -> dict[str, Any]:
    return {name: each(function, x, *(other[name] for other in others)) for name, x in fields.items()}


# -- Minibatches of a model with memory: whole sequences of steps, unrolled from the state that the rollout kept.


class SequenceBatch:
    """A rollout cut into sequences of L consecutive steps: fields `[C * E, L, ...]`, C = T / L.

    Sequence c of environment i is row c * E + i. It begins with the state that the rollout kept for its first step.
    A minibatch of m sequences holds L * m samples, and under "unrolled" the inputs of `ActorCritic.unroll`: obs
    `[L, m, ...]`, the state `[m, S]` before step 0, and where episodes start `[L, m]`.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates) -> None:
        assert rollout.state is not None, "the collector of a model with memory keeps its state"
        num_sequences = len(rollout.state)

        def in_sequences(x: torch.Tensor) -> torch.Tensor:
            # [T, E, ...] -> [C, L, E, ...] -> [C, E, L, ...] -> [C * E, L, ...]
            return x.unflatten(0, (num_sequences, -1)).transpose(1, 2).flatten(0, 1)

        self.fields: Minibatch = {
            name: each(in_sequences, x) for name, x in fields_of(rollout, estimates).items()
        }
        self._state, self._starts = rollout.state.flatten(0, 1), in_sequences(rollout.episode_start)

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterator[Minibatch]:
        """Yield the sequences in `order` `[n]`, cut at `bounds`."""
        for start, end in itertools.pairwise(bounds):
            # Even a rank without a sequence in this minibatch runs the model, on weights of 0: other ranks wait for
            # its gradient.
            is_empty = start == end
            yield self._minibatch(order.new_zeros(1) if is_empty else order[start:end], is_empty=is_empty)

    def _minibatch(self, sequences: torch.Tensor, *, is_empty: bool) -> Minibatch:
        def selected(x: torch.Tensor) -> torch.Tensor:
            return x.index_select(0, sequences).transpose(0, 1)  # [m, L, ...] -> [L, m, ...]

        fields: dict[str, Any] = {name: each(selected, x) for name, x in self.fields.items()}
        unrolled = (fields.pop("obs"), self._state.index_select(0, sequences), selected(self._starts))
        samples = {name: x.flatten(0, 1) for name, x in fields.items()}
        if is_empty:
            samples["weights"] = torch.zeros_like(samples["weights"])
        return {**samples, "unrolled": unrolled}


# -- Minibatches of whole rollouts, for a loss that reads all samples of a rollout at once (ppo.ratio=sequence).


class EpisodeBatch:
    """A rollout by environments: fields `[E, T, ...]`. A minibatch holds the samples of some environments.

    Samples of weight 0 are left out. "places" are as in `OwnMinibatches`.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates) -> None:
        self.fields: Minibatch = _by_field(lambda x: x.transpose(0, 1), fields_of(rollout, estimates))

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterator[Minibatch]:
        """Yield the environments in `order` `[n]`, cut at `bounds`."""
        for start, end in itertools.pairwise(bounds):
            chosen = order[start:end]
            rows, steps = (self.fields["weights"][chosen] > 0).nonzero(as_tuple=True)
            places = chosen[rows], steps
            yield {**_by_field(operator.itemgetter(places), self.fields), "places": places}


# -- Minibatches of a model's own kind, and how any minibatch is given to the model.


class OwnMinibatches(Protocol):
    """A source of a model's own, made as `Class(rollout, estimates)`: `ActorCritic.minibatch_class`.

    fields: those of `fields_of`, `[n, L, ...]` for n units of L steps. The unit is an environment's T steps.
    """

    fields: Minibatch

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterable[Minibatch]:
        """Return the units in `order` `[n]`, cut at `bounds`: samples `[k, ...]` by field, flattened.

        Besides the fields: "inputs", those of `ActorCritic.evaluate_minibatch` for the k samples, and "places", the
        units and steps `[k]` each at which they stand in `fields`.
        """
        ...


MinibatchSource = SampleBatch | SequenceBatch | EpisodeBatch | OwnMinibatches
ModelCall = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # an `EvaluateActions` (models/actor_critic.py)


def outputs(model: ModelCall, minibatch: Minibatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return action parameters `[n, P]` and values `[n]` of the samples of a minibatch."""
    if "inputs" in minibatch:
        return model(*minibatch["inputs"])
    if "unrolled" in minibatch:
        params, values = model(*minibatch["unrolled"])
        return params.flatten(0, 1), values.flatten(0, 1)
    return model(minibatch["obs"], minibatch["actions"])
