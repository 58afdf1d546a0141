"""The layers of a network of a user's own, if C++ has all of them: `layers_of_own`.

`MethodReader` (traced.py) finds the operations that `forward`, `action_params` and `value` call. Here is the rest: that
the three agree, that nothing from outside of their code changes what they compute, and that every parameter has its
place. A part that C++ does not have raises `NotInCpp`, whose message names the part and the line of code.
"""

import copy
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ddppo.config.model_settings import LOG_STD_RANGE
from ddppo.errors import in_one_line
from ddppo.models.actor_critic import ActorCritic
from ddppo.ppo.cpp.network import OBS, Layer, NetworkLayers, NotInCpp, Source, hooked
from ddppo.ppo.cpp.traced import Features, GaussianParams, LayerTable, MethodReader


def layers_of_own(model: ActorCritic) -> NetworkLayers:
    """Return the layers of a user's network. Raises NotInCpp."""
    _check_contract(model, type(model).__name__)
    _check_modules(model)
    if model not in _found:
        try:
            _found[model] = _traced(model, type(model).__name__)
        except NotInCpp as e:
            _found[model] = str(e)
    if isinstance(layers := _found[model], str):
        raise NotInCpp(layers)
    _check_parameters(model, layers)
    return layers


# Of models that were traced, which takes some 20 ms: the layers, or why C++ does not have them.
_found: "weakref.WeakKeyDictionary[ActorCritic, NetworkLayers | str]" = weakref.WeakKeyDictionary()


def _traced(model: ActorCritic, kind: str) -> NetworkLayers:
    """Return the layers that the methods of the model call, also in evaluation."""
    try:
        traced = copy.deepcopy(model)  # tracing may leave something in its attributes
    except Exception as e:  # a user's module may hold anything
        raise NotInCpp(f"{kind} cannot be copied: {in_one_line(e)}") from e
    before = _state_of(traced)
    found = [_agreed(traced.train(is_training), kind) for is_training in (False, True)]
    if found[0] != found[1]:
        raise NotInCpp(f"{kind} computes something else after eval()")
    if (changed := _changed(before, _state_of(traced))) is not None:
        raise NotInCpp(f"{kind} changes its attribute {changed} when it is called")
    return found[0]


# -- The layers.


def _agreed(model: ActorCritic, kind: str) -> NetworkLayers:
    """Return the layers by which the three methods compute the same."""
    table = LayerTable(model.spec.obs_size)
    outputs = MethodReader(model, "forward", table).output()
    if not (isinstance(outputs, tuple) and len(outputs) == 2):
        raise NotInCpp(f"{kind}.forward does not return a pair")
    params, values = outputs
    for method, expected in (("action_params", params), ("value", values)):
        if MethodReader(model, method, table).output() != expected:
            raise NotInCpp(f"{kind}.{method} does not compute what {kind}.forward does")

    log_std, is_limited = None, False
    if isinstance(params, GaussianParams):
        log_std, is_limited, params = params.log_std, params.log_std is None, params.means
    elif model.is_gaussian:
        low, high = LOG_STD_RANGE
        raise NotInCpp(
            f"{kind} has log standard deviations that are neither a parameter nor clamped to {low:g} to {high:g}"
        )
    heads: list[Layer] = []
    for what, x, num_dims in (("action parameters", params, 1), ("values", values, 0)):
        head = x.linear() if isinstance(x, Features) and len(x.shape) == num_dims else None
        if head is None:
            raise NotInCpp(f"{kind}.forward returns {what} that do not come straight from a linear layer")
        heads.append(head)
    layers, (policy, value) = _arranged(table.layers(), heads)
    policy_head, value_head = (str(head.linear) for head in heads)
    return NetworkLayers(layers, policy, value, policy_head, value_head, log_std, is_limited)


def _arranged(layers: list[Layer], heads: list[Layer]) -> tuple[tuple[Layer, ...], list[int]]:
    """Return the layers that heads depend on, each behind those that it reads, and the number that each head reads.

    A norm or an activation becomes part of the layer that it follows, if nothing else reads that layer.
    """
    readers: dict[int, set[Layer]] = {}
    found: list[Layer] = []
    numbers = {OBS: OBS}  # new numbers by old ones

    def count(reader: Layer) -> None:
        for source in reader.sources:
            is_new = source.layer not in readers
            readers.setdefault(source.layer, set()).add(reader)
            if is_new and source.layer != OBS:
                count(layers[source.layer])

    def place(number: int) -> int:
        if number in numbers:
            return numbers[number]
        layer = layers[number]
        sources = tuple(replace(source, layer=place(source.layer)) for source in layer.sources)
        (source, *others), below = sources, layer.sources[0].layer
        if below != OBS and not others and layer.linear is None and readers[below] == {layer}:
            last = found[source.layer]
            is_free = last.activation == "identity" and (layer.norm is None or last.norm is None)
            if is_free and source == Source(source.layer, 0, last.width):
                norm = last.norm if layer.norm is None else layer.norm
                found[source.layer] = replace(last, norm=norm, activation=layer.activation)
                numbers[number] = source.layer
                return source.layer
        found.append(replace(layer, sources=sources))
        numbers[number] = len(found) - 1
        return numbers[number]

    for head in heads:
        count(head)
    read = [place(head.sources[0].layer) for head in heads]
    return tuple(found), read


# -- What is no layer.

# Attributes of ActorCritic by which a model acts or learns in another way.
_CONTRACT = (
    *("evaluate_actions", "evaluate_minibatch", "distribution", "num_params", "num_noise", "step", "unroll"),
    *("values_are_beside", "values_are_of_actions", "takes_text", "state_size", "stays_eager"),
    *("collector_class", "minibatch_class"),
)


def _check_contract(model: ActorCritic, kind: str) -> None:
    """Check that PPO uses nothing of the model but forward, action_params and value."""
    for name in _CONTRACT:
        if name in vars(model) or getattr(type(model), name) is not getattr(ActorCritic, name):
            raise NotInCpp(f"{kind} has its own {name}")
    for name in ("forward", "action_params", "value"):
        if name in vars(model):
            raise NotInCpp(f"{kind}.{name} is set on the object, not in the class")


def _check_modules(model: ActorCritic) -> None:
    """Check for all that changes a layer from outside of its code."""
    for name, module in model.named_modules():
        if parametrized := getattr(module, "parametrizations", None):
            raise NotInCpp(f"{name}.{next(iter(parametrized))} is parametrized")
        if name and "forward" in vars(module):
            raise NotInCpp(f"{name}.forward is set on the object")
    if (name := hooked(model)) is not None:
        raise NotInCpp(f"{name} has a hook")
    for name, p in model.named_parameters():
        if not p.requires_grad:
            raise NotInCpp(f"{name} does not learn (requires_grad=False)")
        if p.dtype not in (torch.float32, torch.float64):
            raise NotInCpp(f"{name} is {str(p.dtype).removeprefix('torch.')}")


def _check_parameters(model: ActorCritic, layers: NetworkLayers) -> None:
    """Check that every layer is called once, and that every parameter belongs to one layer."""
    names = list(layers.modules())
    for name in names:
        if names.count(name) > 1:
            raise NotInCpp(f"{name} is called twice, with other inputs or another activation")
    used = [f"{name}.{part}" for name in names for part, _ in model.get_submodule(name).named_parameters()]
    used += [] if layers.log_std is None else [layers.log_std]
    own = dict(model.named_parameters())  # a tied one has its first name only
    if tied := [name for name in used if name not in own]:
        raise NotInCpp(f"{tied[0]} is the parameter of two layers")
    if unused := [name for name in own if name not in used]:
        raise NotInCpp(f"{unused[0]} has no part in forward")


_OF_TORCH = frozenset(vars(nn.Module()))


def _state_of(model: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return all attributes, parameters and buffers of all modules, each with a number that its content changes."""
    found: dict[str, tuple[Any, Any]] = {}
    for place, m in model.named_modules():
        for name, x in {**vars(m), **m._parameters, **m._buffers}.items():
            content = None
            if isinstance(x, torch.Tensor):
                content = x._version
            elif isinstance(x, list | dict | set):
                content = len(x)
            if name not in _OF_TORCH:
                found[f"{place}.{name}".lstrip(".")] = (x, content)
    return found


def _changed(before: dict[str, tuple[Any, Any]], after: dict[str, tuple[Any, Any]]) -> str | None:
    """Return the name of an attribute that is another object now, or was changed in place."""
    nothing = (None, None)
    for name in {**before, **after}:
        (x, content), (y, others) = before.get(name, nothing), after.get(name, nothing)
        if content != others or (x is not y and not (type(x) is type(y) in (int, float, str) and x == y)):
            return name
    return None
