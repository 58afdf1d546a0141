"""What a method of a network computes, read from the operations that torch.fx records of it: `MethodReader`.

torch.fx calls the method once with a stand-in for obs that records all operations. `MethodReader` goes through them. An
operation that C++ does not have raises `NotInCpp`, with the line of the user's code that calls it. Recording sees what
a method does now; CppNetwork.check_unchanged tests later that it still does.
"""

import math
import operator
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import LOG_STD_RANGE
from ddppo.errors import in_one_line
from ddppo.models.actor_critic import ACTIVATIONS, ActorCritic
from ddppo.ppo.cpp.network import HiddenLayer, NotInCpp

_EPSILON = 1e-5  # of LayerNorm in layer_norm.hpp


# -- Tracing.


class _StandIn(torch.fx.Proxy):
    """Stands for a tensor, also for code that asks `isinstance(obs, torch.Tensor)`."""

    __class__ = property(lambda self: torch.Tensor)


class _Tracer(torch.fx.Tracer):
    """Records the operations of one method, each with the line of the user's code that calls it."""

    proxy_buffer_attributes = True

    def __init__(self, method: str, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.traced_func_name, self._keys = method, keys

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        function, stand_ins = super().create_args_for_root(*args, **kwargs)
        if self._keys:  # obs is a dict
            stand_ins[1] = {key: stand_ins[1][key] for key in self._keys}
        return function, stand_ins

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        return _StandIn(node, self)

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is _StandIn else super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = super().create_node(*args, **kwargs)
        frame: Any = sys._getframe(1)
        while frame is not None and _is_tracing(frame.f_code.co_filename):
            frame = frame.f_back
        node.meta["place"] = "" if frame is None else _place(frame.f_code.co_filename, frame.f_lineno)
        return node


def _is_tracing(file: str) -> bool:
    return file == __file__ or Path(file).is_relative_to(Path(torch.__file__).parent)


def _place(file: str, line: int | None) -> str:
    return f"{Path(file).name}:{line}"


def _keys_of(model: ActorCritic) -> tuple[str, ...]:
    """Return the names of the arrays that a task observes; () for one array without a name."""
    return tuple(model.spec.obs) if isinstance(model.spec.obs, dict) else ()


def _graph_of(model: ActorCritic, method: str, where: str) -> torch.fx.Graph:
    try:
        return _Tracer(method, _keys_of(model)).trace(model)
    except Exception as e:  # a user's code may do anything with what it gets
        own = [f for f in traceback.extract_tb(e.__traceback__) if not _is_tracing(f.filename)]
        place = f" at {_place(own[-1].filename, own[-1].lineno)}" if own else ""
        if isinstance(e, torch.fx.proxy.TraceError):
            raise NotInCpp(f"{where} decides by what is in a tensor{place}") from e
        raise NotInCpp(f"{where} cannot be read{place}: {in_one_line(e)}") from e


# -- Reading the graph of a method.


@dataclass(frozen=True)
class Features:
    """What some layers make of an observation. A norm or an activation of the last layer may follow."""

    shape: tuple[int, ...]  # of one row
    layers: tuple[HiddenLayer, ...] = ()
    half: int | None = None  # 0 or 1: only this half of the columns
    is_clamped: bool = False  # to LOG_STD_RANGE
    arrays: tuple[
        str, ...
    ] = ()  # of a task that observes several: those beside one another here, before any layer

    @property
    def is_linear(self) -> bool:
        """Whether they come straight from a linear layer."""
        return bool(self.layers) and self.layers[-1] == HiddenLayer(self.layers[-1].linear)

    def ending(self, **changes: str) -> "Features":
        """These features with another end of their last layer."""
        return replace(self, layers=(*self.layers[:-1], replace(self.layers[-1], **changes)))


@dataclass(frozen=True)
class _LogStd:
    """A parameter beside the network, repeated for every row if `is_expanded`."""

    name: str
    size: int
    is_expanded: bool = False


@dataclass(frozen=True)
class GaussianParams:
    """Means, and log standard deviations: a parameter, or outputs that are clamped (null)."""

    means: Features
    log_std: str | None


@dataclass(frozen=True)
class _Arrays:
    """What a task observes if it is a dict: the shape of each array."""

    shapes: dict[str, tuple[int, ...]]


class _Size:
    """The shape of a tensor, or its number of rows."""


class MethodReader:
    """Reads the graph of a method, node by node. The value of a node is of one of the classes above."""

    def __init__(self, model: ActorCritic, method: str) -> None:
        self._model, self._where = model, f"{type(model).__name__}.{method}"
        self._graph = _graph_of(model, method, self._where)
        self._values: dict[torch.fx.Node, Any] = {}

    def output(self) -> Any:
        """Return the value of the method. Raises NotInCpp for what C++ does not have."""
        for node in self._graph.nodes:
            if node.op == "output":
                return self._value(node.args[0])
            found = self._read(node)
            if found is None:
                verb = "reads" if node.op == "get_attr" else "calls"
                raise NotInCpp(
                    f"{self._where} {verb} {self._name(node)} ({node.meta['place']}), which C++ does not have there"
                )
            self._values[node] = found
        raise AssertionError(self._graph)

    def _read(self, node: torch.fx.Node) -> Any:
        """Return the value of a node; None for what C++ does not have."""
        target: Any = node.target
        if node.op == "placeholder":
            obs = self._model.spec.obs
            if isinstance(obs, dict):
                return _Arrays({key: tuple(leaf.shape) for key, leaf in obs.items()})
            return None if self._values else Features(tuple(obs.shape))
        if node.op == "get_attr":
            x = operator.attrgetter(target)(self._model)
            is_row = isinstance(x, nn.Parameter) and x.dim() > 0 and x.shape[-1] == x.numel()
            return _LogStd(target, x.numel()) if is_row else None
        args, kwargs = self._value(node.args), self._value(dict(node.kwargs))
        if node.op == "call_module":
            return self._module(target, node, *args, **kwargs)
        operation = _METHODS.get(target) if node.op == "call_method" else _FUNCTIONS.get(target)
        if operation is None or (kwargs.pop("inplace", False) and not _is_read_once(node)):
            return None
        try:
            return operation(*args, **kwargs)
        except (TypeError, AttributeError, ValueError):  # arguments that C++ does not have
            return None

    def _module(self, name: str, node: torch.fx.Node, x: Any, *others: Any, **kwargs: Any) -> Any:
        m: Any = self._model.get_submodule(name)
        if others or kwargs or not isinstance(x, Features) or x.half is not None:
            return None
        if type(m) is nn.Linear:
            if x.arrays != (keys := _keys_of(self._model)) and not x.layers:
                raise NotInCpp(
                    f"{self._where} reads {' and '.join(x.arrays)} ({node.meta['place']}), and C++ reads all arrays in "
                    f"their order: {', '.join(keys)}"
                )
            layers = (*x.layers, HiddenLayer(name))
            return Features((m.out_features,), layers) if x.shape == (m.in_features,) else None
        if type(m) is nn.LayerNorm:
            has_all = m.weight is not None and m.bias is not None and m.eps == _EPSILON
            return x.ending(norm=name) if has_all and x.is_linear and m.normalized_shape == x.shape else None
        if type(m) in (nn.Identity, nn.Flatten):
            return x if type(m) is nn.Identity else _flatten(x, m.start_dim, m.end_dim)
        for activation, kind in ACTIVATIONS.items():
            if type(m) is kind and not (getattr(m, "inplace", False) and not _is_read_once(node)):
                options = ("alpha", "negative_slope", "approximate")
                return _activated(activation)(x, **{key: y for key, y in vars(m).items() if key in options})
        return None

    def _value(self, x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return self._values[x]
        if isinstance(x, dict):
            return {key: self._value(y) for key, y in x.items()}
        return tuple(map(self._value, x)) if isinstance(x, list | tuple) else x

    def _name(self, node: torch.fx.Node) -> str:
        if node.op == "call_module":
            assert isinstance(node.target, str), node
            return f"{type(self._model.get_submodule(node.target)).__name__} {node.target}"
        return node.target if isinstance(node.target, str) else node.target.__name__


def _is_read_once(node: torch.fx.Node) -> bool:
    """Return whether this operation, which overwrites its input, is all that reads it."""
    (x, *_) = node.all_input_nodes
    return len(x.users) == 1


# -- Operations: functions that return the value of a call, None for one that C++ does not have.


def _activated(kind: str) -> Callable[..., Features | None]:
    def read(
        x: Features, *, alpha: float = 1.0, negative_slope: float = 0.01, approximate: str = "none"
    ) -> Features | None:
        is_usual = (alpha, negative_slope, approximate) == (1.0, 0.01, "none")
        is_open = len(x.shape) == 1 and x.layers and x.layers[-1].activation == "identity" and x.half is None
        return x.ending(activation=kind) if is_usual and is_open else None

    return read


def _squeeze(x: Features, dim: int = -1) -> Features | None:
    return replace(x, shape=()) if x.shape == (1,) and dim in (-1, 1) else None


def _flatten(x: Features, start_dim: int = 0, end_dim: int = -1) -> Features | None:
    if start_dim == 0:
        return _squeeze(x)
    is_row = start_dim in (1, -len(x.shape)) and end_dim == -1
    return replace(x, shape=(math.prod(x.shape),)) if is_row and x.shape else None


def _unsqueeze(x: Features, dim: int) -> Features | None:
    """A number of an observation, [n], as [n, 1]."""
    return replace(x, shape=(1,)) if x.shape == () and dim in (-1, 1) and not x.layers else None


def _reshape(x: Features, *shape: Any) -> Features | None:
    """[n, 1] as [n], or a row of several dimensions as a vector."""
    (shape,) = shape if isinstance(shape[0], tuple) else (shape,)
    if len(shape) == 1:
        return _squeeze(x) if shape == (-1,) else None
    rows, size = shape
    is_whole = (
        size in (-1, math.prod(x.shape)) if isinstance(rows, _Size) else shape == (-1, math.prod(x.shape))
    )
    return _flatten(x, 1) if is_whole else None


def _entry(x: Any, key: Any) -> Any:
    if isinstance(x, tuple | _Size):
        return x[key] if isinstance(x, tuple) else x
    if isinstance(x, _Arrays):
        return Features(x.shapes[key], arrays=(key,))
    return _squeeze(x) if key in ((Ellipsis, 0), (slice(None), 0)) else None


def _attribute(x: Any, name: str) -> _Size | None:
    return _Size() if name == "shape" else None


def _halves(x: Features, chunks: int, dim: int = 0) -> tuple[Features, Features] | None:
    if not (x.is_linear and x.half is None and chunks == 2 and dim in (-1, 1) and x.shape[0] % 2 == 0):
        return None
    first, second = (replace(x, shape=(x.shape[0] // 2,), half=half) for half in (0, 1))
    return first, second


def _clamped(x: Features, min: Any = None, max: Any = None) -> Features | None:
    return replace(x, is_clamped=True) if x.half == 1 and (min, max) == LOG_STD_RANGE else None


def _expanded_as(x: _LogStd, other: Features) -> _LogStd | None:
    return replace(x, is_expanded=True) if (x.size,) == other.shape else None


def _expanded(x: _LogStd, *shape: Any) -> _LogStd | None:
    (shape,) = shape if isinstance(shape[0], tuple) else (shape,)
    rows, size = shape
    return replace(x, is_expanded=True) if isinstance(rows, _Size) and size in (-1, x.size) else None


def _joined(tensors: tuple[Any, ...], dim: int = 0) -> GaussianParams | Features | None:
    """Arrays of an observation beside one another, or means beside log standard deviations."""
    if dim in (-1, 1) and all(isinstance(x, Features) and x.arrays and len(x.shape) == 1 for x in tensors):
        return Features(
            (sum(x.shape[0] for x in tensors),), arrays=tuple(key for x in tensors for key in x.arrays)
        )
    means, log_std = tensors
    if dim not in (-1, 1) or not isinstance(means, Features):
        return None
    if isinstance(log_std, _LogStd):
        is_beside = log_std.is_expanded and means.half is None and means.shape == (log_std.size,)
        return GaussianParams(means, log_std.name) if is_beside else None
    whole = replace(means, shape=(2 * means.shape[0],), half=None)
    is_rest = means.half == 0 and log_std == replace(means, half=1, is_clamped=True)
    return GaussianParams(whole, None) if is_rest else None


_METHODS: dict[Any, Callable[..., Any]] = {
    **{kind: _activated(kind) for kind in ("tanh", "relu")},
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "flatten": _flatten,
    "reshape": _reshape,
    "view": _reshape,
    "size": lambda x, dim=None: _Size(),
    "chunk": _halves,
    "clamp": _clamped,
    "expand_as": _expanded_as,
    "expand": _expanded,
}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.tanh: _activated("tanh"),
    torch.relu: _activated("relu"),
    **{getattr(F, kind): _activated(kind) for kind in ("relu", "elu", "leaky_relu", "silu", "gelu")},
    torch.squeeze: _squeeze,
    torch.unsqueeze: _unsqueeze,
    torch.flatten: _flatten,
    torch.reshape: _reshape,
    operator.getitem: _entry,
    getattr: _attribute,
    torch.chunk: _halves,
    torch.clamp: _clamped,
    torch.cat: _joined,
}
