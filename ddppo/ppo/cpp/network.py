"""The MLP in C++ (ddppo/native/src/mlp.hpp): its policy and values for acting, its gradient for learning."""

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddppo import native
from ddppo.config.settings import Config
from ddppo.models.actor_critic import MLP, ActorCritic, Obs, flat_obs
from ddppo.models.distributions import num_noise
from ddppo.spaces import ActionSpec, EnvSpec, leaves

_ACTIVATIONS = ("tanh", "relu", "elu", "leaky_relu")  # in the order of src/activations.hpp
KINDS = ("discrete", "multi_discrete", "multi_binary", "box")  # in the order of src/losses.hpp
# Of one layer: beyond, weights, their packed copy and gradient leave a core's cache (experiments/growth).
_MOST_WEIGHTS = 2**19
_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def why_not_cpp(config: Config, model: ActorCritic, device: torch.device, sync_name: str) -> str | None:
    """Return why this rank cannot take the step in C++, in half a sentence, or None; compiles the library."""
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile}"
    if config.ppo.algorithm != "ppo":
        return f"ppo.algorithm={config.ppo.algorithm} has no step in C++"
    if config.ppo.losses:
        return "ppo.losses adds terms of your own to the loss"
    if config.ppo.learning_rates:
        return "ppo.learning_rates gives parts of the model step sizes of their own"
    if config.dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={config.dist.threads_per_rank}, and it knows one thread"
    if sync_name == "ddp":
        return "dist.grad_sync=ddp sums gradients inside backward"
    return why_not_native(model, device)


def why_not_native(model: ActorCritic, device: torch.device) -> str | None:
    """Return why the network cannot be computed in C++ here, in half a sentence, or None; compiles the library."""
    if type(model) is not MLP:
        return f"{type(model).__name__} is not ddppo's MLP"
    if model.is_squashed:
        return "model.squash=tanh squashes its actions"
    if model.is_box and model.log_std is None:
        return "model.log_std=state has the network give deviations"
    if not all(leaf.is_float for leaf in leaves(model.spec.obs)):
        return "the task observes pixels"
    if model.activation not in _ACTIVATIONS:
        return f"model.activation={model.activation} is none of {', '.join(_ACTIVATIONS)}"
    if is_faster_in_torch(model):
        return f"a layer has more than {_MOST_WEIGHTS:,} weights, which torch multiplies faster"
    if device.type != "cpu":
        return f"it computes on CPUs, and device is {device.type}"
    return native.why_not()


def is_faster_in_torch(model: ActorCritic) -> bool:
    return max(p.numel() for p in model.parameters()) > _MOST_WEIGHTS


def rows_are_independent(network: "CppNetwork", obs: torch.Tensor) -> bool:
    """Return whether a row `[obs_size]` of obs has the same bits in any batch and at any place in it.

    Compilers may round otherwise in a loop's remainder; what every W computes alike rests on this.
    """
    network.refresh()

    def of(rows: torch.Tensor) -> torch.Tensor:
        params = network.policy(rows, rows.new_empty(len(rows), network.num_params))
        return torch.cat([params, network.values(rows).unsqueeze(1)], dim=1)

    whole = of(obs)
    parts = [torch.cat([of(part.clone()) for part in obs.split(size)]) for size in (1, 2, 3, 6, 7)]
    shifted = of(obs.roll(1, 0)).roll(-1, 0)
    return all(torch.equal(whole, each) for each in (*parts, shifted))


class CppNetwork:
    """Reads the parameters from the flat vector `[num_parameters]` and leaves gradients in that of its `.grad`.

    Every row is computed by itself: it does not depend on which rows, and how many, are computed with it.
    """

    def __init__(self, model: MLP, spec: EnvSpec, parameters: torch.nn.Parameter) -> None:
        assert parameters.grad is not None
        self.parameters, self.gradient = parameters, parameters.grad
        self.spec = spec
        self.num_params = model.num_params
        self._library = library()
        description = np.array(_description(model, spec), np.int64)
        self.handle: int = self._library.network_create(
            description.ctypes.data, parameters.data.data_ptr(), self.gradient.data_ptr()
        )
        weakref.finalize(self, self._library.network_free, self.handle)

    def refresh(self) -> None:
        """Take over the parameters as they are now, for `policy` and `values`."""
        self._library.network_refresh(self.handle)

    def policy(self, obs: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Leave action parameters `[n, P]` of obs `[n, obs_size]` in `out` and return it; all contiguous."""
        self._library.network_policy(self.handle, obs.data_ptr(), len(obs), out.data_ptr())
        return out

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values `[...]` of obs `[..., obs_size]`."""
        rows = obs.contiguous()
        out = rows.new_empty(rows.shape[:-1])
        self._library.network_values(self.handle, rows.data_ptr(), out.numel(), out.data_ptr())
        return out


def library() -> ctypes.CDLL:
    """Return the library with its functions' types declared. Raises NotCompiled."""
    found = native.library()
    if found.network_create.argtypes is None:
        found.network_create.argtypes, found.network_create.restype = (_POINTER,) * 3, _POINTER
        found.network_free.argtypes = found.network_refresh.argtypes = (_POINTER,)
        found.network_policy.argtypes = found.network_values.argtypes = (_POINTER, _POINTER, _INT, _POINTER)
        found.network_gradient.argtypes = (_POINTER, _POINTER, _POINTER, _INT, _DOUBLE, _POINTER)
        found.network_epoch.argtypes = (*(_POINTER,) * 5, _INT, _DOUBLE, _POINTER, _POINTER)
        found.network_epoch.restype = ctypes.c_int
    return found


def _description(model: MLP, spec: EnvSpec) -> list[int]:
    """Return the network's shape and places of its parameters, as network_create in src/learn.cpp reads them."""
    offsets, offset = {}, 0
    for name, p in model.named_parameters():
        offsets[name] = offset
        offset += p.numel()
    layers = []
    for trunk in ("policy_trunk",) if model.shared_trunk else ("policy_trunk", "value_trunk"):
        linear = [
            name for name, m in getattr(model, trunk).named_children() if isinstance(m, torch.nn.Linear)
        ]
        layers += [f"{trunk}.{name}" for name in linear]
    layers += ["policy_head", "value_head"]
    places = [offsets[f"{layer}.{part}"] for layer in layers for part in ("weight", "bias")]
    if model.is_box:
        places.append(offsets["log_std"])
    hidden = [m.out_features for m in model.policy_trunk if isinstance(m, torch.nn.Linear)]
    action: ActionSpec = spec.action
    return [
        next(model.parameters()).dtype == torch.float64,
        _ACTIVATIONS.index(model.activation),
        model.shared_trunk,
        KINDS.index(action.kind),
        spec.obs_size,
        *(len(hidden), *hidden),
        *(len(action.sizes), *action.sizes),
        *(len(places), *places),
        offset,
    ]


# -- Acting in C++ (ddppo/native/src/acting.hpp): policy, draw and log-probability of a row in one call.


if TYPE_CHECKING:
    from ddppo.ppo.collector import Collector


class ActingBuffers(ctypes.Structure):
    """`ActingBuffers` of acting.hpp."""

    _fields_ = [
        ("network", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("is_double", "kind", "num_envs", "obs_size", "num_params", "num_noise")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("sizes", "noise", "obs", "mask", "actions", "params", "logprobs")
        ),
    ]


class CppActing:
    """Writes actions, their parameters and log-probabilities into the rows of a collector's buffers."""

    def __init__(self, collector: "Collector", network: CppNetwork) -> None:
        action, obs = collector.env.spec.action, collector.flat_obs
        assert obs is not None, collector.env.spec
        self.network = network
        self._dtype = collector.logprobs.dtype
        self.buffers = self._empty()
        self.buffers.network = network.handle
        self.buffers.is_double = collector.logprobs.dtype == torch.float64
        self.buffers.kind = KINDS.index(action.kind)
        self.buffers.num_envs = collector.env.num_envs
        self.buffers.obs_size = collector.env.spec.obs_size
        self.buffers.num_params = collector.params.shape[-1]
        self.buffers.num_noise = num_noise(action)
        self._kept: dict[str, object] = {}  # what C++ is told the addresses of
        self.point(
            sizes=np.array(action.sizes, np.int64),
            obs=obs,
            actions=collector.actions,
            params=collector.params,
            logprobs=collector.logprobs,
        )
        if collector.masks is not None:
            self.point(mask=collector.masks)

    def _empty(self) -> Any:
        return ActingBuffers()

    def begin(self, noise: np.ndarray) -> None:
        """Take over the parameters as they are now, and the noise `[T, E, num_noise]` of a rollout."""
        self.network.refresh()
        self.point(noise=np.ascontiguousarray(noise, np.float64))

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

    def point(self, **arrays: np.ndarray | torch.Tensor) -> None:
        """Tell C++ where contiguous arrays are, and keep them."""
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
