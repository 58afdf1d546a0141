"""Acting in C++ (ddppo/native/src/acting.hpp): policy, draw and log-probability of a row in one call."""

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddppo.models import num_noise
from ddppo.ppo.native.network import KINDS, NativeNetwork, library

if TYPE_CHECKING:
    from ddppo.ppo.acting.collector import Collector


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


class NativeActor:
    """Writes actions, their parameters and log-probabilities into the rows of a collector's buffers."""

    def __init__(self, collector: "Collector", network: NativeNetwork) -> None:
        action, obs = collector.env.spec.action, collector.flat_obs
        assert obs is not None, collector.env.spec
        self.network = network
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
        """Act on row t."""
        _act()(ctypes.byref(self.buffers), t)

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
