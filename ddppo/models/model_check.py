"""Check a model before a run: its outputs, its gradients and its layers. Each mistake is one ConfigError.

`check_model` is called before any process starts, for models of ours and of users. `ModelCheck` calls the methods of
`ActorCritic` with random observations; `RecurrentModelCheck` does so for models with memory.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import nn

from ddppo.config.model_settings import ModelSettings
from ddppo.errors import ConfigError, in_one_line
from ddppo.models.actor_critic import ActorCritic, Obs, random_obs
from ddppo.models.build import build_model, model_class, part_of
from ddppo.models.distributions import ActionDistribution
from ddppo.models.recurrent import Recurrent
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec, each, leaves

_POLICY = "distribution(...)"
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_RUNNING = (nn.modules.batchnorm._NormBase,)
_COPIES = 4  # a rank holds parameters, gradient and two moments of Adam
_NUM_STEPS = 4  # that a model with memory is checked on
T = TypeVar("T")


def check_model(
    spec: EnvSpec,
    config: ModelSettings,
    dtype: torch.dtype,
    *,
    num_envs: int,
    ranks_here: int | None = None,
    overlaps_from: int | None = None,
    learning_rates: Mapping[str, float] = MappingProxyType({}),
) -> str | None:
    """Build the model that `config` names and check it on batches of 1, num_envs and 2 * num_envs + 1 observations.

    Args:
        num_envs: E of one rank.
        ranks_here: ranks that will run on this machine; None for none.
        overlaps_from: number of parameters from which DistributedDataParallel reduces gradients; None for never.
        learning_rates: ppo.learning_rates; its names have to be parts of the model.

    Returns a warning if layers make results depend on chance or on how a batch is split, else None. Raises ConfigError:
    one sentence with the class, the method, the requirement and the value found.
    """
    # Before anything is allocated: does the model fit into memory?
    _check_memory(spec, config, dtype, ranks_here)
    model = build_model(spec, config, 0, dtype)
    _check_state(model, config)
    _check_old_names(model, config)
    check_class: type[ModelCheck] = RecurrentModelCheck if model.state_size else ModelCheck
    if model.check_class is not None:
        check_class = imported(model.check_class)
    check = check_class(model, spec, config)
    check_parameters(check)
    check_parts(check, learning_rates)
    # A fixed seed, so that the check gives the same result in every run.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for size in (num_envs, 2 * num_envs + 1):  # a batch of acting, and one that no fixed size fits
            check.check_outputs(size)
        if check.brings_own_policy:
            check.check_policy(num_envs)
        warnings = check.warnings(max(num_envs, 2))
        check.check_one_row(warnings, is_acted_on=num_envs == 1)
        unused = check.unused_parameters(num_envs)
    count = sum(p.numel() for p in model.parameters())
    if unused and overlaps_from is not None and count >= overlaps_from:
        raise ConfigError(
            f"model.name={config.name}: {check.kind}.{check.learns_by} does not use {listed(unused)}, and "
            "dist.grad_sync=ddp waits for the gradient of every parameter: use dist.grad_sync=flat, or remove what is "
            "not used"
        )
    return "; ".join(warnings) or None


def _check_state(model: ActorCritic, config: ModelSettings) -> None:
    """Raise ConfigError if the model is meant to have a memory and has none."""
    if model.state_size:
        return
    if isinstance(model, Recurrent):
        raise ConfigError(
            f"model.name={config.name}: {type(model).__name__} sets no state_size, so it would remember "
            "nothing: set it in __init__ to the number of numbers in a state"
        )
    if (memory := getattr(config, "memory", "none")) != "none":
        raise ConfigError(
            f"model.memory={memory} has no effect on a model of your own, as model.name={config.name}: derive "
            "it from ddppo.models.recurrent.Recurrent (docs/guide/memory.md), or leave model.memory out"
        )


def _check_old_names(model: ActorCritic, config: ModelSettings) -> None:
    """Raise ConfigError if the model defines a method under the name that it had in an earlier version."""
    for old, new in (("at", "evaluate_actions"), ("at_minibatch", "evaluate_minibatch")):
        if callable(getattr(type(model), old, None)):
            kind = type(model).__name__
            raise ConfigError(
                f"model.name={config.name}: {kind}.{old} is now called {new}: rename the method"
            )


def _check_memory(spec: EnvSpec, config: ModelSettings, dtype: torch.dtype, ranks_here: int | None) -> None:
    """Raise ConfigError if the model does not fit into this machine's memory. Allocates no parameters."""
    try:
        # The meta device has shapes but no data.
        with (
            torch.random.fork_rng(devices=[]),
            torch.device("meta"),
        ):
            skeleton = model_class(config)(spec, config)
        count = sum(x.numel() for x in (*skeleton.parameters(), *skeleton.buffers()))
    except ConfigError:
        raise
    except Exception:  # needs data, or cannot be built at all: build_model reports that
        return
    copies = 1 if ranks_here is None else _COPIES * ranks_here
    needed, has = count * dtype.itemsize * copies, _memory_bytes()
    if has is not None and needed > has:
        purpose = "to build"
        if ranks_here is not None:
            purpose = f"with gradients and Adam's moments in {ranks_here} rank{'s' * (ranks_here > 1)}"
        layers = getattr(config, "hidden_sizes", None)
        sizes = "" if layers is None else f" with model.hidden_sizes={list(layers)}"
        raise ConfigError(
            f"model.name={config.name}{sizes}: "
            f"{type(skeleton).__name__} has {count:,} parameters and buffers, which need {needed / 2**30:,.1f} GiB "
            f"{purpose}, but this machine has {has / 2**30:,.1f} GiB: use smaller layers, or fewer ranks on a machine"
        )


def _memory_bytes() -> int | None:
    """Return the memory of this machine or of its container, in bytes; None if unknown."""
    found = []
    with suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found, default=None)


def check_parameters(check: "ModelCheck") -> None:
    """Raise ConfigError unless some parameters learn, and all have a shape, one type and one device."""
    parameters = dict(check.model.named_parameters())
    lazy = [name for name, p in parameters.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise check.fails(
            "__init__",
            f"leaves {listed(lazy)} without a shape: give lazy layers the size of their input",
        )
    if not any(p.requires_grad for p in parameters.values()):
        what = "none requires a gradient" if parameters else "it has none"
        raise check.fails("__init__", f"makes no parameter that can learn: {what}")
    # The flat vector of parameters needs one type and one device.
    kinds: dict[str, list[str]] = {}
    for name, p in parameters.items():
        kinds.setdefault(f"{p.dtype} on {p.device}".removeprefix("torch."), []).append(name)
    if len(kinds) > 1:
        found = "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds.items())
        raise check.fails(
            "__init__",
            f"makes parameters of several types or devices ({found}): keep what does not learn in "
            "register_buffer, and leave devices to the setting device",
        )


def check_parts(check: "ModelCheck", learning_rates: Mapping[str, float]) -> None:
    """Raise ConfigError if ppo.learning_rates names a part that the model lacks."""
    names = [name for name, _ in check.model.named_parameters()]
    for part in learning_rates:
        if not any(part_of(name, [part]) for name in names):
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise ConfigError(
                f"ppo.learning_rates={{{part}: {learning_rates[part]}}}: no parameter of {check.kind} (model.name="
                f"{check.name}) has a name that begins so: use {parts}, or a part of these behind a dot"
            )


def rounding(x: torch.Tensor) -> float:
    """Return the difference allowed between two ways to compute x: far below that of a different network."""
    return 1e-3 if x.dtype == torch.float32 else 1e-6


def _shape(x: Obs) -> str:
    return str(each(lambda leaf: list(leaf.shape), x)).replace("'", "")


def listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class ModelCheck:
    """Calls the methods of one model, and raises ConfigError for the first mistake."""

    def __init__(self, model: ActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        self.model = model
        self.kind = type(model).__name__
        self.name = config.name
        self.spec = spec
        self.num_params = model.num_params
        inherits = type(model).evaluate_actions is ActorCritic.evaluate_actions
        # The method that the learner differentiates.
        self.learns_by = "forward" if inherits else "evaluate_actions"
        own = ("evaluate_actions", "distribution", "num_params", "num_noise")
        self.brings_own_policy = any(getattr(type(model), x) is not getattr(ActorCritic, x) for x in own)

    def fails(self, method: str, what: str) -> ConfigError:
        return ConfigError(f"model.name={self.name}: {self.kind}.{method} {what}")

    # -- outputs ---------------------------------------------------------------------------------------------------

    def check_outputs(self, size: int) -> None:
        """Call forward, action_params and value with `size` observations, and compare their results."""
        obs = self._obs(size)
        # Acting calls action_params and value in inference mode, learning calls forward with gradients.
        with torch.inference_mode():
            params, values = self._alone(obs)
        both = self._call("forward", obs)
        self._check_pair("forward", both, obs)
        if self._is_repeatable(obs):
            self._check_agreement("action_params", "action parameters", both[0], params)
            self._check_agreement("value", "values", both[1], values)

    def check_policy(self, size: int) -> None:
        """Act on `size` observations with the model's own distribution, and evaluate these actions."""
        obs, action = self._obs(size), self.spec.action
        actions = self._actions(obs)
        both = self._call("evaluate_actions", obs, actions)
        self._check_pair("evaluate_actions", both, obs)
        # The distribution: sampled and most likely actions, log-probabilities and entropy have the right shapes.
        policy = self._policy(both[0])
        modes = self._call_or_fail(f"{_POLICY}.mode", policy.mode)
        if modes.shape != (size, *action.shape):
            wanted = [size, *action.shape]
            raise self.fails(f"{_POLICY}.mode", f"returned actions {_shape(modes)}: they must be {wanted}")
        for method, numbers in (("log_prob", lambda: policy.log_prob(actions)), ("entropy", policy.entropy)):
            found = self._call_or_fail(f"{_POLICY}.{method}", numbers)
            self._check_tensor(f"{_POLICY}.{method}", "numbers", found, obs, (size,))
        if (
            self.learns_by == "evaluate_actions"
            and not self.model.values_are_of_actions
            and self._is_repeatable(obs)
        ):
            params, values = self._call("forward", obs)
            acted = self._policy(params).log_prob(actions)
            self._check_learned("log-probabilities", acted, policy.log_prob(actions))
            self._check_learned("values", values, both[1])

    def _check_learned(self, what: str, acted: torch.Tensor, learned: torch.Tensor) -> None:
        if not torch.allclose(acted, learned, rtol=rounding(acted), atol=rounding(acted), equal_nan=True):
            off = (acted - learned).abs().max().item()
            raise self.fails(
                "evaluate_actions",
                f"gives {what} of actions that differ from those of forward, which a rollout holds, by {off:.2g}: set "
                "values_are_of_actions = True, with which it holds those of evaluate_actions",
            )

    def _actions(self, obs: Obs) -> torch.Tensor:
        """Return actions that the model takes at obs."""
        size, p, action = len(leaves(obs)[0]), next(self.model.parameters()), self.spec.action
        with torch.no_grad():
            policy = self._policy(self._call("action_params", obs))
            noise = torch.rand(size, self.model.num_noise, dtype=p.dtype)
            actions = self._call_or_fail(f"{_POLICY}.sample", lambda: policy.sample(noise))
        if actions.shape != (size, *action.shape):
            wanted = [size, *action.shape]
            raise self.fails(
                f"{_POLICY}.sample", f"returned actions {_shape(actions)}: they must be {wanted}"
            )
        return actions.to(p.device, p.dtype if action.kind == "box" else torch.int64)

    def _policy(self, params: torch.Tensor) -> ActionDistribution:
        mask = None
        if self.spec.mask_size is not None:
            mask = torch.ones(len(params), self.spec.mask_size, dtype=torch.bool, device=params.device)
        return self._call_or_fail("distribution", lambda: self.model.distribution(params, mask))

    def check_one_row(self, warnings: list[str], *, is_acted_on: bool) -> None:
        """Call the methods with one observation, which batch normalisation cannot take; add that to its warning."""
        try:
            self.check_outputs(1)
        except ConfigError as e:
            if is_acted_on or not warnings:
                raise ConfigError(f"{e}; a batch may have any number of observations, also one") from e
            warnings[-1] += (
                "; and it fails for a batch of one observation, as when one episode ends in a rollout"
            )

    def _alone(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        params, values = self._call("action_params", obs), self._call("value", obs)
        size = len(leaves(obs)[0])
        self._check_tensor("action_params", "action parameters", params, obs, (size, self.num_params))
        self._check_tensor("value", "values", values, obs, (size,))
        return params, values

    def _obs(self, size: int) -> Obs:
        # Floats on [0, 1): valid as indices into any table, and not all zero, where layers without bias would agree.
        p = next(self.model.parameters())
        return each(lambda x: x.to(p.device), random_obs(self.spec, size, p.dtype))

    def _call(self, method: str, obs: Obs, *others: torch.Tensor) -> Any:
        # Give it a copy, to see whether it writes into its input.
        given = each(torch.clone, obs)
        call: Callable[..., Any] = self.model if method == "forward" else getattr(self.model, method)
        result = self._call_or_fail(method, lambda: call(given, *others), f" for obs {_shape(obs)}")
        now, before = leaves(given), leaves(obs)
        if len(now) != len(before) or not all(map(torch.equal, now, before)):
            raise self.fails(method, "changes the observations that it gets: compute on a copy of them")
        return result

    def _call_or_fail(self, method: str, call: Callable[[], T], where: str = "") -> T:
        try:
            return call()
        except Exception as e:  # a user's model may raise anything
            raise self.fails(method, f"raised{where}: {in_one_line(e)}") from e

    def _check_pair(self, method: str, both: Any, obs: Obs) -> None:
        size = len(leaves(obs)[0])
        if not (isinstance(both, (tuple, list)) and len(both) == 2):
            has = f"{len(both)} things" if isinstance(both, (tuple, list)) else f"one {type(both).__name__}"
            raise self.fails(
                method,
                f"returned {has} for obs {_shape(obs)}: it must return two, action parameters [{size}, "
                f"{self.num_params}] and values [{size}]",
            )
        self._check_tensor(method, "action parameters", both[0], obs, (size, self.num_params))
        self._check_tensor(method, "values", both[1], obs, (size,))

    def _check_tensor(self, method: str, what: str, got: Any, obs: Obs, wanted: tuple[int, ...]) -> None:
        if not isinstance(got, torch.Tensor):
            raise self.fails(
                method, f"returned a {type(got).__name__} for {what}: it must be a tensor {list(wanted)}"
            )
        if got.shape != wanted:
            remedy = ": add .squeeze(-1)" if got.shape == (*wanted, 1) else ""
            shapes = f"of shape {_shape(got)} for obs {_shape(obs)}, but they must be {list(wanted)}"
            raise self.fails(method, f"returned {what} {shapes}{remedy}")
        p = next(self.model.parameters())
        if (got.dtype, got.device) != (p.dtype, p.device):
            raise self.fails(
                method,
                f"returned {what} of {got.dtype} on {got.device}, but they must be {p.dtype} on {p.device} as the "
                "parameters are",
            )

    def _check_agreement(self, method: str, what: str, together: torch.Tensor, alone: torch.Tensor) -> None:
        close = rounding(together)
        if not torch.allclose(together, alone, rtol=close, atol=close, equal_nan=True):
            if together.isnan().any():
                raise self.fails(
                    "forward",
                    f"returned {what} that are no numbers (NaN) where those of {self.kind}.{method} are",
                )
            off = (together - alone).abs().max().item()
            raise self.fails(
                "forward",
                f"returned {what} that differ from those of {self.kind}.{method} by {off:.2g}: acting and learning "
                "must compute the same",
            )

    def _close(self, x: torch.Tensor) -> float:
        """Return the difference allowed between two ways to compute x."""
        return rounding(x)

    def _is_repeatable(self, obs: Obs) -> bool:
        with torch.inference_mode():
            first, second = self._alone(obs), self._alone(obs)
        return all(torch.allclose(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))

    # -- gradients -------------------------------------------------------------------------------------------------

    def unused_parameters(self, size: int) -> list[str]:
        """Return the parameters to which a loss of both outputs gives no gradient. Raises ConfigError without any."""
        size = max(size, 2)
        obs = self._obs(size)
        actions = [self._actions(obs)] if self.learns_by == "evaluate_actions" else []
        return self._without_gradient(*self._call(self.learns_by, obs, *actions))

    def _without_gradient(self, params: torch.Tensor, values: torch.Tensor) -> list[str]:
        for what, output in (("action parameters", params), ("values", values)):
            if not output.requires_grad:
                raise self.fails(
                    self.learns_by,
                    f"returned {what} without a gradient: they must depend on the parameters, outside torch.no_grad() "
                    "and without .detach()",
                )
        # Differentiate the sum of all outputs with respect to every parameter that learns.
        learning = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        try:
            grads = torch.autograd.grad(
                params.sum() + values.sum(), list(learning.values()), allow_unused=True
            )
        except RuntimeError as e:
            raise self.fails(self.learns_by, f"cannot be differentiated: {in_one_line(e)}") from e
        return [name for name, grad in zip(learning, grads, strict=True) if grad is None]

    # -- layers ----------------------------------------------------------------------------------------------------

    def warnings(self, size: int) -> list[str]:
        """Return a warning for layers that make results depend on chance, or on how a batch is split over ranks."""
        modules = {name: m for name, m in self.model.named_modules() if m is not self.model}
        # Layers known by their class: Dropout draws numbers, BatchNorm keeps running statistics.
        random = [n for n, m in modules.items() if isinstance(m, _RANDOM) and getattr(m, "p", 1) > 0]
        running = [
            n for n, m in modules.items() if isinstance(m, _RUNNING) and (m.training or m.track_running_stats)
        ]
        found = []
        if random:
            found.append(self._warning(random, "draw numbers of their own, in acting and evaluation too"))
        if running:
            found.append(
                self._warning(
                    running,
                    "compute with the rest of the batch or with statistics that each rank keeps for itself",
                )
            )
        return found or self._warnings_by_behaviour(size)

    def _warning(self, names: list[str], why: str) -> str:
        layers = listed([f"{n} ({type(self.model.get_submodule(n)).__name__})" for n in names])
        return (
            f"model.name={self.name}: layers {layers} of {self.kind} {why}, so that results depend on dist.world_size: "
            "use layers without such state, e.g. LayerNorm for BatchNorm"
        )

    def _warnings_by_behaviour(self, size: int) -> list[str]:
        """Return a warning if equal observations give different outputs, or outputs depend on the rest of the batch."""
        # Anything else shows in the outputs: compute the same batch twice, then half of it.
        obs = self._obs(size)
        before = {name: b.clone() for name, b in self.model.named_buffers()}
        with torch.inference_mode():
            if not self._is_repeatable(obs):
                return [
                    f"model.name={self.name}: {self.kind} returns other outputs for the same observations, so that "
                    "results depend on dist.world_size: remove random operations and counters of calls"
                ]
            whole, part = self._alone(obs), self._alone(each(lambda x: x[: size // 2], obs))
        changed = [n for n, b in self.model.named_buffers() if n in before and not torch.equal(b, before[n])]
        mixes = any(
            not torch.allclose(w[: size // 2], p, rtol=self._close(w), atol=self._close(w), equal_nan=True)
            for w, p in zip(whole, part, strict=True)
        )
        if mixes or changed:
            why = f"changes its buffers {listed(changed)}" if changed else "lets observations of a batch mix"
            return [
                f"model.name={self.name}: {self.kind} {why}, so that results depend on dist.world_size: compute each "
                "output from its own observation alone"
            ]
        return []


class RecurrentModelCheck(ModelCheck):
    """The check of a model with memory, on 4 steps in which some environments start an episode."""

    def __init__(self, model: ActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__(model, spec, config)
        self.learns_by = "unroll"

    def check_outputs(self, size: int) -> None:
        """Step `size` environments, unroll the same steps, and compare: learning has to see what acting saw."""
        obs, starts = self._episode(size)
        state = self._state(size)
        with torch.inference_mode():
            self._stepped(each(lambda x: x[0], obs), state, size)
        both = self._call_or_fail(
            "unroll", lambda: self.model.unroll(obs, state, starts), f" for {self._inputs(size)}"
        )
        self._check_unrolled(both, size)
        # Step row after row, with the state set to 0 where an episode starts, and compare each row.
        params, values = both
        for t in range(_NUM_STEPS):
            state = torch.where(starts[t].unsqueeze(-1), 0.0, state)
            row = each(lambda x, t=t: x[t], obs)
            with torch.inference_mode():
                row_params, value, state = self._stepped(row, state, size)
            if self._is_repeatable(row):
                self._check_seen("action parameters", row_params, params[t])
                self._check_seen("values", value, values[t])

    def check_policy(self, size: int) -> None:
        """Act on `size` observations at the start of episodes, by the model's own distribution."""
        self.learns_by = "forward"
        try:
            super().check_policy(size)
        finally:
            self.learns_by = "unroll"

    def unused_parameters(self, size: int) -> list[str]:
        obs, starts = self._episode(max(size, 2))
        state = self._state(max(size, 2))
        return self._without_gradient(
            *self._call_or_fail("unroll", lambda: self.model.unroll(obs, state, starts))
        )

    def _stepped(self, obs: Obs, state: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        given = state.clone()
        found: Any = self._call_or_fail(
            "step", lambda: self.model.step(obs, given), f" for {self._inputs(size)}"
        )
        if not (isinstance(found, (tuple, list)) and len(found) == 3):
            raise self.fails("step", "must return three: action parameters, values and the next state")
        params, values, after = found
        if not torch.equal(given, state):
            raise self.fails("step", "changes the state that it gets: return a new one")
        self._check_tensor("step", "action parameters", params, obs, (size, self.num_params))
        self._check_tensor("step", "values", values, obs, (size,))
        self._check_tensor("step", "a state", after, obs, (size, self.model.state_size))
        return params, values, after

    def _check_unrolled(self, both: Any, size: int) -> None:
        if not (isinstance(both, (tuple, list)) and len(both) == 2):
            raise self.fails(
                "unroll",
                f"must return two, action parameters [{_NUM_STEPS}, {size}, {self.num_params}] and values "
                f"[{_NUM_STEPS}, {size}]",
            )
        row = self._obs(size)
        self._check_tensor("unroll", "action parameters", both[0], row, (_NUM_STEPS, size, self.num_params))
        self._check_tensor("unroll", "values", both[1], row, (_NUM_STEPS, size))

    def _check_seen(self, what: str, stepped: torch.Tensor, unrolled: torch.Tensor) -> None:
        close = rounding(stepped)
        if not torch.allclose(stepped, unrolled, rtol=close, atol=close, equal_nan=True):
            off = (stepped - unrolled).abs().max().item()
            raise self.fails(
                "unroll",
                f"returned {what} that differ from those of {self.kind}.step, row after row from the same state, by "
                f"{off:.2g}: set the state to 0 before rows in which starts is True, and keep nothing else",
            )

    def _episode(self, size: int) -> tuple[Obs, torch.Tensor]:
        """Return obs `[T, size, ...]` and starts `[T, size]`: every third environment starts an episode in row 2."""
        obs = each(lambda x: x.unflatten(0, (_NUM_STEPS, size)), self._obs(_NUM_STEPS * size))
        starts = torch.zeros(_NUM_STEPS, size, dtype=torch.bool, device=leaves(obs)[0].device)
        starts[2, 1::3] = True
        return obs, starts

    def _state(self, size: int) -> torch.Tensor:
        p = next(self.model.parameters())
        rows = torch.linspace(-0.5, 0.5, size * self.model.state_size, dtype=p.dtype, device=p.device)
        return rows.view(size, self.model.state_size)

    def _inputs(self, size: int) -> str:
        return f"{size} environments and a state [{size}, {self.model.state_size}]"
