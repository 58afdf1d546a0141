"""The learner's step compiled by torch.compile, for models that C++ does not know.

There are two graphs: `gradient_function` computes loss, gradient and statistics of a minibatch, and `optimize_` clips
the gradient and moves the parameters by Adam. The sum over ranks stands between them. The number of rows is symbolic
and coefficients are tensors, so a schedule or a smaller minibatch compiles nothing anew. loop/compute.py decides
whether a run uses it. On an accelerator that can, one learner's kernels are recorded as graphs (`Recorded`), so that
the host starts each minibatch by two calls instead of some hundred. Acting in environments on the device is recorded
too (`RecordedActing`, device_collector.py).
"""

import copy
import functools
import itertools
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, cast

import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.device import has_float64, has_graphs, recorded_kernels
from ddppo.errors import in_one_line
from ddppo.models.actor_critic import ActorCritic, EvaluateActions
from ddppo.native.compiling import NotCompiled, cache_folder, processor
from ddppo.ppo.gradient_check import example
from ddppo.ppo.learner import BETAS, CLIP, ENTROPY, NORM_EPS, adam_state, constants, scaled_step
from ddppo.ppo.losses import STATISTICS, Coefficients, loss_per_sample, nan_unless_finite
from ddppo.ppo.minibatches import Minibatch, MinibatchSource
from ddppo.ppo.nonfinite import UpdateNotFinite
from ddppo.spaces import each, leaves

Compiled = Callable[..., None]

# Rows of the minibatch that traces the graph. Few, because networks of images split many rows into parts; and a number
# that is no layer's width, because torch takes two equal sizes for the same symbol.
_TRACED_ROWS = 67


class CannotCompile(Exception):
    """torch.compile cannot compile this model, or not on this machine. The message says why."""


class CannotRecord(Exception):
    """Kernels cannot be recorded, or compute something else then. The message says why."""


class CompiledStep:
    """The `EpochStep` of the learner, for any model that torch can compile as one graph.

    The constructor compiles both graphs, which takes 5 to 30 s. Raises CannotCompile.
    """

    def __init__(
        self,
        config: SurrogateSettings,
        model: ActorCritic,
        optimizer: torch.optim.Adam,  # of the model's parameters as one vector
        # Replaces the gradient by its sum over ranks. With several shards it is called for each, and the call for the
        # last one leaves the sum over all shards of all ranks.
        sum_: Callable[[torch.Tensor], torch.Tensor],
        scale: torch.Tensor | None = None,  # relative step size of each parameter; None: all 1
        num_shards: int = 1,
        # Rows of a shard of a minibatch, about. torch chooses other kernels for far fewer or more rows, and would
        # compile again in the first iteration.
        num_rows: int = _TRACED_ROWS,
        *,
        records: bool = True,  # whether kernels may be recorded as graphs, where the device can
    ) -> None:
        (self._parameters,) = optimizer.param_groups[0]["params"]
        device = self._parameters.device
        if not has_float64(device):
            raise CannotCompile(f"{device.type} has no float64, in which a compiled step sums")
        self._optimizer = optimizer
        self._sum_ = sum_
        self._scale = scale
        self._constants = constants(config, device)
        self._scheduled = (config.clip_coef, config.entropy_coef)  # what the device has
        self.sums = torch.zeros(num_shards, len(STATISTICS), dtype=torch.float64, device=device)
        self._sums_of_shards = self.sums.unbind()
        self._norms = torch.zeros((), dtype=torch.float64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._counts: dict[float, torch.Tensor] = {}
        self._learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self._moments: list[torch.Tensor] = []
        self._buffers = list(model.buffers())
        # Several learners, or shards, have minibatches of many sizes, and would need a graph for each size.
        self.is_recorded = records and has_graphs(device) and num_shards == 1
        self._gradient_of, self._optimize = self._compile(
            model, num_rows, clips_value=config.clip_value_coef is not None
        )

    def begin(self, learning_rate: float, clip_coef: float, entropy_coef: float) -> None:
        self._forget()
        self._learning_rate.fill_(learning_rate)
        if (clip_coef, entropy_coef) != self._scheduled:
            self._scheduled = (clip_coef, entropy_coef)
            self._constants[CLIP], self._constants[ENTROPY] = clip_coef, entropy_coef
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._moments = adam_state(self._optimizer, self._parameters)

    def epoch(
        self, batch: MinibatchSource, order: torch.Tensor, bounds: list[int], counts: list[float]
    ) -> None:
        parts = iter(batch.minibatches(order, bounds))
        for count in counts:
            shards = list(itertools.islice(parts, len(self.sums)))
            if count == 0:  # no rank has a sample in this minibatch
                continue
            # Gradient of each shard, sum over ranks, clip and Adam.
            for minibatch, sums in zip(shards, self._sums_of_shards, strict=True):
                gradient = self._gradient_(minibatch, count, sums)
                self._sum_(gradient)
            with scaled_step(self._parameters, self._scale):
                self._optimize(
                    self._parameters.data, gradient, *self._moments, self._norms, self._learning_rate, self._constants
                )  # fmt: skip

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise UpdateNotFinite(self._loss.item())
        return norms

    def gradient(self, minibatch: Minibatch) -> torch.Tensor:
        """Compute this rank's gradient of the mean loss over a minibatch into `parameters.grad`, and return it."""
        self._forget()
        return self._gradient_(minibatch, len(minibatch["weights"]), self._sums_of_shards[0])

    def _forget(self) -> None:
        self.sums.zero_()
        self._norms.zero_()

    def _gradient_(self, minibatch: Minibatch, count: float, sums: torch.Tensor) -> torch.Tensor:
        """Compute this rank's gradient into `parameters.grad`, add to `sums`, and return the gradient."""
        gradient = self._parameters.grad
        assert gradient is not None
        if len(minibatch["weights"]) < 2:  # torch compiles a graph of its own for sizes 0 and 1
            minibatch = _two_rows(minibatch)
        if count not in self._counts:
            self._counts[count] = torch.full((), float(count), dtype=torch.float64, device=gradient.device)
        self._gradient_of(
            self._parameters.data, gradient, sums, self._loss, self._norms, self._constants, self._counts[count],
            *_tensors(minibatch), *self._buffers,
        )  # fmt: skip
        return gradient

    def _compile(self, model: ActorCritic, num_rows: int, *, clips_value: bool) -> tuple[Compiled, Compiled]:
        """Trace, compile and run both graphs on random samples, so that no iteration compiles; parameters stay."""
        traced, usual = (
            example(model.spec, model, n, torch.Generator().manual_seed(0)) for n in (_TRACED_ROWS, num_rows)
        )
        # A copy, because tracing leaves its tensors in a trunk that is a submodule under two names.
        gradient_ = gradient_function(copy.deepcopy(model), list(traced)[1:], clips_value=clips_value)
        # Clones in place of everything that the graphs change.
        vector, zero = self._parameters.detach(), self._loss
        state = (
            vector, vector.clone(), self.sums[0].clone(), zero.clone(), zero.clone(), self._constants, zero + 1,
        )  # fmt: skip
        of_optimizer = (
            vector.clone(), vector.clone(), zero.float(), *(torch.zeros_like(vector) for _ in range(2)),
            zero.clone(), zero.clone(), self._constants,
        )  # fmt: skip
        try:
            with warnings.catch_warnings():  # torch warns about its own code
                warnings.simplefilter("ignore")
                optimize = compiled(optimize_, of_optimizer, range(6))
                inputs = (*state, *_tensors(traced), *self._buffers)
                gradient_of = compiled(gradient_, inputs, range(1, 4))
                if self.is_recorded:  # a minibatch and its count lie elsewhere each time
                    optimize, gradient_of = Recorded(optimize, 8), Recorded(gradient_of, 6)
                optimize(*of_optimizer)
                gradient_of(*state, *_tensors(usual), *self._buffers)
        except CannotCompile:
            raise
        except CannotRecord as e:
            raise CannotCompile(f"its kernels cannot be recorded: {e}") from e
        except Exception as e:  # torch raises many kinds, and a user's model may raise any
            raise CannotCompile(in_one_line(e)[:300]) from e
        return gradient_of, optimize


def compiled(function: Callable[..., None], inputs: Sequence[torch.Tensor], may_change: range) -> Compiled:
    """Return the function compiled as one graph, for any number of rows. Raises CannotCompile.

    The function is traced first, so a model may use any Python if its operations do not depend on values. Compiled code
    is kept in ddppo's cache folder for this kind of processor, unless TORCHINDUCTOR_CACHE_DIR names another folder.

    Args:
        inputs: tensors to trace with.
        may_change: the places of the inputs that the function may change.
    """
    if shutil.which(os.environ.get("CXX", "g++").partition(" ")[0]) is None:
        raise CannotCompile("there is no C++ compiler (g++, or what CXX names)")
    try:
        folder = cache_folder() / f"torch_{sha256(processor().encode()).hexdigest()[:16]}"
    except (NotCompiled, OSError) as e:
        raise CannotCompile(f"there is no folder for compiled code: {e}") from e
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    # With more, each rank would start processes that compile.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    traced = make_fx(function, tracing_mode="symbolic")(*inputs)
    _check(traced.graph, may_change)
    options = _options(inputs[0].device)
    return cast("Compiled", torch.compile(traced, fullgraph=True, dynamic=True, options=options))


def _options(device: torch.device) -> dict[str, Any] | None:
    """Return options of torch's compiler.

    For an accelerator it would time several kernels of a sum and take the fastest. In another process that may be
    another one, which adds up in another order, and a resumed run would part from the uninterrupted one.
    """
    from torch._inductor import config

    return {"deterministic": True} if device.type != "cpu" and hasattr(config, "deterministic") else None


# -- Graphs of kernels.


def record(function: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels that `function` starts, and return what starts all of them again by one call.

    The function runs twice before, because the first call loads kernels and allocates memory. Raises CannotRecord.
    """
    try:
        return recorded_kernels(function)
    except Exception as e:  # torch raises many kinds, and a user's model may raise any
        raise CannotRecord(in_one_line(e)[:300]) from e


class Recorded:
    """A function that changes some of its tensors, with its kernels recorded once for each size of its last inputs.

    Recorded kernels use the memory that they were recorded with. So the first `num_fixed` inputs have to be the same
    tensors in every call, and the others, which lie elsewhere each time, are copied into memory of their own.
    """

    def __init__(self, function: Compiled, num_fixed: int) -> None:
        self._function = function
        self._num_fixed = num_fixed
        self._fixed: Sequence[torch.Tensor] = ()
        # By the sizes of the other inputs: memory for them, and the call that starts the kernels.
        self._graphs: dict[tuple[torch.Size, ...], tuple[list[torch.Tensor], Callable[[], None]]] = {}

    def __call__(self, *inputs: torch.Tensor) -> None:
        fixed, others = inputs[: self._num_fixed], inputs[self._num_fixed :]
        if [x.data_ptr() for x in fixed] != [x.data_ptr() for x in self._fixed]:
            self._graphs.clear()  # as at the first call, and when a checkpoint gave Adam other moments
            self._fixed = fixed
        sizes = tuple(x.shape for x in others)
        if sizes not in self._graphs:
            self._graphs[sizes] = self._recorded(fixed, others)
        room, start = self._graphs[sizes]
        for own, given in zip(room, others, strict=True):
            own.copy_(given)
        start()

    def _recorded(
        self, fixed: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], None]]:
        room, before = [x.clone() for x in others], [x.clone() for x in fixed]
        start = record(lambda: self._function(*fixed, *room))
        # Recording has run the function: put back what it changed.
        for x, value in zip(fixed, before, strict=True):
            x.copy_(value)
        return room, start


def _check(graph: torch.fx.Graph, may_change: range) -> None:
    """Raise CannotCompile if a graph draws random numbers, or changes inputs that are not in `may_change`."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise CannotCompile(f"it draws random numbers ({node.target})")
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed = _base(value)
                if changed in inputs and inputs.index(changed) not in may_change:
                    raise CannotCompile("its forward changes its buffers")


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that owns the storage of a view, or of a view of a view."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target._schema.arguments[0].alias_info:
        node = node.args[0]  # type: ignore[assignment]
    return node


def gradient_function(model: ActorCritic, names: Sequence[str], *, clips_value: bool) -> Callable[..., None]:
    """Return a function of flat parameters and a minibatch, which computes the gradient and adds to the statistics.

    names: the fields of a minibatch after obs, in order.
    """
    spec, called = model.spec, EvaluateActions(model)
    named = list(called.named_parameters())
    sizes = [p.numel() for _, p in named]
    buffers = [name for name, _ in called.named_buffers()]
    num_obs = len(leaves(spec.obs))
    num_fields = num_obs + len(names)

    def gradient_(
        parameters: torch.Tensor, gradient: torch.Tensor, sums: torch.Tensor, last_loss: torch.Tensor,
        norms: torch.Tensor, constants: torch.Tensor, count: torch.Tensor, *inputs: torch.Tensor,
    ) -> None:  # fmt: skip
        # 1. Inputs: the arrays of obs, the other fields of the minibatch, and the buffers of the model.
        obs = dict(zip(spec.obs, inputs, strict=False)) if isinstance(spec.obs, dict) else inputs[0]
        minibatch: Minibatch = dict(zip(names, inputs[num_obs:num_fields], strict=True))
        clip, value, entropy, clip_value = cast("list[float]", constants[:4].to(parameters.dtype).unbind())
        coefficients = Coefficients(clip, value, entropy, clip_value if clips_value else None)
        # 2. Parameters: views of one vector that autograd follows, so that the gradient is one vector too.
        vector = parameters.detach().requires_grad_()
        state = {
            name: (x if p.requires_grad else x.detach()).view(p.shape)
            for (name, p), x in zip(named, vector.split(sizes), strict=True)
        }
        state |= dict(zip(buffers, inputs[num_fields:], strict=True))
        # 3. Forward, loss and backward, as in EagerStep.epoch (learner.py).
        params, values = functional_call(called, state, (obs, minibatch["actions"]))
        per_sample, terms = loss_per_sample(params, values, minibatch, model.distribution, coefficients)
        weights = minibatch["weights"]
        loss = torch.dot(weights, per_sample) / count.to(parameters.dtype)
        (local_gradient,) = torch.autograd.grad(loss * nan_unless_finite(loss), vector)
        # 4. Statistics, and the results that the caller reads.
        with torch.no_grad():
            statistics = terms.statistics()
            sums += torch.stack([(x.detach() * weights).sum().double() for x in statistics])
            last_loss.copy_(torch.where(norms.isfinite(), loss.detach().double(), last_loss))
            gradient.copy_(local_gradient)

    return gradient_


def optimize_(
    parameters: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor, mean: torch.Tensor,
    square: torch.Tensor, norms: torch.Tensor, learning_rate: torch.Tensor, constants: torch.Tensor,
) -> None:  # fmt: skip
    """Clip the gradient by its norm, and move the parameters by Adam.

    Kingma and Ba 2015, arXiv:1412.6980, algorithm 1. `norms` adds up the norms. After the first norm that is not
    finite, the sum stays so, and nothing moves for the rest of the iteration.
    """
    dtype, (beta1, beta2) = parameters.dtype, BETAS
    max_norm, eps = constants[4:].unbind()
    norm = gradient.norm()
    norms += norm.double()
    moves = norms.isfinite()
    gradient.mul_(torch.where(norm > max_norm, max_norm / (norm.double() + NORM_EPS), 1.0).to(dtype))
    new_mean = beta1 * mean + (1 - beta1) * gradient
    new_square = beta2 * square + (1 - beta2) * gradient * gradient
    step += moves.to(step.dtype)
    t = step.double()
    rate = (learning_rate / (1 - beta1**t)).to(dtype)
    scale = (1 / (1 - beta2**t).sqrt()).to(dtype)
    moved = parameters - rate * new_mean / (new_square.sqrt() * scale + eps.to(dtype))
    parameters.copy_(torch.where(moves, moved, parameters))
    mean.copy_(torch.where(moves, new_mean, mean))
    square.copy_(torch.where(moves, new_square, square))


def _two_rows(minibatch: Minibatch) -> Minibatch:
    """Return a minibatch of two rows from one of no row or one; added rows have weight 0."""

    def padded(x: torch.Tensor, *, with_zeros: bool) -> torch.Tensor:
        padding = x.new_zeros((2, *x.shape[1:])) if len(x) == 0 or with_zeros else torch.cat([x, x])
        padding[: len(x)] = x
        return padding

    return {
        name: each(functools.partial(padded, with_zeros=name == "weights"), field)
        for name, field in minibatch.items()
    }


def _tensors(minibatch: Minibatch) -> list[torch.Tensor]:
    """Return all tensors of a minibatch; those of obs come first."""
    obs, *others = minibatch.values()
    return [*leaves(obs), *others]
