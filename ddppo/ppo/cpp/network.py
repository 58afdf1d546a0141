"""The MLP in C++ (ddppo/native/src/mlp.hpp), and acting with it.

`why_not_cpp` says whether a run can use it. `CppNetwork` computes action parameters and values; `CppStep` (learner.py)
computes its gradient. `CppActing`, at the end, is how a collector acts with it.
"""

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddppo import native
from ddppo.config.rank_rules import MOST_WEIGHTS
from ddppo.config.settings import Config
from ddppo.models.actor_critic import MLP, ActorCritic, Obs, flat_obs, is_asymmetric
from ddppo.models.distributions import bounds_of, gauss_hermite, num_noise, squash_of
from ddppo.spaces import ActionSpec, EnvSpec, leaves

_ACTIVATIONS = (
    "tanh",
    "relu",
    "elu",
    "leaky_relu",
    "silu",
    "gelu",
)  # in the order of the enum Activation in activations.hpp
# In the order of the enum ActionKind in losses.hpp. box: Gaussian actions; beta: a box with a Beta distribution.
KINDS = (
    "discrete",
    "multi_discrete",
    "multi_binary",
    "box",
    "beta",
)
_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


# -- Whether C++ can compute a run: every reason against it is a row here. (torch.compile has its own, loop/compute.py.)


def why_not_cpp(config: Config, model: ActorCritic, device: torch.device, sync_name: str) -> str | None:
    """Return why this rank cannot learn in C++, as part of a sentence; None if it can. Compiles the library."""
    # Settings that the C++ of the learner does not know.
    if config.ppo.algorithm != "ppo":
        return f"ppo.algorithm={config.ppo.algorithm} has no step in C++"
    if config.ppo.learning_rates:
        return "ppo.learning_rates gives parts of the model different step sizes"
    return why_not_cpp_network(config, model, device, sync_name)


def why_not_cpp_network(
    config: Config, model: ActorCritic, device: torch.device, sync_name: str
) -> str | None:
    """Return why a loss in torch cannot call the network in C++, as part of a sentence; None if it can."""
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile}"
    if config.dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={config.dist.threads_per_rank}, and C++ uses one thread"
    if sync_name == "ddp":
        return "dist.grad_sync=ddp sums gradients inside backward"
    return why_not_native(model, device)


def why_not_native(model: ActorCritic, device: torch.device) -> str | None:
    """Return why C++ cannot compute this network, as part of a sentence; None if it can. Compiles the library."""
    # Networks that it does not know: exactly ddppo's MLP, since a subclass may compute anything.
    if type(model) is not MLP:
        return f"{type(model).__name__} is not ddppo's MLP"
    if is_asymmetric(model.spec):
        return "its policy and its value function read different arrays"
    if not all(leaf.is_float for leaf in leaves(model.spec.obs)):
        return "the task observes pixels"
    if is_faster_in_torch(model):
        return f"a layer has more than {MOST_WEIGHTS:,} weights, which torch multiplies faster"
    if device.type != "cpu":
        return f"C++ computes on CPUs, and device is {device.type}"
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


def is_as_in_torch(network: "Differentiable", model: MLP, obs: torch.Tensor) -> bool:
    """Return whether a network in C++ has the outputs of torch's layers and their gradient, up to rounding."""
    found: list[list[torch.Tensor]] = []
    parameters = [p for p in model.parameters() if p.requires_grad]
    for params, values in (network(model, obs), model.in_torch(obs)):
        loss = params.square().sum() + (params.sum(dim=1) * values).sum() + values.sum()
        found.append([params, values, *torch.autograd.grad(loss, parameters)])
    close = 1e-4 if obs.dtype == torch.float32 else 1e-9
    return all(
        float((a - b).detach().abs().max()) <= close * max(1.0, float(b.detach().abs().max()))
        for a, b in zip(*found, strict=True)
    )


# -- The network.


class CppNetwork:
    """The MLP in C++. It reads the flat vector of parameters `[num_parameters]` in place, and writes into its `.grad`.

    The outputs for an observation do not depend on the other observations of a batch.
    """

    def __init__(
        self,
        model: MLP,
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
        description = np.array(_description(model, spec), np.int64)
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

    def use_shards(self, rows: torch.Tensor, *, adds: bool) -> None:
        """Compute the gradient of each shard into a row `[S, num_parameters]`; `adds`: and their sum in pairs."""
        self._rows = rows  # so that it stays alive
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


# -- The network as an operation of autograd, for any loss that torch computes.


class Differentiable:
    """Calls an MLP's network in C++ forward and backward; `MLP.forward` uses it if loop/compute.py set `MLP.in_cpp`.

    Autograd sees one operation with the model's parameters as inputs. So a loss may be anything: it may read
    parameters, call the model several times, or differentiate a gradient again, which torch's own layers then compute.
    """

    def __init__(self, model: MLP, spec: EnvSpec, parameters: torch.nn.Parameter) -> None:
        self._network = CppNetwork(model, spec, parameters, torch.zeros_like(parameters.data))
        self._dtype = parameters.dtype
        self._places = [
            (module._parameters, name, p)
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None
        ]
        self._own = list(model.parameters())
        self._sizes = [p.numel() for p in self._own]
        self._shapes = [p.shape for p in self._own]
        self._addresses = [p.data_ptr() for p in self._own]
        self._call = 0  # counts forward passes: activations of the last one are kept

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of the model has other parameters: it computes in torch."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()

    def takes(self, obs: Obs) -> bool:
        """Return whether C++ computes this call: with a graph, on rows, by the parameters that it knows."""
        return (
            torch.is_grad_enabled()
            and isinstance(obs, torch.Tensor)
            and obs.dim() == 2
            and obs.dtype == self._dtype
            and not obs.requires_grad
            and all(parameters[name] is p for parameters, name, p in self._places)
            and all(p.data_ptr() == at for p, at in zip(self._own, self._addresses, strict=True))
        )

    def __call__(self, model: MLP, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]` of obs `[n, obs_size]`."""
        return _Outputs.apply(self, model, obs.contiguous(), *self._own)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        network = self._network
        params, values = obs.new_empty(len(obs), network.num_params), obs.new_empty(len(obs))
        library().network_forward(
            network.handle, obs.data_ptr(), len(obs), params.data_ptr(), values.data_ptr()
        )
        self._call += 1
        return params, values, self._call

    def backward(
        self, obs: torch.Tensor, dparams: torch.Tensor, dvalues: torch.Tensor, call: int
    ) -> list[torch.Tensor]:
        """Return the gradient by each parameter."""
        if call != self._call:  # another forward pass came between
            self.forward(obs)
        dparams, dvalues = dparams.contiguous(), dvalues.contiguous()
        library().network_backward(
            self._network.handle, obs.data_ptr(), len(obs), dparams.data_ptr(), dvalues.data_ptr()
        )
        parts = self._network.gradient.clone().split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, owner: Differentiable, model: MLP, obs: torch.Tensor, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        params, values, call = owner.forward(obs)
        ctx.owner, ctx.model, ctx.obs, ctx.call = owner, model, obs, call
        ctx.save_for_backward(*parameters)
        return params, values

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[Any, ...]:
        dparams, dvalues = slopes
        if not torch.is_grad_enabled():
            return None, None, None, *ctx.owner.backward(ctx.obs, dparams, dvalues, ctx.call)
        # create_graph=True: the gradient itself will be differentiated.
        parameters = [p for p in ctx.saved_tensors if p.requires_grad]
        found = torch.autograd.grad(
            ctx.model.in_torch(ctx.obs), parameters, slopes, create_graph=True, allow_unused=True
        )
        by_parameter = iter(found)
        return None, None, None, *(next(by_parameter) if p.requires_grad else None for p in ctx.saved_tensors)


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


def _description(model: MLP, spec: EnvSpec) -> list[int]:
    """Return the network's shape and the offsets of its parameters, as `network_create` in learn.cpp reads them."""
    # Where each parameter begins in the flat vector.
    offsets, offset = {}, 0
    for name, p in model.named_parameters():
        offsets[name] = offset
        offset += p.numel()
    layers = []
    for trunk in ("policy_trunk",) if model.shared_trunk else ("policy_trunk", "value_trunk"):
        layers += [
            f"{trunk}.{name}"
            for name, m in getattr(model, trunk).named_children()
            if isinstance(m, torch.nn.Linear | torch.nn.LayerNorm)
        ]
    # The order in which Network of mlp.hpp reads the places.
    layers += ["policy_head", "value_head"]
    places = [offsets[f"{layer}.{part}"] for layer in layers for part in ("weight", "bias")]
    if model.log_std is not None:
        places.append(offsets["log_std"])
    hidden = [m.out_features for m in model.policy_trunk if isinstance(m, torch.nn.Linear)]
    action: ActionSpec = spec.action
    # A list is preceded by its length.
    return [
        next(model.parameters()).dtype == torch.float64,
        _ACTIVATIONS.index(model.activation),
        model.shared_trunk,
        model.layer_norm,
        KINDS.index("beta" if model.is_beta else action.kind),
        model.is_gaussian and model.log_std is None,
        spec.obs_size,
        *(len(hidden), *hidden),
        *(len(action.sizes), *action.sizes),
        *(len(places), *places),
        offset,
        len(gauss_hermite()[0]) if model.is_squashed else 0,
    ]


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
