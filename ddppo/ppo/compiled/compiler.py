"""The process that compiles a step: `python -m ddppo.ppo.compiled.compiler`, told on stdin what and whereto.

It takes tens of seconds of one core, as nicely as it is told to be, and ends with who started it. What it
cannot compile it says in one line on stdout. The first line of stdin is a JSON object, the rest never comes: its end is
that of the other side.
"""

import fcntl
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import nn
from torch.func import functional_call

from ddppo.models import ActorCritic, At, build_model
from ddppo.ppo.compiled.step import LIBRARIES, Recipe, example, is_made, tensors
from ddppo.ppo.learning.minibatches import Minibatch
from ddppo.ppo.learning.step import (
    BETAS,
    NORM_EPS,
    Coefficients,
    losses_and_statistics,
    poison,
    statistics_of_ratio,
)
from ddppo.spaces import EnvSpec, leaves
from ddppo.tracebacks import in_one_line

_EXAMPLE_ROWS = 64
_MAX_ROWS = 2**31
_FIELDS = ("actions", "logprobs", "values", "advantages", "returns", "weights", "mask")
_STATE = 7  # tensors before the minibatch's: parameters to count


class CannotCompile(Exception):
    """The model does what a compiled step cannot repeat; says what."""


# -- the two functions -----------------------------------------------------------------------------------------------


def gradient_function(
    model: ActorCritic, spec: EnvSpec, num_fields: int, *, clips_value: bool
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the function of flat parameters and a minibatch that leaves the gradient, and adds to the statistics.

    num_fields: how many tensors a minibatch holds.
    """
    num_obs = len(leaves(spec.obs))
    called = At(model)
    named = list(called.named_parameters())
    sizes = [p.numel() for _, p in named]
    buffers = [name for name, _ in called.named_buffers()]

    def gradient_(
        parameters: torch.Tensor, gradient: torch.Tensor, sums: torch.Tensor, last_loss: torch.Tensor,
        norms: torch.Tensor, constants: torch.Tensor, count: torch.Tensor, *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor]:  # fmt: skip
        obs = dict(zip(spec.obs, inputs, strict=False)) if isinstance(spec.obs, dict) else inputs[0]
        minibatch: Minibatch = dict(zip(_FIELDS, inputs[num_obs:num_fields], strict=False))
        clip, value, entropy, clip_value = cast("list[float]", constants[:4].to(parameters.dtype).unbind())
        coefficients = Coefficients(clip, value, entropy, clip_value if clips_value else None)
        vector = parameters.detach().requires_grad_()
        state = {
            name: (x if p.requires_grad else x.detach()).view(p.shape)
            for (name, p), x in zip(named, vector.split(sizes), strict=True)
        }
        state |= dict(zip(buffers, inputs[num_fields:], strict=True))
        params, values = functional_call(called, state, (obs, minibatch["actions"]))
        per_sample, log_ratio, parts = losses_and_statistics(
            params, values, minibatch, model.distribution, coefficients
        )
        weights = minibatch["weights"]
        loss = torch.dot(weights, per_sample) / count.to(parameters.dtype)
        (found,) = torch.autograd.grad(loss * poison(loss), vector)
        with torch.no_grad():
            statistics = [*parts, *statistics_of_ratio(log_ratio, clip)]
            sums += torch.stack([(x.detach() * weights).sum().double() for x in statistics])
            last_loss.copy_(torch.where(norms.isfinite(), loss.detach().double(), last_loss))
            gradient.copy_(found)
        return (last_loss.clone(),)

    return gradient_


def optimize_(
    parameters: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor, mean: torch.Tensor,
    square: torch.Tensor, norms: torch.Tensor, learning_rate: torch.Tensor, constants: torch.Tensor,
) -> tuple[torch.Tensor]:  # fmt: skip
    """Clip the gradient, move by Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) and add to the sum of norms.

    Nothing moves from the first norm on that is not finite: the sum is not finite either then.
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
    return (norm.clone(),)


# -- compiling -------------------------------------------------------------------------------------------------------


Program = tuple[torch.export.ExportedProgram, tuple[torch.Tensor, ...]]  # and inputs that it was traced with


def compile_step(recipe: Recipe, folder: Path) -> None:
    """Make the libraries in `folder`. Raises CannotCompile, or what torch raises."""
    from torch._inductor import aot_compile
    from torch._inductor import config as known

    dtype, device = getattr(torch, recipe.dtype), torch.device(recipe.device)
    model = build_model(recipe.spec, recipe.model, 0, dtype).to(device)
    # In this order: torch's functional_call leaves tensors of the trace in a trunk that has two names.
    optimizer = optimizer_program(model)
    programs = gradient_program(model, recipe), optimizer
    for name, (program, inputs) in zip(LIBRARIES, programs, strict=True):
        options = {
            "aot_inductor.output_path": str(folder / f"{name}.so"),
            "cpp.threads": recipe.threads,
        }
        # What follows torch 2.6 lacks. Headers that are compiled stay in the temporary folder, wherever the cache is.
        if hasattr(known.aot_inductor, "precompile_headers"):
            options["aot_inductor.precompile_headers"] = False
        # And its graphs check nothing of what they are given; later ones do unless told not to.
        has_guards = "check_guards" in inspect.signature(program.module).parameters
        graph = program.module(check_guards=False) if has_guards else program.module()
        aot_compile(graph, inputs, options=options)


def gradient_program(model: ActorCritic, recipe: Recipe) -> Program:
    """Return the gradient of a model's loss as a graph, for minibatches of any number of rows from 2 on.

    Raises CannotCompile, or what torch raises.
    """
    minibatch = example(recipe.spec, model, _EXAMPLE_ROWS, torch.Generator().manual_seed(0))
    flat, buffers = _flat(model), [x for _, x in model.named_buffers()]
    fields, scalar, vector = tensors(minibatch), _full(flat), _full(flat, 6)
    inputs = (
        flat, flat.clone(), vector, scalar, scalar.clone(), vector.clone(), scalar.clone(), *fields, *buffers
    )  # fmt: skip
    function = gradient_function(model, recipe.spec, len(fields), clips_value=recipe.clips_value)
    rows = range(_STATE, _STATE + len(fields))
    return _program(function, inputs, rows, may_change=range(1, 4)), inputs


def optimizer_program(model: ActorCritic) -> Program:
    flat = _flat(model)
    step = torch.zeros((), device=flat.device)
    inputs = (flat, flat.clone(), step, flat.clone(), flat.clone(), _full(flat), _full(flat), _full(flat, 6))
    return _program(optimize_, inputs, range(0), may_change=range(6)), inputs


def _flat(model: ActorCritic) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def _full(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5, dtype=torch.float64, device=like.device)


def _program(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], rows: range, *, may_change: range
) -> torch.export.ExportedProgram:
    """Trace a function. Inputs in `rows` may have any number of rows, those in `may_change` may change."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function, tracing_mode="symbolic")(*inputs)
    _check(traced.graph, may_change)
    n = torch.export.Dim("n", min=2, max=_MAX_ROWS)
    shapes = tuple({0: n} if i in rows else {} for i in range(len(inputs)))
    return torch.export.export(_Traced(traced), inputs, dynamic_shapes=(shapes,), strict=False)


def _check(graph: torch.fx.Graph, may_change: range) -> None:
    """Raise CannotCompile where a graph draws random numbers or changes inputs that are not in `may_change`."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise CannotCompile(f"it draws random numbers ({node.target})")
        for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed = _viewed(given)
                if changed in inputs and inputs.index(changed) not in may_change:
                    raise CannotCompile("its forward changes its buffers")


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose storage a view of a view shares."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target._schema.arguments[0].alias_info:
        node = node.args[0]  # type: ignore[assignment]
    return node


class _Traced(nn.Module):
    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.graph(*inputs)


# -- the process -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Compile what stdin asks for, unless somebody did meanwhile."""
    request = json.loads(sys.stdin.readline())
    os.nice(request["nice"])
    threading.Thread(target=_end_with_the_other_side, daemon=True).start()
    folder = Path(request["folder"])
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one compiles, whoever else waits finds it made
        if is_made(folder):
            return
        unfinished = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
        try:
            made, temporary = unfinished / "made", unfinished / "tmp"
            made.mkdir(parents=True)
            temporary.mkdir()
            os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)  # of compilers that may be killed
            torch.set_num_threads(1)
            compile_step(Recipe.from_json(request["recipe"]), made)
            assert is_made(made), LIBRARIES
            for path in [*made.glob("*.cpp"), *made.glob("*.json")]:
                path.unlink()
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        except Exception as e:  # torch raises many kinds, and a user's model may raise any
            print(e if isinstance(e, CannotCompile) else in_one_line(e)[:300])
            sys.exit(1)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _end_with_the_other_side() -> NoReturn:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)  # compilers too: the process is a session's leader
    raise AssertionError("killed")


if __name__ == "__main__":
    main()
