"""A model under test: its outputs, its gradients and its layers, each told in a sentence."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ddppo.config import ModelSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, Obs, random_obs
from ddppo.models.distributions import ActionDistribution
from ddppo.spaces import EnvSpec, each, leaves
from ddppo.tracebacks import in_one_line

_POLICY = "distribution(...)"
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_RUNNING = (nn.modules.batchnorm._NormBase,)
T = TypeVar("T")


class Trial:
    """One model under test."""

    def __init__(self, model: ActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        self.model = model
        self.kind = type(model).__name__
        self.name = config.name
        self.spec = spec
        self.num_params = model.num_params
        self.learns_by = "forward" if type(model).at is ActorCritic.at else "at"
        own = ("at", "distribution", "num_params", "num_noise")
        self.brings_own_policy = any(getattr(type(model), x) is not getattr(ActorCritic, x) for x in own)

    def fails(self, method: str, what: str) -> ConfigError:
        return ConfigError(f"model.name={self.name}: {self.kind}.{method} {what}")

    # -- outputs ---------------------------------------------------------------------------------------------------

    def check_outputs(self, size: int) -> None:
        """Call all three methods with `size` observations, as acting and learning do, and compare what they return."""
        obs = self._obs(size)
        with torch.inference_mode():
            params, values = self._alone(obs)
        both = self._call("forward", obs)
        self._check_pair("forward", both, obs)
        if self._is_repeatable(obs):
            self._check_agreement("action_params", "action parameters", both[0], params)
            self._check_agreement("value", "values", both[1], values)

    def check_policy(self, size: int) -> None:
        """Act on `size` observations and learn from it, by the model's own distribution and `at`."""
        obs, action = self._obs(size), self.spec.action
        actions = self._actions(obs)
        both = self._call("at", obs, actions)
        self._check_pair("at", both, obs)
        policy = self._policy(both[0])
        modes = self._tried(f"{_POLICY}.mode", policy.mode)
        if modes.shape != (size, *action.shape):
            wanted = [size, *action.shape]
            raise self.fails(f"{_POLICY}.mode", f"returned actions {_shape(modes)}: they must be {wanted}")
        for method, numbers in (("log_prob", lambda: policy.log_prob(actions)), ("entropy", policy.entropy)):
            found = self._tried(f"{_POLICY}.{method}", numbers)
            self._check_tensor(f"{_POLICY}.{method}", "numbers", found, obs, (size,))
        if self.learns_by == "at" and not self.model.values_are_of_actions and self._is_repeatable(obs):
            params, values = self._call("forward", obs)
            acted = self._policy(params).log_prob(actions)
            self._check_learned("log-probabilities", acted, policy.log_prob(actions))
            self._check_learned("values", values, both[1])

    def _check_learned(self, what: str, acted: torch.Tensor, learned: torch.Tensor) -> None:
        if not torch.allclose(acted, learned, rtol=rounding(acted), atol=rounding(acted), equal_nan=True):
            off = (acted - learned).abs().max().item()
            raise self.fails(
                "at",
                f"gives {what} of actions that differ from those of forward, which a rollout holds, by {off:.2g}: set "
                "values_are_of_actions = True, with which it holds those of at",
            )

    def _actions(self, obs: Obs) -> torch.Tensor:
        """Return actions that the model takes at obs."""
        size, p, action = len(leaves(obs)[0]), next(self.model.parameters()), self.spec.action
        with torch.no_grad():
            policy = self._policy(self._call("action_params", obs))
            noise = torch.rand(size, self.model.num_noise, dtype=p.dtype)
            actions = self._tried(f"{_POLICY}.sample", lambda: policy.sample(noise))
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
        return self._tried("distribution", lambda: self.model.distribution(params, mask))

    def check_one_row(self, warnings: list[str], *, is_acted_on: bool) -> None:
        """Call all three with a single observation, which batch normalisation cannot take; amend the warning of it."""
        try:
            self.check_outputs(1)
        except ConfigError as e:
            if is_acted_on or not warnings:
                raise ConfigError(f"{e}; any number of observations may come, also one") from e
            warnings[-1] += (
                "; and it fails where a single observation comes, as when one episode ends in a rollout"
            )

    def _alone(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        params, values = self._call("action_params", obs), self._call("value", obs)
        size = len(leaves(obs)[0])
        self._check_tensor("action_params", "action parameters", params, obs, (size, self.num_params))
        self._check_tensor("value", "values", values, obs, (size,))
        return params, values

    def _obs(self, size: int) -> Obs:
        # Floats on [0, 1): neither an index that no table has, nor zero for all, where layers without bias agree.
        p = next(self.model.parameters())
        return each(lambda x: x.to(p.device), random_obs(self.spec, size, p.dtype))

    def _call(self, method: str, obs: Obs, *others: torch.Tensor) -> Any:
        given = each(torch.clone, obs)
        call: Callable[..., Any] = self.model if method == "forward" else getattr(self.model, method)
        result = self._tried(method, lambda: call(given, *others), f" for obs {_shape(obs)}")
        now, before = leaves(given), leaves(obs)
        if len(now) != len(before) or not all(map(torch.equal, now, before)):
            raise self.fails(method, "changes the observations it is given: compute on a copy of them")
        return result

    def _tried(self, method: str, call: Callable[[], T], where: str = "") -> T:
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
                f"returned {what} that differ from those of {self.kind}.{method} by {off:.2g}: what is acted on must "
                "be what is learned",
            )

    def _is_repeatable(self, obs: Obs) -> bool:
        with torch.inference_mode():
            first, second = self._alone(obs), self._alone(obs)
        return all(torch.allclose(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))

    # -- gradients -------------------------------------------------------------------------------------------------

    def unused_parameters(self, size: int) -> list[str]:
        """Return the parameters that a loss of both outputs gives no gradient. Raises where it cannot be computed."""
        size = max(size, 2)
        obs = self._obs(size)
        actions = [self._actions(obs)] if self.learns_by == "at" else []
        return self._without_gradient(*self._call(self.learns_by, obs, *actions))

    def _without_gradient(self, params: torch.Tensor, values: torch.Tensor) -> list[str]:
        for what, output in (("action parameters", params), ("values", values)):
            if not output.requires_grad:
                raise self.fails(
                    self.learns_by,
                    f"returned {what} without a gradient: they must depend on the parameters, outside torch.no_grad() "
                    "and without .detach()",
                )
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
        """Return what makes results depend on chance, or on how a batch is split over ranks, by name."""
        modules = {name: m for name, m in self.model.named_modules() if m is not self.model}
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
        """Try what no known layer explains: other outputs from the same observations, or from fewer of them."""
        obs = self._obs(size)
        before = {name: b.clone() for name, b in self.model.named_buffers()}
        with torch.inference_mode():
            if not self._is_repeatable(obs):
                return [
                    f"model.name={self.name}: {self.kind} returns other outputs for the same observations, so that "
                    "results depend on dist.world_size: take away what is random or counts calls"
                ]
            whole, part = self._alone(obs), self._alone(each(lambda x: x[: size // 2], obs))
        changed = [n for n, b in self.model.named_buffers() if n in before and not torch.equal(b, before[n])]
        close = rounding(whole[1])
        mixes = any(
            not torch.allclose(w[: size // 2], p, rtol=close, atol=close, equal_nan=True)
            for w, p in zip(whole, part, strict=True)
        )
        if mixes or changed:
            why = f"changes its buffers {listed(changed)}" if changed else "lets observations of a batch mix"
            return [
                f"model.name={self.name}: {self.kind} {why}, so that results depend on dist.world_size: compute each "
                "output from its own observation alone"
            ]
        return []


def rounding(x: torch.Tensor) -> float:
    """Return what two ways to compute x may differ by, far below what another network would."""
    return 1e-3 if x.dtype == torch.float32 else 1e-6


def _shape(x: Obs) -> str:
    return str(each(lambda leaf: list(leaf.shape), x)).replace("'", "")


def listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
