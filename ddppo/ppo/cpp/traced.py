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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import LOG_STD_RANGE
from ddppo.errors import in_one_line
from ddppo.models.actor_critic import ACTIVATIONS, ActorCritic
from ddppo.ppo.cpp.network import OBS, Layer, NotInCpp, Source

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


class LayerTable:
    """The layers that the methods of a model call, numbered; equal ones once.

    A norm or an activation is a layer of its own here: own_layers.py adds it to the layer that it follows.
    """

    def __init__(self, obs_size: int) -> None:
        self._obs_size, self._numbers = obs_size, dict[Layer, int]()

    def add(self, layer: Layer) -> int:
        """Return the number of a layer."""
        return self._numbers.setdefault(layer, len(self._numbers))

    def layers(self) -> list[Layer]:
        """Return all layers by their numbers, each behind those that it reads."""
        return list(self._numbers)

    def width(self, number: int) -> int:
        """Return the number of outputs of a layer."""
        return self._obs_size if number == OBS else self.layers()[number].width


@dataclass(frozen=True)
class Features:
    """Columns of layers or of the observation, beside one another."""

    shape: tuple[int, ...]  # of one row
    parts: tuple[Source, ...]
    table: LayerTable = field(compare=False, repr=False)

    def columns(self, first: int, width: int) -> "Features":
        """Return the columns [first, first + width) of a vector."""
        found, at = [], 0
        for part in self.parts:
            low, high = max(first - at, 0), min(first + width - at, part.width)
            if low < high:
                found.append(Source(part.layer, part.first + low, high - low))
            at += part.width
        return replace(self, shape=(width,), parts=tuple(found))

    def whole(self) -> int | None:
        """Return the number of the layer with exactly these outputs (OBS: of all observed); None if none has."""
        (part, *others) = self.parts
        is_whole = not others and part == Source(part.layer, 0, self.table.width(part.layer))
        return part.layer if is_whole else None

    def layer(self) -> int:
        """Return the number of a layer that puts out these: one that joins them if they are of several."""
        number = self.whole()
        width = math.prod(self.shape)
        return self.table.add(Layer(width, _beside(self.parts))) if number is None else number

    def linear(self) -> Layer | None:
        """Return the linear layer from which they come straight."""
        number = self.whole()
        layer = None if number in (None, OBS) else self.table.layers()[number]
        return layer if layer is not None and layer.linear is not None else None

    def through(self, width: int, **modules: str) -> "Features":
        """Return the outputs of a layer that reads these."""
        source = Source(self.layer(), 0, math.prod(self.shape))
        number = self.table.add(Layer(width, (source,), **modules))
        return replace(self, shape=(width,), parts=(Source(number, 0, width),))


def _beside(parts: tuple[Source, ...]) -> tuple[Source, ...]:
    """Return parts as sources of a layer, each in the columns behind the last one."""
    found, column = [], 0
    for part in parts:
        found.append(replace(part, column=column))
        column += part.width
    return tuple(found)


@dataclass(frozen=True)
class _Clamped:
    """Log standard deviations within LOG_STD_RANGE."""

    x: Features


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
    """What a task observes if it is a dict: each array."""

    of_key: dict[str, Features]


class _Size:
    """The shape of a tensor, or its number of rows."""


class MethodReader:
    """Reads the graph of a method, node by node. The value of a node is of one of the classes above."""

    def __init__(self, model: ActorCritic, method: str, table: LayerTable) -> None:
        self._model, self._where, self._table = model, f"{type(model).__name__}.{method}", table
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
            return None if self._values else self._obs()
        if node.op == "get_attr":
            x = operator.attrgetter(target)(self._model)
            is_row = isinstance(x, nn.Parameter) and x.dim() > 0 and x.shape[-1] == x.numel()
            return _LogStd(target, x.numel()) if is_row else None
        args, kwargs = self._value(node.args), self._value(dict(node.kwargs))
        if node.op == "call_module":
            return self._module(target, node, *args, **kwargs)
        operation = _METHODS.get(target) if node.op == "call_method" else _FUNCTIONS.get(target)
        if operation is None or (kwargs.pop("inplace", False) and not self._may_overwrite(node)):
            return None
        try:
            return operation(*args, **kwargs)
        except (TypeError, AttributeError, ValueError):  # arguments that C++ does not have
            return None

    def _obs(self) -> Features | _Arrays:
        obs = self._model.spec.obs
        if not isinstance(obs, dict):
            size = math.prod(obs.shape)
            return Features(tuple(obs.shape), (Source(OBS, 0, size),), self._table)
        arrays, at = {}, 0
        for key, leaf in obs.items():
            part = Source(OBS, at, math.prod(leaf.shape))
            arrays[key] = Features(tuple(leaf.shape), (part,), self._table)
            at += part.width
        return _Arrays(arrays)

    def _may_overwrite(self, node: torch.fx.Node) -> bool:
        """Return whether this operation, which overwrites its input, is all that reads it."""
        (below, *_) = node.all_input_nodes
        x = self._value(below)
        return len(below.users) == 1 and isinstance(x, Features) and x.whole() not in (None, OBS)

    def _module(self, name: str, node: torch.fx.Node, x: Any, *others: Any, **kwargs: Any) -> Any:
        m: Any = self._model.get_submodule(name)
        if others or kwargs or not isinstance(x, Features):
            return None
        if type(m) is nn.Linear:
            return x.through(m.out_features, linear=name) if x.shape == (m.in_features,) else None
        if type(m) is nn.LayerNorm:
            has_all = m.weight is not None and m.bias is not None and m.eps == _EPSILON
            is_row = len(x.shape) == 1 and m.normalized_shape == x.shape
            return x.through(x.shape[0], norm=name) if has_all and is_row else None
        if type(m) in (nn.Identity, nn.Flatten):
            return x if type(m) is nn.Identity else _flatten(x, m.start_dim, m.end_dim)
        for activation, kind in ACTIVATIONS.items():
            if type(m) is kind and not (getattr(m, "inplace", False) and not self._may_overwrite(node)):
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


# -- Operations: functions that return the value of a call, None for one that C++ does not have.


def _activated(kind: str) -> Callable[..., Features | None]:
    def read(
        x: Features, *, alpha: float = 1.0, negative_slope: float = 0.01, approximate: str = "none"
    ) -> Features | None:
        is_usual = (alpha, negative_slope, approximate) == (1.0, 0.01, "none")
        if not is_usual or len(x.shape) != 1:
            return None
        return x if kind == "identity" else x.through(x.shape[0], activation=kind)

    return read


def _squeeze(x: Features, dim: int = -1) -> Features | None:
    return replace(x, shape=()) if x.shape == (1,) and dim in (-1, 1) else None


def _flatten(x: Features, start_dim: int = 0, end_dim: int = -1) -> Features | None:
    if start_dim == 0:
        return _squeeze(x)
    is_row = start_dim in (1, -len(x.shape)) and end_dim == -1
    return replace(x, shape=(math.prod(x.shape),)) if is_row and x.shape else None


def _unsqueeze(x: Features, dim: int) -> Features | None:
    """[n] as [n, 1]."""
    return replace(x, shape=(1,)) if x.shape == () and dim in (-1, 1) else None


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
        return x.of_key[key]
    rows, columns = key
    if isinstance(columns, slice) and rows in (Ellipsis, slice(None)) and len(x.shape) == 1:
        first, end, step = columns.indices(x.shape[0])
        return x.columns(first, end - first) if step == 1 and first < end else None
    return _squeeze(x) if key in ((Ellipsis, 0), (slice(None), 0)) else None


def _attribute(x: Any, name: str) -> _Size | None:
    return _Size() if name == "shape" else None


def _chunks(x: Features, chunks: int, dim: int = 0) -> tuple[Features, ...] | None:
    if len(x.shape) != 1 or dim not in (-1, 1) or x.shape[0] % chunks:
        return None
    width = x.shape[0] // chunks
    return tuple(x.columns(i * width, width) for i in range(chunks))


def _clamped(x: Features, min: Any = None, max: Any = None) -> _Clamped | None:
    return _Clamped(x) if (min, max) == LOG_STD_RANGE else None


def _added(x: Any, y: Any) -> Features | None:
    """The sum of two vectors, such as a residual addition."""
    if not (isinstance(x, Features) and isinstance(y, Features) and x.shape == y.shape and len(x.shape) == 1):
        return None
    sources = (*_beside(x.parts), *_beside(y.parts))
    number = x.table.add(Layer(x.shape[0], sources))
    return replace(x, parts=(Source(number, 0, x.shape[0]),))


def _expanded_as(x: _LogStd, other: Features) -> _LogStd | None:
    return replace(x, is_expanded=True) if (x.size,) == other.shape else None


def _expanded(x: _LogStd, *shape: Any) -> _LogStd | None:
    (shape,) = shape if isinstance(shape[0], tuple) else (shape,)
    rows, size = shape
    return replace(x, is_expanded=True) if isinstance(rows, _Size) and size in (-1, x.size) else None


def _joined(tensors: tuple[Any, ...], dim: int = 0) -> GaussianParams | Features | None:
    """Vectors beside one another, or means beside log standard deviations."""
    if dim not in (-1, 1):
        return None
    (means, *others) = tensors
    if isinstance(means, Features) and len(others) == 1 and isinstance(others[0], _LogStd):
        (log_std,) = others
        is_beside = log_std.is_expanded and means.shape == (log_std.size,)
        return GaussianParams(means, log_std.name) if is_beside else None
    if isinstance(means, Features) and len(others) == 1 and isinstance(others[0], _Clamped):
        (rest,) = (clamped.x for clamped in others)
        both = _joined((means, rest), dim) if means.shape == rest.shape else None
        return GaussianParams(both, None) if isinstance(both, Features) and both.linear() else None
    if not all(isinstance(x, Features) and len(x.shape) == 1 for x in tensors):
        return None
    parts: list[Source] = []
    for part in (part for x in tensors for part in x.parts):
        if parts and (parts[-1].layer, parts[-1].first + parts[-1].width) == (part.layer, part.first):
            parts[-1] = replace(parts[-1], width=parts[-1].width + part.width)  # neighbours
        else:
            parts.append(part)
    return replace(means, shape=(sum(part.width for part in parts),), parts=tuple(parts))


_METHODS: dict[Any, Callable[..., Any]] = {
    **{kind: _activated(kind) for kind in ("tanh", "relu")},
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "flatten": _flatten,
    "reshape": _reshape,
    "view": _reshape,
    "size": lambda x, dim=None: _Size(),
    "chunk": _chunks,
    "add": _added,
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
    torch.chunk: _chunks,
    operator.add: _added,
    torch.add: _added,
    torch.clamp: _clamped,
    torch.cat: _joined,
}
