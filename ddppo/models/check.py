"""A model of a user's own, tried before any process starts: its size, its outputs, its gradients, its layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddppo.config import ModelConfig
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model, model_class
from ddppo.models.observations import Obs, random_obs
from ddppo.spaces import EnvSpec, each, leaves
from ddppo.tracebacks import in_one_line

_COPIES = 4  # a rank holds parameters, gradient and Adam's two moments
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_RUNNING = (nn.modules.batchnorm._NormBase,)


def check_model(
    spec: EnvSpec,
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    num_envs: int,
    ranks_here: int | None = None,
    overlaps_from: int | None = None,
) -> str | None:
    """Build the model that `config` names and try it on batches of 1, num_envs and more observations.

    num_envs: E of one rank. ranks_here: how many ranks this machine is to hold; None if it holds none.
    overlaps_from: the number of parameters from which DistributedDataParallel reduces gradients; None for never.
    Returns a warning where layers make results depend on chance or on how the batch is split. Raises ConfigError, in
    one sentence with the class, the method, what is wanted and what came.
    """
    _check_memory(spec, config, dtype, ranks_here)
    model = build_model(spec, config, 0, dtype)
    trial = _Trial(model, spec, config.name)
    trial.check_parameters()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for size in (num_envs, 2 * num_envs + 1):  # of acting, and of learning
            trial.check_outputs(size)
        warnings = trial.warnings(max(num_envs, 2))
        trial.check_one_row(warnings, is_acted_on=num_envs == 1)
        unused = trial.unused_parameters(num_envs)
    count = sum(p.numel() for p in model.parameters())
    if unused and overlaps_from is not None and count >= overlaps_from:
        raise ConfigError(
            f"model.name={config.name}: {trial.kind}.forward does not use {_listed(unused)}, and dist.grad_sync=ddp "
            "waits for the gradient of every parameter: use dist.grad_sync=flat, or remove what is not used"
        )
    return "; ".join(warnings) or None


class _Trial:
    """One model under test."""

    def __init__(self, model: ActorCritic, spec: EnvSpec, name: str) -> None:
        self.model = model
        self.kind = type(model).__name__
        self.name = name
        self.spec = spec
        self.num_params = model.num_params

    def fails(self, method: str, what: str) -> ConfigError:
        return ConfigError(f"model.name={self.name}: {self.kind}.{method} {what}")

    # -- parameters ------------------------------------------------------------------------------------------------

    def check_parameters(self) -> None:
        parameters = dict(self.model.named_parameters())
        lazy = [name for name, p in parameters.items() if isinstance(p, nn.parameter.UninitializedParameter)]
        if lazy:
            raise self.fails(
                "__init__",
                f"leaves {_listed(lazy)} without a shape: give lazy layers the size of their input",
            )
        if not any(p.requires_grad for p in parameters.values()):
            what = "none requires a gradient" if parameters else "it has none"
            raise self.fails("__init__", f"makes no parameter that can learn: {what}")
        kinds: dict[str, list[str]] = {}
        for name, p in parameters.items():
            kinds.setdefault(f"{p.dtype} on {p.device}".removeprefix("torch."), []).append(name)
        if len(kinds) > 1:
            found = "; ".join(f"{kind}: {_listed(names)}" for kind, names in kinds.items())
            raise self.fails(
                "__init__",
                f"makes parameters of several types or devices ({found}): keep what does not learn in "
                "register_buffer, and leave devices to the setting device",
            )

    # -- outputs ---------------------------------------------------------------------------------------------------

    def check_outputs(self, size: int) -> None:
        """Call all three methods with `size` observations, as acting and learning do, and compare what they return."""
        obs = self._obs(size)
        with torch.inference_mode():
            params, values = self._alone(obs)
        both = self._call("forward", obs)
        if not (isinstance(both, (tuple, list)) and len(both) == 2):
            has = f"{len(both)} things" if isinstance(both, (tuple, list)) else f"one {type(both).__name__}"
            raise self.fails(
                "forward",
                f"returned {has} for obs {_shape(obs)}: it must return two, action parameters [{size}, "
                f"{self.num_params}] and values [{size}]",
            )
        self._check_tensor("forward", "action parameters", both[0], obs, (size, self.num_params))
        self._check_tensor("forward", "values", both[1], obs, (size,))
        if self._is_repeatable(obs):
            self._check_agreement("action_params", "action parameters", both[0], params)
            self._check_agreement("value", "values", both[1], values)

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

    def _call(self, method: str, obs: Obs) -> Any:
        given = each(torch.clone, obs)
        call: Callable[[Obs], Any] = self.model if method == "forward" else getattr(self.model, method)
        try:
            result = call(given)
        except Exception as e:  # a user's model may raise anything
            raise self.fails(method, f"raised for obs {_shape(obs)}: {in_one_line(e)}") from e
        now, before = leaves(given), leaves(obs)
        if len(now) != len(before) or not all(map(torch.equal, now, before)):
            raise self.fails(method, "changes the observations it is given: compute on a copy of them")
        return result

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
        tolerance = (
            1e-3 if together.dtype == torch.float32 else 1e-6
        )  # of rounding, far below another network
        if not torch.allclose(together, alone, rtol=tolerance, atol=tolerance, equal_nan=True):
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
        params, values = self._call("forward", self._obs(size))
        for what, output in (("action parameters", params), ("values", values)):
            if not output.requires_grad:
                raise self.fails(
                    "forward",
                    f"returned {what} without a gradient: they must depend on the parameters, outside torch.no_grad() "
                    "and without .detach()",
                )
        learning = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        try:
            grads = torch.autograd.grad(
                params.sum() + values.sum(), list(learning.values()), allow_unused=True
            )
        except RuntimeError as e:
            raise self.fails("forward", f"cannot be differentiated: {in_one_line(e)}") from e
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
        layers = _listed([f"{n} ({type(self.model.get_submodule(n)).__name__})" for n in names])
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
        rounding = 1e-3 if whole[1].dtype == torch.float32 else 1e-6
        mixes = any(
            not torch.allclose(w[: size // 2], p, rtol=rounding, atol=rounding, equal_nan=True)
            for w, p in zip(whole, part, strict=True)
        )
        if mixes or changed:
            why = f"changes its buffers {_listed(changed)}" if changed else "lets observations of a batch mix"
            return [
                f"model.name={self.name}: {self.kind} {why}, so that results depend on dist.world_size: compute each "
                "output from its own observation alone"
            ]
        return []


# -- memory --------------------------------------------------------------------------------------------------------


def _check_memory(spec: EnvSpec, config: ModelConfig, dtype: torch.dtype, ranks_here: int | None) -> None:
    """Compare the size of the model, found without allocating it, with the memory of this machine."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            skeleton = model_class(config)(spec, config)
        count = sum(x.numel() for x in (*skeleton.parameters(), *skeleton.buffers()))
    except ConfigError:
        raise
    except Exception:  # cannot be built without data, or at all, which building it in earnest tells
        return
    copies = 1 if ranks_here is None else _COPIES * ranks_here
    needed, has = count * dtype.itemsize * copies, _memory_bytes()
    if has is not None and needed > has:
        purpose = "to build"
        if ranks_here is not None:
            purpose = f"with gradients and Adam's moments in {ranks_here} rank{'s' * (ranks_here > 1)}"
        raise ConfigError(
            f"model.name={config.name} with model.hidden_sizes={list(config.hidden_sizes)}: "
            f"{type(skeleton).__name__} has {count:,} parameters and buffers, which need {needed / 2**30:,.1f} GiB "
            f"{purpose}, but this machine has {has / 2**30:,.1f} GiB: use smaller layers, or fewer ranks on a machine"
        )


def _memory_bytes() -> int | None:
    """Return the memory that this machine or its container has; None where neither says."""
    found = []
    try:
        total = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
        found.append(int(total) * 1024)
    except (OSError, IndexError, ValueError):
        pass
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found, default=None)


def _shape(x: Obs) -> str:
    return str(each(lambda leaf: list(leaf.shape), x)).replace("'", "")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
