"""A network in C++ (ddppo/native/src/mlp.hpp), ddppo's MLP or a user's of such layers, and acting with it.

`why_not_cpp` says whether a run can use it. `CppNetwork` computes action parameters and values; `CppStep` (learner.py)
computes its gradient. `CppActing`, at the end, is how a collector acts with it.
"""

import ctypes
import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ddppo import native
from ddppo.config.rank_rules import MOST_WEIGHTS
from ddppo.config.settings import Config
from ddppo.errors import TrainingError
from ddppo.models.actor_critic import MLP, ActorCritic, Obs, flat_obs, is_asymmetric
from ddppo.models.distributions import bounds_of, gauss_hermite, num_noise, squash_of
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec, each, leaves

_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


# -- The layers of a network that C++ computes: those of ddppo's MLP, or of a user's own (own_layers.py).

# In the order of the enum Activation in activations.hpp.
_ACTIVATIONS = ("tanh", "relu", "elu", "leaky_relu", "silu", "gelu", "identity")
# In the order of the enum ActionKind in losses.hpp. box: Gaussian actions; beta: a box with a Beta distribution.
KINDS = ("discrete", "multi_discrete", "multi_binary", "box", "beta")


class NotInCpp(Exception):
    """C++ does not have a part of the network. The message says which, as a part of a sentence."""


OBS = -1  # in place of the number of a layer: the observation


@dataclass(frozen=True)
class Source:
    """Columns [first, first + width) of a layer or the observation, added to the inputs from `column` on."""

    layer: int
    first: int
    width: int
    column: int = 0


@dataclass(frozen=True)
class Layer:
    """A linear layer on one source, or a sum of sources; perhaps layer normalisation; an activation.

    Modules by their names in the model. Sources beside one another are what torch.cat joins.
    """

    width: int
    sources: tuple[Source, ...]
    linear: str | None = None
    norm: str | None = None
    activation: str = "identity"


@dataclass(frozen=True)
class NetworkLayers:
    """The layers of a network, each behind those that it reads, and its heads, each with the layer that it reads."""

    layers: tuple[Layer, ...]
    policy: int
    value: int
    policy_head: str
    value_head: str
    log_std: str | None  # a parameter beside the network
    limits_log_std: bool  # the second half of the policy's outputs is clamped to LOG_STD_RANGE

    def modules(self) -> Iterator[str]:
        """The names of the linear layers and norms, in the order in which Network of mlp.hpp reads their places."""
        for layer in self.layers:
            yield from (name for name in (layer.linear, layer.norm) if name is not None)
        yield from (self.policy_head, self.value_head)

    def description(self, model: ActorCritic) -> list[int]:
        """Return the network's shape and the places of its parameters, as `network_create` in learn.cpp reads them."""
        offsets, offset = {}, 0  # of each parameter in the flat vector
        for name, p in model.named_parameters():
            offsets[name] = offset
            offset += p.numel()
        places = [offsets.get(f"{name}.{part}", -1) for name in self.modules() for part in ("weight", "bias")]
        if self.log_std is not None:
            places.append(offsets[self.log_std])
        layers = [len(self.layers)]
        for layer in self.layers:
            layers += [layer.width, _ACTIVATIONS.index(layer.activation)]
            layers += [layer.linear is not None, layer.norm is not None, len(layer.sources)]
            for source in layer.sources:
                layers += [source.layer, source.first, source.width, source.column]
        action = model.spec.action
        # A list is preceded by its length.
        return [
            next(model.parameters()).dtype == torch.float64,
            KINDS.index("beta" if model.is_beta else action.kind),
            self.limits_log_std,
            model.spec.obs_size,
            *(*layers, self.policy, self.value),
            *(len(action.sizes), *action.sizes),
            *(len(places), *places),
            offset,
            len(gauss_hermite()[0]) if model.is_squashed else 0,
        ]


def layers_of(model: ActorCritic) -> NetworkLayers:
    """Return the layers of a model. Raises NotInCpp."""
    if type(model) is MLP:
        return _of_mlp(model)
    # Loaded for networks of a user's own alone.
    of_own: Callable[[ActorCritic], NetworkLayers] = imported("ddppo.ppo.cpp.own_layers:layers_of_own")
    return of_own(model)


def hooked(model: nn.Module) -> str | None:
    """Return the name of a module or parameter with a hook, which C++ would not call; None if there is none."""
    for name, m in model.named_modules():
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return name or type(m).__name__
    # Dictionaries of torch's, which its type stubs do not name.
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return next((n for n, p in model.named_parameters() if any(getattr(p, name) for name in hooks)), None)


def _of_mlp(model: MLP) -> NetworkLayers:
    layers: list[Layer] = []

    def add_trunk(name: str) -> int:
        """Add the layers of a trunk; return the number of the last one."""
        below, width = OBS, model.spec.obs_size
        of_kind = {
            kind: [
                f"{name}.{child}" for child, m in getattr(model, name).named_children() if isinstance(m, kind)
            ]
            for kind in (nn.Linear, nn.LayerNorm)
        }
        for linear, norm in itertools.zip_longest(of_kind[nn.Linear], of_kind[nn.LayerNorm]):
            out: Any = model.get_submodule(linear).out_features
            layers.append(Layer(out, (Source(below, 0, width),), linear, norm, model.activation))
            below, width = len(layers) - 1, out
        return below

    policy = add_trunk("policy_trunk")
    value = policy if model.shared_trunk else add_trunk("value_trunk")
    return NetworkLayers(
        tuple(layers),
        policy,
        value,
        policy_head="policy_head",
        value_head="value_head",
        log_std=None if model.log_std is None else "log_std",
        limits_log_std=model.is_gaussian and model.log_std is None,
    )


# -- Whether C++ can compute a run: every reason against it is a row here. (torch.compile has its own, loop/compute.py.)


def why_not_cpp(config: Config, model: ActorCritic, device: torch.device, sync_name: str) -> str | None:
    """Return why this rank cannot learn in C++, as part of a sentence; None if it can. Compiles the library."""
    # Settings that the C++ of the learner does not know.
    if config.ppo.algorithm != "ppo":
        return f"ppo.algorithm={config.ppo.algorithm} has no step in C++"
    if config.ppo.learning_rates:
        return "ppo.learning_rates gives parts of the model different step sizes"
    return _why_not_settings(config, sync_name) or why_not_native(model, device)


def why_not_cpp_network(
    config: Config, model: ActorCritic, device: torch.device, sync_name: str
) -> str | None:
    """Return why a loss in torch cannot call the network in C++, as part of a sentence; None if it can."""
    return _why_not_settings(config, sync_name) or why_not_native(model, device)


def _why_not_settings(config: Config, sync_name: str) -> str | None:
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile}"
    if config.dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={config.dist.threads_per_rank}, and C++ uses one thread"
    if sync_name == "ddp":
        return "dist.grad_sync=ddp sums gradients inside backward"
    return None


def why_not_native(model: ActorCritic, device: torch.device) -> str | None:
    """Return why C++ cannot compute this network, as part of a sentence; None if it can. Compiles the library."""
    if is_asymmetric(model.spec):
        return "its policy and its value function read different arrays"
    if not all(leaf.is_float for leaf in leaves(model.spec.obs)):
        return "the task observes pixels"
    if is_faster_in_torch(model):
        return f"a layer has more than {MOST_WEIGHTS:,} weights, which torch multiplies faster"
    if device.type != "cpu":
        return f"C++ computes on CPUs, and device is {device.type}"
    # Its layers. A subclass of ddppo's MLP may compute anything, so it is read as any network of a user's own.
    if type(model) is not MLP and type(model).__module__.startswith(("ddppo.models.", "ddppo.domains.")):
        return f"{type(model).__name__} is computed in PyTorch"
    try:
        layers_of(model)
    except NotInCpp as e:
        return str(e)
    return native.why_not()


def is_faster_in_torch(model: ActorCritic) -> bool:
    return max(p.numel() for p in model.parameters()) > MOST_WEIGHTS


def rows_are_independent(network: "CppNetwork", obs: torch.Tensor) -> bool:
    """Return whether the outputs for an observation have the same bits in any batch, at any place in it.

    A compiler may round differently in the remainder of a loop. Results could not be equal at any W then.
    """
    network.refresh()

    def outputs(rows: torch.Tensor) -> torch.Tensor:
        params = network.policy(rows, rows.new_empty(len(rows), network.num_params))
        return torch.cat([params, network.values(rows).unsqueeze(1)], dim=1)

    whole = outputs(obs)
    by_parts = [torch.cat([outputs(part.clone()) for part in obs.split(size)]) for size in (1, 2, 3, 6, 7)]
    shifted = outputs(obs.roll(1, 0)).roll(-1, 0)
    return all(torch.equal(whole, other) for other in (*by_parts, shifted))


def is_as_in_torch(network: "Differentiable", model: ActorCritic, obs: Obs) -> bool:
    """Return whether a network in C++ has the outputs of torch's layers and their gradient, up to rounding."""
    found: list[list[torch.Tensor]] = []
    parameters = [p for p in model.parameters() if p.requires_grad]
    for params, values in (network(obs), network.in_torch(obs)):
        loss = params.square().sum() + (params.sum(dim=1) * values).sum() + values.sum()
        found.append([params, values, *torch.autograd.grad(loss, parameters)])
    close = 1e-4 if parameters[0].dtype == torch.float32 else 1e-9
    return all(
        float((a - b).detach().abs().max()) <= close * max(1.0, float(b.detach().abs().max()))
        for a, b in zip(*found, strict=True)
    )


# -- The network.


class CppNetwork:
    """A network in C++. It reads the flat parameters `[num_parameters]` in place, and writes into their `.grad`.

    The outputs for an observation do not depend on the other observations of a batch.
    """

    def __init__(
        self,
        model: ActorCritic,
        spec: EnvSpec,
        parameters: torch.nn.Parameter,
        gradient: torch.Tensor | None = None,  # where gradients are written, instead of `parameters.grad`
    ) -> None:
        gradient = parameters.grad if gradient is None else gradient
        assert gradient is not None
        self.parameters, self.gradient = parameters, gradient
        self.spec = spec
        self.num_params, self.distribution = model.num_params, model.distribution
        self._library = library()
        description = np.array(layers_of(model).description(model), np.int64)
        # Of actions within bounds: shifts and scales, then the quadrature of the entropy of squashed ones.
        self.kind, self.bounds, numbers = KINDS.index(spec.action.kind), None, None
        if model.is_beta:
            self.kind, numbers = KINDS.index("beta"), bounds_of(spec.action)
            self.bounds = numbers
        elif model.is_squashed:
            self.bounds = squash_of(spec.action)
            numbers = np.concatenate([self.bounds.ravel(), *gauss_hermite()])
        self.handle: int = self._library.network_create(
            description.ctypes.data,
            parameters.data.data_ptr(),
            self.gradient.data_ptr(),
            None if numbers is None else numbers.ctypes.data,
        )
        weakref.finalize(self, self._library.network_free, self.handle)
        # A network of a user's own is compared with `model` on a few rows, by each of its methods in turn.
        self._model, self._methods = model, itertools.cycle(("forward", "action_params", "value"))
        self._rows: Obs | None = None
        if type(model) is not MLP:
            generator = torch.Generator().manual_seed(0)
            self._rows = each(
                lambda leaf: torch.randn(4, *leaf.shape, dtype=parameters.dtype, generator=generator),
                spec.obs,
            )

    def use_shards(self, rows: torch.Tensor, *, adds: bool) -> None:
        """Compute the gradient of each shard into a row `[S, num_parameters]`; `adds`: and their sum in pairs."""
        self._sums = rows  # so that it stays alive
        self._library.network_use_shards(self.handle, rows.data_ptr(), len(rows), adds)

    def refresh(self) -> None:
        """Use the current parameters in the next calls of `policy` and `values`."""
        self._library.network_refresh(self.handle)

    def policy(self, obs: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write action parameters `[n, P]` of obs `[n, obs_size]` to `out`, and return it. Both are contiguous."""
        self._library.network_policy(self.handle, obs.data_ptr(), len(obs), out.data_ptr())
        return out

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values `[...]` of obs `[..., obs_size]`."""
        rows = obs.contiguous()
        out = rows.new_empty(rows.shape[:-1])
        self._library.network_values(self.handle, rows.data_ptr(), out.numel(), out.data_ptr())
        return out

    def check_unchanged(self) -> None:
        """Raise TrainingError if a network of a user's own computes something else than its layers did at the start."""
        if self._rows is None:
            return
        method = next(self._methods)
        name = hooked(self._model) if method == "forward" else None
        if name is None and self.computes(self._rows, method):
            return
        kind = type(self._model).__name__
        found = f"{kind}.{method} computes something else" if name is None else f"{name} has a hook"
        raise TrainingError(
            f"{found} since this run began, and C++ computes the layers as they were then: use compile=off for a "
            "network that changes"
        )

    @torch.no_grad()
    def computes(self, obs: Obs, method: str) -> bool:
        """Return whether C++ computes what a method of the model does for obs `[n, *shape]`, up to rounding."""
        self.refresh()
        own = getattr(self._model, method)(obs)
        params, values = own if method == "forward" else (own, own)
        rows, pairs = flat_obs(obs, self.spec, self.parameters.dtype), []
        if method != "value":
            pairs.append((self.policy(rows, rows.new_empty(len(rows), self.num_params)), params))
        if method != "action_params":
            pairs.append((self.values(rows), values))
        # NumPy takes a tenth of torch's time for a few rows. A number that is not finite is left to the update.
        arrays = [(a.numpy(), b.numpy()) for a, b in pairs]
        with np.errstate(invalid="ignore"):
            return not any(np.abs(a - b).max() > 1e-3 * np.abs(b).max() + 1e-5 for a, b in arrays)


# -- The network as an operation of autograd, for any loss that torch computes.


_CHECKED_EVERY = 16  # calls, each of which takes a third of the time of the check


class Differentiable:
    """Calls a network in C++ forward and backward, where loop/compute.py has set it as `in_cpp` of the model.

    Autograd sees one operation with the model's parameters as inputs. So a loss may be anything: it may read
    parameters, call the model several times, or differentiate a gradient again, which torch's own layers then compute.
    """

    def __init__(self, model: ActorCritic, spec: EnvSpec, parameters: torch.nn.Parameter) -> None:
        self.network = CppNetwork(model, spec, parameters, torch.zeros_like(parameters.data))
        self._model, self._spec, self._dtype = model, spec, parameters.dtype
        # Where the modules keep their parameters: dictionaries, names in them, and what was there at the start.
        kept = [(m._parameters, name, p) for m in model.modules() for name, p in m._parameters.items()]
        self._kept = list(zip(*kept, strict=True))
        self._own = list(model.parameters())
        self._addresses = [p.data_ptr() for p in self._own]
        self._call = 0  # counts forward passes: activations of the last one are kept
        self._num_calls = 0

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of the model has other parameters: it computes in torch."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()

    def takes(self, *inputs: Any, **more: Any) -> bool:
        """Return whether C++ computes this call: with a graph, on rows, by the parameters that it knows."""
        return (
            torch.is_grad_enabled()
            and len(inputs) == 1
            and not more
            and self._are_rows(inputs[0])
            and all(map(operator.is_, map(operator.getitem, *self._kept[:2]), self._kept[2]))
            and list(map(torch.Tensor.data_ptr, self._own)) == self._addresses
        )

    def _are_rows(self, obs: Any) -> bool:
        """Return whether these are observations of the task, as tensors of this network's type."""
        arrays, kinds = leaves(obs), leaves(self._spec.obs)
        if isinstance(self._spec.obs, dict) and not (
            isinstance(obs, dict) and list(obs) == list(self._spec.obs)
        ):
            return False
        return len(arrays) == len(kinds) and all(
            isinstance(x, torch.Tensor)
            and x.dtype == self._dtype
            and x.shape[1:] == leaf.shape
            and not x.requires_grad
            for x, leaf in zip(arrays, kinds, strict=True)
        )

    def __call__(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]` of obs `[n, *shape]`."""
        self._num_calls += 1
        if self._num_calls % _CHECKED_EVERY == 0:
            self.network.check_unchanged()
        return _Outputs.apply(self, obs, *self._own)

    def in_torch(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same by torch's layers."""
        return self._model.forward(obs)

    def rows(self, obs: Obs) -> torch.Tensor:
        """Return observations as vectors `[n, obs_size]`."""
        return flat_obs(obs, self._spec, self._dtype).contiguous()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        network = self.network
        params, values = obs.new_empty(len(obs), network.num_params), obs.new_empty(len(obs))
        library().network_forward(
            network.handle, obs.data_ptr(), len(obs), params.data_ptr(), values.data_ptr()
        )
        self._call += 1
        return params, values, self._call

    def backward(
        self, obs: torch.Tensor, dparams: torch.Tensor, dvalues: torch.Tensor, call: int
    ) -> tuple[torch.Tensor, ...]:
        """Return the gradient by each parameter."""
        if call != self._call:  # another forward pass came between
            self.forward(obs)
        dparams, dvalues = dparams.contiguous(), dvalues.contiguous()
        library().network_backward(
            self.network.handle, obs.data_ptr(), len(obs), dparams.data_ptr(), dvalues.data_ptr()
        )
        return torch._utils._unflatten_dense_tensors(self.network.gradient.clone(), self._own)


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, owner: Differentiable, obs: Obs, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.rows = owner.rows(obs)
        params, values, ctx.call = owner.forward(ctx.rows)
        ctx.owner, ctx.obs = owner, obs
        ctx.save_for_backward(*parameters)
        return params, values

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[Any, ...]:
        dparams, dvalues = slopes
        if not torch.is_grad_enabled():
            return None, None, *ctx.owner.backward(ctx.rows, dparams, dvalues, ctx.call)
        # create_graph=True: the gradient itself will be differentiated.
        parameters = [p for p in ctx.saved_tensors if p.requires_grad]
        found = torch.autograd.grad(
            ctx.owner.in_torch(ctx.obs), parameters, slopes, create_graph=True, allow_unused=True
        )
        by_parameter = iter(found)
        return None, None, *(next(by_parameter) if p.requires_grad else None for p in ctx.saved_tensors)


def library() -> ctypes.CDLL:
    """Return the compiled library, with the types of its functions declared. Raises NotCompiled."""
    found = native.library()
    if found.network_create.argtypes is None:
        found.network_create.argtypes, found.network_create.restype = (_POINTER,) * 4, _POINTER
        found.network_free.argtypes = found.network_refresh.argtypes = (_POINTER,)
        found.network_policy.argtypes = found.network_values.argtypes = (_POINTER, _POINTER, _INT, _POINTER)
        found.network_forward.argtypes = found.network_backward.argtypes = (
            *(_POINTER, _POINTER, _INT, _POINTER, _POINTER),
        )
        found.network_use_shards.argtypes = (_POINTER, _POINTER, _INT, _INT)
        found.network_gradient.argtypes = (*(_POINTER,) * 4, _DOUBLE, _INT, _POINTER, _POINTER)
        found.network_epoch.argtypes = (*(_POINTER,) * 5, _INT, _DOUBLE, *(_POINTER,) * 3)
        found.network_gradient.restype = found.network_epoch.restype = ctypes.c_int
    return found


# -- Acting in C++ (ddppo/native/src/acting.hpp): action parameters, actions and log-probabilities of a row in one call.


if TYPE_CHECKING:
    from ddppo.ppo.collector import Collector


class ActingBuffers(ctypes.Structure):
    """The struct `ActingBuffers` of acting.hpp: the same fields in the same order."""

    _fields_ = [
        ("network", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("is_double", "kind", "num_envs", "obs_size", "num_params", "num_noise")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("sizes", "bounds", "noise", "obs", "mask", "actions", "params", "logprobs")
        ),
    ]


class CppActing:
    """Acting of a collector in C++ (ppo/acting.py:Acting). It writes into the rows of the collector's buffers."""

    def __init__(self, collector: "Collector", network: CppNetwork) -> None:
        action, obs = collector.env.spec.action, collector.flat_obs
        assert obs is not None, collector.env.spec
        self.network = network
        self._dtype = collector.logprobs.dtype
        # The struct: sizes, then addresses of the collector's buffers, set once.
        self.buffers = self._empty()
        self.buffers.network = network.handle
        self.buffers.is_double = collector.logprobs.dtype == torch.float64
        self.buffers.kind = network.kind
        self.buffers.num_envs = collector.env.num_envs
        self.buffers.obs_size = collector.env.spec.obs_size
        self.buffers.num_params = collector.params.shape[-1]
        self.buffers.num_noise = num_noise(action)
        self._kept: dict[str, object] = {}  # arrays with addresses in `buffers`, so that they stay alive
        self._set_arrays(
            sizes=np.array(action.sizes, np.int64),
            obs=obs,
            actions=collector.actions,
            params=collector.params,
            logprobs=collector.logprobs,
        )
        if network.bounds is not None:
            self._set_arrays(bounds=network.bounds)
        if collector.masks is not None:
            self._set_arrays(mask=collector.masks)

    def _empty(self) -> Any:
        return ActingBuffers()

    def begin(self, noise: np.ndarray) -> None:
        """Begin a rollout with the current parameters, and with action noise `[T, E, num_noise]`."""
        self.network.refresh()
        self._set_arrays(noise=np.ascontiguousarray(noise, np.float64))

    def act(self, t: int) -> None:
        """Write actions, action parameters and log-probabilities of row t."""
        _act()(ctypes.byref(self.buffers), t)

    def write_logprobs(self, num_rows: int, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Do nothing: `act` has written them."""
        return None

    def state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        """Return values `[num_rows, E]` of rows of observations."""
        return self.network.values(flat_obs(obs, self.network.spec, self._dtype))

    def final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        """Return values `[n]` of final observations `[n, *shape]`."""
        return self.network.values(flat_obs(obs, self.network.spec, self._dtype))

    def _set_arrays(self, **arrays: np.ndarray | torch.Tensor) -> None:
        """Set pointer fields of the struct to these contiguous arrays, and keep the arrays alive."""
        for name, array in arrays.items():
            if isinstance(array, torch.Tensor):
                assert array.is_contiguous(), name
                address = array.data_ptr()
            else:
                assert array.flags.c_contiguous, name
                address = array.ctypes.data
            setattr(self.buffers, name, address)
            self._kept[name] = array


@functools.cache
def _act() -> Callable[..., None]:
    act = library().rollout_act
    act.argtypes, act.restype = (ctypes.c_void_p, ctypes.c_int64), None
    return act
