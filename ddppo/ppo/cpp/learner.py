"""Learning in C++: `CppStep` is the loop over minibatches, and `CppGae` computes advantages.

The learner calls a `CppStep` as it calls the eager or compiled step (ppo/learner.py:EpochStep): begin, epoch, ..., end.
An epoch is one call of `network_epoch` (ddppo/native/src/learn.cpp), which selects the rows of each minibatch, computes
the gradient, sums it over ranks, clips it and moves the parameters. loop/compute.py decides whether a run learns in
C++. summary.json calls this step "native".
"""

import ctypes
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ddppo.collectives.group import CollectiveTiming, Group, OrderedSum, sum_in_pairs
from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.models.actor_critic import flat_obs
from ddppo.ppo.advantages import Estimates, Gae
from ddppo.ppo.cpp.network import CppNetwork, library
from ddppo.ppo.learner import CLIP, ENTROPY, adam_state, constants, terms_to_blame
from ddppo.ppo.losses import Samples, Term, statistic_names, terms_of
from ddppo.ppo.minibatches import Minibatch, MinibatchSource
from ddppo.ppo.nonfinite import UpdateNotFinite
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import each

# Fields of a minibatch in the order of the struct Columns of learn.cpp.
_COLUMNS = ("obs", "actions", "logprobs", "values", "advantages", "returns", "weights", "mask")
_GO_ON = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


class _Sum(ctypes.Structure):
    """The struct Sum of learn.cpp, which says what its fields are."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("begin", "context")),
        *((name, ctypes.c_uint64) for name in ("what", "type")),
        ("gradient", ctypes.c_void_p),
        ("num_bytes", ctypes.c_uint64),
        ("go_on", _GO_ON),
        ("stamps", ctypes.c_void_p),
    )


class CppStep:
    """The `EpochStep` of the learner in C++, for an MLP on one CPU thread."""

    def __init__(
        self,
        network: CppNetwork,
        config: SurrogateSettings,
        optimizer: torch.optim.Adam,
        group: Group,  # the ranks over which gradients are summed
        num_shards: int = 0,  # with dist.reduction=ordered, shards of this rank; else 0
    ) -> None:
        self.sums = torch.zeros(max(1, num_shards), len(statistic_names(config)), dtype=torch.float64)
        self.network = network
        # Adam runs in C++, on the moments that torch's optimizer holds, so that checkpoints are the same.
        self._optimizer = optimizer
        self._norms = torch.zeros((), dtype=torch.float64)
        self._loss = torch.zeros((), dtype=torch.float64)
        self._constants = constants(config, torch.device("cpu"))
        self._learning_rate = 0.0
        # Addresses for the struct Optimizer: three tensors of Adam, which `begin` fills in, and four of this step.
        sums = [self._norms, self.sums, self._loss, self._constants]
        self._addresses = (ctypes.c_void_p * 7)(None, None, None, *[x.data_ptr() for x in sums])
        self._group = group
        self._ordered = OrderedSum(group, num_shards, network.gradient) if num_shards else None
        if self._ordered is not None:
            network.use_shards(self._ordered.rows, adds=self._ordered.is_one_per_rank)
        self._own = TermsInTorch(terms_of(config.losses), network, len(self.sums)) if config.losses else None
        self._sum = self._sum_call() if group.world_size > 1 else None
        self._fault: BaseException | None = None

    def begin(self, learning_rate: float, clip_coef: float, entropy_coef: float) -> None:
        self.network.check_unchanged()
        self.sums.zero_()
        self._norms.zero_()
        self._learning_rate = learning_rate
        self._constants[CLIP], self._constants[ENTROPY] = clip_coef, entropy_coef
        self._optimizer.param_groups[0]["lr"] = learning_rate
        # Adam's tensors may be others since a checkpoint was restored.
        for place, x in enumerate(adam_state(self._optimizer, self.network.parameters)):
            self._addresses[place] = x.data_ptr()

    def epoch(
        self, batch: MinibatchSource, order: torch.Tensor, bounds: list[int], counts: list[float]
    ) -> None:
        # 1. Arguments of the call. C++ reads the samples of the batch in place, in the given order.
        columns, addresses = self._columns(batch.fields)
        num_minibatches = len(counts)
        ends, divisors = (ctypes.c_int64 * len(bounds))(*bounds), (ctypes.c_double * num_minibatches)(*counts)
        stamps, sum_ = np.zeros((num_minibatches, 2)), None
        if self._sum is not None:
            self._sum.stamps = stamps.ctypes.data
            sum_ = ctypes.byref(self._sum)
        own = None if self._own is None else self._own.begin(batch.fields, order, bounds)
        # 2. The epoch. `columns` must stay alive until the call returns.
        failed = library().network_epoch(
            self.network.handle, addresses, order.data_ptr(), ends, divisors, num_minibatches,
            self._learning_rate, own, self._addresses, sum_,
        )  # fmt: skip
        del columns

        # 3. Time of the collectives, and an exception that a sum or a term of the user's own raised.
        for start, end in stamps[stamps[:, 1] > 0].tolist():
            self._group.record(CollectiveTiming(start, end, num_bytes=self.network.gradient.nbytes))
        if failed:
            self._raise()

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            terms = {} if self._own is None else terms_to_blame(self._own.terms, self.sums)
            raise UpdateNotFinite(self._loss.item(), terms=terms)
        return norms

    def gradient(self, minibatch: Minibatch) -> torch.Tensor:
        """Compute this rank's gradient of the mean loss over a minibatch into `parameters.grad`, and return it."""
        rows = len(minibatch["weights"])
        columns, addresses = self._columns(minibatch)
        # All rows belong to the first shard.
        ends = [0, *[rows] * len(self.sums)]
        bounds = (ctypes.c_int64 * len(ends))(*ends)
        own = None
        if self._own is not None:
            own = self._own.begin(minibatch, torch.arange(rows), ends)
        failed = library().network_gradient(
            self.network.handle, addresses, None, bounds, float(rows), 0, own, self._addresses
        )
        del columns
        if failed:
            self._raise()
        if self._ordered is not None and not self._ordered.is_one_per_rank:
            self.network.gradient.copy_(sum_in_pairs(self._ordered.rows))
        return self.network.gradient

    def _raise(self) -> NoReturn:
        """Raise the exception that a call from C++ has kept."""
        fault, self._fault = self._fault, None
        if fault is None:
            assert self._own is not None
            fault, self._own.fault = self._own.fault, None
        assert fault is not None
        raise fault

    def _sum_call(self) -> _Sum:
        """Return how C++ sums the gradient over ranks: by a C function of the group if it has one, else by Python."""
        gradient, ordered = self.network.gradient, self._ordered
        call = None
        if ordered is None or (ordered.is_one_per_rank and self._group.sums_in_pairs):
            call = self._group.sum_call(gradient.dtype)

        def go_on(status: int) -> int:
            """Compute the sum, or wait for one under way. C++ calls it, so exceptions are kept for `epoch` to raise."""
            try:
                if call is not None:
                    call.wait(status)
                elif ordered is None:
                    self._group.sum_(gradient)
                else:
                    ordered.sum_ranks_(gradient)
            except BaseException as e:
                self._fault = e
                return 1
            return 0

        return _Sum(
            *(call[:4] if call is not None else (None, None, 0, 0)),
            gradient.data_ptr(), gradient.nbytes, _GO_ON(go_on), None,
        )  # fmt: skip

    def _columns(self, fields: Minibatch) -> tuple[list[torch.Tensor], ctypes.Array]:
        """Return the contiguous fields of a batch, which must outlive the call, and their addresses in order."""
        obs = flat_obs(fields["obs"], self.network.spec, self.network.parameters.dtype)
        columns = [obs, *(fields[name] for name in _COLUMNS[1:] if name in fields)]
        columns = [x.contiguous() for x in columns]
        addresses = [x.data_ptr() for x in columns] + [None] * (len(_COLUMNS) - len(columns))
        return columns, (ctypes.c_void_p * len(_COLUMNS))(*addresses)


# -- Terms of the user's own beside PPO's loss (ppo.losses).


_COMPUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)


class _Terms(ctypes.Structure):
    """The struct OwnTerms of learn.cpp, which says what its fields are."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_terms", "num_rows")),
        *(
            (name, ctypes.c_void_p)
            for name in ("params", "values", "dparams", "dvalues", "terms", "coefficients")
        ),
        ("compute", _COMPUTE),
    )


class TermsInTorch:
    """Terms that torch computes and differentiates by the outputs of the network; C++ does the rest.

    For each minibatch C++ writes action parameters and values, calls `_compute`, and goes backward with the gradient of
    PPO's loss, which it computes itself, plus that of the terms. Autograd sees a few numbers per sample.
    """

    def __init__(self, terms: Sequence[Term], network: CppNetwork, num_shards: int) -> None:
        self.terms = terms
        self.fault: BaseException | None = None  # what a term raised
        self._network, self._num_shards = network, num_shards
        self._coefs = torch.tensor([term.coef for term in terms], dtype=torch.float64)
        self._struct = _Terms(compute=_COMPUTE(self._compute))
        self._struct.num_terms, self._struct.coefficients = len(terms), self._coefs.data_ptr()
        self._make_room(1)

    def begin(self, fields: Minibatch, order: torch.Tensor, bounds: list[int]) -> Any:
        """Begin an epoch as `CppStep.epoch` does; return the argument for C++."""
        self._fields, self._bounds = fields, bounds
        rows = max(end - start for start, end in itertools.pairwise(bounds[:: self._num_shards]))
        if rows > self._struct.num_rows:
            self._make_room(rows)
        # Part i is a shard of a minibatch: its samples, and for each term their weights times the coefficient.
        sizes = [end - start for start, end in itertools.pairwise(bounds)]
        weights = fields["weights"].index_select(0, order)
        self._orders = order[: bounds[-1]].split(sizes)
        by_term = [(weights if coef == 1 else weights * coef).split(sizes) for coef in self._coefs.tolist()]
        self._weights = list(zip(*by_term, strict=True))
        return ctypes.byref(self._struct)

    def _make_room(self, rows: int) -> None:
        dtype, struct = self._network.parameters.dtype, self._struct
        self._params = torch.zeros(rows, self._network.num_params, dtype=dtype)
        self._values = torch.zeros(rows, dtype=dtype)
        self._dparams, self._dvalues = torch.zeros_like(self._params), torch.zeros_like(self._values)
        self._found = torch.zeros(len(self.terms), rows, dtype=dtype)
        struct.num_rows = rows
        struct.params, struct.values = self._params.data_ptr(), self._values.data_ptr()
        struct.dparams, struct.dvalues = self._dparams.data_ptr(), self._dvalues.data_ptr()
        struct.terms = self._found.data_ptr()
        self._rows = functools.lru_cache(maxsize=256)(self._views)

    def _views(
        self, start: int, end: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Return rows of the outputs, as leaves of autograd, of the gradients by them, and of the terms."""
        outputs = [x[start:end].requires_grad_() for x in (self._params, self._values)]
        return (
            outputs,
            [x[start:end] for x in (self._dparams, self._dvalues)],
            list(self._found[:, start:end]),
        )

    def _compute(self, minibatch: int) -> int:
        """Compute the terms of a minibatch, each shard apart: bits of torch may depend on the rows beside a row.

        C++ calls it, so exceptions are kept for the step to raise.
        """
        try:
            first = minibatch * self._num_shards
            begin = self._bounds[first]
            for part in range(first, first + self._num_shards):
                start, end = self._bounds[part], self._bounds[part + 1]
                if end > start:  # the user's function is not called for no sample
                    self._compute_part(part, *self._rows(start - begin, end - begin))
        except BaseException as e:
            self.fault = e
            return 1
        return 0

    def _compute_part(
        self, part: int, outputs: list[torch.Tensor], slopes: list[torch.Tensor], terms: list[torch.Tensor]
    ) -> None:
        """Compute the loss terms of a part of a minibatch from the network's `outputs`; write `terms` and `slopes`."""
        if self._num_shards > 1:  # in memory of their own: some kernels give other bits at other addresses
            outputs = [x.detach().clone().requires_grad_() for x in outputs]
        params, values = outputs
        chosen = _Chosen(self._fields, self._orders[part])
        samples = Samples(chosen, params, values, self._network.distribution)
        found = [term(samples) for term in self.terms]
        # The gradient of the sum over samples and terms, each times its weight and its coefficient. As an argument of
        # `grad` the weights would load torch's symbolic shapes (.6 s of a core).
        sums = list(map(torch.dot, found, self._weights[part]))
        computed = torch.autograd.grad(sums, outputs, allow_unused=True)
        for slope, x in zip(slopes, computed, strict=True):
            if x is None:
                slope.zero_()
            else:
                slope.copy_(x)
        for row, term in zip(terms, found, strict=True):
            row.copy_(term.detach())


class _Chosen(Mapping[str, Any]):
    """Some samples of a batch by field; a field is selected when it is read."""

    def __init__(self, fields: Minibatch, rows: torch.Tensor) -> None:
        self._fields, self._rows = fields, rows

    def __getitem__(self, name: str) -> Any:
        return each(lambda x: x.index_select(0, self._rows), self._fields[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields


# -- Advantages, returns and their moments in one call (ddppo/native/src/returns.cpp).


_TYPES = (*(ctypes.c_int64,) * 3, *(ctypes.c_void_p,) * 6, *(ctypes.c_double,) * 2, *(ctypes.c_void_p,) * 3)


def returns_and_moments(
    rollout: Rollout, rewards: torch.Tensor, *, gamma: float, gae_lambda: float, num_shards: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return advantages and returns `[T, E]`, as ppo/advantages.py estimates them, and moments `[S, 3, 3]` float64.

    The moments (count, mean, M2) are those of valid advantages, returns and returns - values of each shard, E / S
    neighbouring environments. CPU only.
    """
    compute = library().returns_float if rewards.dtype == torch.float32 else library().returns_double
    compute.argtypes = _TYPES
    inputs = [
        x.contiguous()
        for x in (
            rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
        )
    ]
    advantages, returns = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    moments = torch.empty(num_shards, 3, 3, dtype=torch.float64)
    compute(
        *rewards.shape, num_shards, *(x.data_ptr() for x in inputs), gamma, gamma * gae_lambda,
        advantages.data_ptr(), returns.data_ptr(), moments.data_ptr(),
    )  # fmt: skip
    return advantages, returns, moments


class CppGae(Gae):
    """`Gae` in one call of C++. For rollouts of an older policy (V-trace) it calls the PyTorch code."""

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> Estimates:
        if rollout.ratios is not None:
            return super().__call__(rollout, rewards)
        config, valid = self.config, rollout.valid
        advantages, returns, local_moments = returns_and_moments(
            rollout,
            rewards,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            num_shards=self.num_shards,
        )
        return Estimates(advantages, valid.to(advantages.dtype), returns, local_moments)
