"""env.backend=device: environments that live on a device, as tensors (the contract is ddppo/envs/tensor_env.py).

`make_device_envs` imports the task that env.id names, makes it, brings it into the form of the contract (env.simulator)
and checks it. `DeviceEnvs` is what a rank keeps: the environments with their names, and with states as checkpoints hold
them. `HostEnvs` steps them through NumPy arrays, for evaluation.
"""

import inspect
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ddppo.config.settings import EnvConfig
from ddppo.device import accelerators, resolve, select
from ddppo.envs.guard import MADE, guarding
from ddppo.envs.tensor_env import TensorStep, TensorVecEnv
from ddppo.envs.vec_env import (
    EnvNames,
    EnvSpec,
    EnvStep,
    ObsArrays,
    Options,
    explained,
    no_options,
    when_reset,
    when_stepped,
)
from ddppo.errors import ConfigError, EnvError, EnvRaised, EnvStateError, in_one_line, near
from ddppo.files import write_json
from ddppo.models.actor_critic import Obs
from ddppo.plugins import imported
from ddppo.spaces import ActionSpec, ArraySpec, each

_TORCH, _JAX = "ddppo.envs.simulators.torch_simulators", "ddppo.envs.simulators.jax_simulators"
# env.simulator -> the class that brings what env.id makes into the form of TensorVecEnv; called as
# Adapter(made, num_envs, device, names, seed, **env.simulator_options).
SIMULATORS = {
    "rsl_rl": f"{_TORCH}:RslRlEnvs",
    "isaaclab": f"{_TORCH}:IsaacLabEnvs",
    "maniskill": f"{_TORCH}:ManiSkillEnvs",
    "gymnax": f"{_JAX}:GymnaxEnvs",
    "brax": f"{_JAX}:BraxEnvs",
}
_PROBED_ENVS = 2
_PROBE_S = 900.0  # a simulator may compile for minutes
_ARGUMENTS = ("num_envs", "device", "seed")  # of what env.id names
_MEMBERS = ("spec", "num_envs", "device", "reset", "step", "state", "restore", "close")
_PROBED = ".probed.json"  # in the run folder: what the command found, for its ranks


class Probed(NamedTuple):
    """What probing found out about a task."""

    spec: EnvSpec
    why_unsaved: str | None  # why checkpoints cannot hold episodes under way; None if they can
    # Why a process cannot hold a second batch of it; None if it can, or is not tried.
    why_one: str | None = None
    has_own_streams: bool = False  # whether an environment's episodes follow from its seed alone


_probed: dict[str, Probed] = {}  # by the settings of a task; found once in a process


def make_device_envs(env: EnvConfig, names: EnvNames, device: torch.device, seed: int) -> "DeviceEnvs":
    """Make the environments `names.indices` on a device. Raises ConfigError with the cause and the remedy.

    seed: of simulators with one random stream for the whole batch.
    """
    return DeviceEnvs(_made(env, names, device, seed), names)


def make_host_envs(env: EnvConfig, names: EnvNames, device: str, seed: int) -> "HostEnvs":
    """Make environments on a device that are stepped through NumPy arrays; `seed` as in `make_device_envs`."""
    return HostEnvs(make_device_envs(env, names, torch.device(device), seed))


def probed(env: EnvConfig, device: str | None = None) -> Probed:
    """Return the spec of a task and what else a few environments of it tell. Raises ConfigError.

    device: the run's setting, if it is known: simulators are probed where ranks will make them. Native tasks, which are
    the same on any device, are probed on the CPU.
    """
    key = _key(env)
    if key not in _probed:
        _probed[key] = _probe_here(env) if env.simulator == "native" else _probe_in_a_process(env, device)
    return _probed[key]


def _key(env: EnvConfig) -> str:
    return repr((env.id, env.simulator, env.simulator_options, env.kwargs, env.max_episode_steps))


def hand_on_probed(env: EnvConfig, folder: Path) -> None:
    """Write what this process knows of a task into the run folder. Its ranks then start no simulator to probe it."""
    if (found := _probed.get(_key(env))) is not None:
        write_json(folder / _PROBED, {"task": _key(env), **found._asdict(), "spec": asdict(found.spec)})


def take_probed(env: EnvConfig, folder: Path) -> None:
    """Know what `hand_on_probed` wrote about this task; without it, this process probes the task itself."""
    if _key(env) in _probed:
        return
    path = folder / _PROBED
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.pop("task", None) == _key(env):
        _probed[_key(env)] = Probed(**{**found, "spec": _spec_of(found["spec"])})


def _spec_of(plain: dict[str, Any]) -> EnvSpec:
    """Return the spec of which `plain` is dataclasses.asdict, by way of JSON."""

    def leaf(x: dict[str, Any]) -> ArraySpec:
        return ArraySpec(tuple(x["shape"]), x["dtype"], x["high"])

    obs = plain["obs"]
    obs = leaf(obs) if isinstance(obs.get("dtype"), str) else {name: leaf(x) for name, x in obs.items()}
    bounds = {name: tuple(plain["action"][name]) for name in ("sizes", "low", "high")}
    action = ActionSpec(plain["action"]["kind"], **bounds)
    keys = {name: plain[name] and tuple(plain[name]) for name in ("policy_keys", "value_keys")}
    return EnvSpec(**{**plain, "obs": obs, "action": action, **keys})


def _probe_here(
    env: EnvConfig,
    device: torch.device = torch.device("cpu"),  # noqa: B008 (it does not change)
    then: Callable[[Probed], None] = lambda found: None,
) -> Probed:
    """Make a few environments, step them once, and close them.

    then: called with the result while the environments live.
    """
    envs = make_device_envs(env, EnvNames(range(_PROBED_ENVS), None), device, seed=0)
    try:
        _try(env, envs)
        found = Probed(envs.spec, _why_unsaved(env, envs), has_own_streams=envs.has_own_streams)
        then(found)
        return found
    finally:
        envs.close()


def _why_one(env: EnvConfig, device: torch.device) -> str | None:
    """Return why a second batch cannot be made beside the first; None if it can."""
    try:
        make_device_envs(env, EnvNames(range(_PROBED_ENVS), None), device, seed=1).close()
    except Exception as e:
        return in_one_line(e) if not isinstance(e, ConfigError) else str(e)
    return None


def _probe_in_a_process(env: EnvConfig, device: str | None) -> Probed:
    """Probe a simulator in a process that is started, not forked, for JAX cannot fork.

    The process of the command may be a rank as well, and some simulators can be made once in a process.
    """
    reading, writing = multiprocessing.Pipe(duplex=False)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(writing.fileno())],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[writing.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    writing.close()
    assert process.stdin is not None
    with process.stdin as its_input:
        its_input.write(pickle.dumps((env, device)))
    subject = f"env.id={env.id} with env.simulator={env.simulator}"
    try:
        if not reading.poll(_PROBE_S):
            raise ConfigError(f"{subject} was not made and stepped within {_PROBE_S:g} s: it hangs")
        fault, found = reading.recv()
        why_one = _received(reading, process) if fault is None else None
    except EOFError:
        code = process.wait()
        raise ConfigError(f"{subject}: the process that tried it ended with exit code {code}") from None
    finally:
        process.kill()
        process.wait()
    if fault is not None:
        raise ConfigError(fault)
    return Probed(*found)._replace(why_one=why_one)


def _received(reading: Connection, process: "subprocess.Popen[bytes]") -> str | None:
    """Return `_why_one` as the process found it. A second simulator may also hang, or end the process."""
    if not reading.poll(_PROBE_S):
        return f"it was not made within {_PROBE_S:g} s"
    try:
        why: str | None = reading.recv()
    except EOFError:
        return f"it ended the process with exit code {process.wait()}"
    return why


def _try(env: EnvConfig, envs: "DeviceEnvs") -> None:
    """Reset and step once, and compare the tensors with the spec. Raises ConfigError."""
    spec, rows = envs.spec, _PROBED_ENVS
    subject = f"env.id={env.id} with env.backend=device"

    def check(what: str, x: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(x, torch.Tensor) or tuple(x.shape) != shape:
            found = list(x.shape) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
            raise ConfigError(f"{subject}: it returned {what} {found}: must be a tensor {list(shape)}")

    def check_obs(what: str, obs: Any) -> None:
        if isinstance(spec.obs, dict) != isinstance(obs, dict) or (
            isinstance(obs, dict) and set(obs) != set(spec.obs)  # type: ignore[arg-type]
        ):
            raise ConfigError(f"{subject}: {what} are not those that its spec names: {spec.obs}")
        each(lambda leaf, x: check(what, x, (rows, *leaf.shape)), spec.obs, obs)

    try:
        check_obs("observations of reset", envs.reset(range(rows)))
        kind = torch.float32 if spec.action.kind == "box" else torch.int64
        step = envs.step(torch.zeros(rows, *spec.action.shape, dtype=kind))
    except EnvError as e:
        text = e.said if isinstance(e, EnvRaised) else str(e)
        raise ConfigError(f"{subject}: {' '.join(text.split()).replace(envs.names.all(), 'it')}") from e
    check_obs("observations of step", step.obs)
    for what in ("rewards", "terminated", "truncated"):
        check(what, getattr(step, what), (rows,))
    if envs.has_final_obs:
        check_obs("final observations", step.final_obs)


def _why_unsaved(env: EnvConfig, envs: "DeviceEnvs") -> str | None:
    try:
        envs.state()
    except EnvStateError:
        return f"{env.id} (env.simulator={env.simulator}) cannot save the state of its environments"
    return None


@guarding(MADE)
def _made(env: EnvConfig, names: EnvNames, device: torch.device, seed: int) -> TensorVecEnv:
    subject, num_envs = f"env.id={env.id} with env.backend=device", len(names.indices)
    if ":" not in env.id:
        raise ConfigError(
            f"{subject}: it names a function or class by its import path, my_pkg.tasks:Hopper, which is called as "
            "make(num_envs=..., device=..., seed=..., **env.kwargs)"
        )
    try:
        make = imported(env.id)
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(
            f"{subject}: it cannot be imported ({in_one_line(e)}): install it, or start in the folder that holds it"
        ) from e
    adapter = None if env.simulator == "native" else imported(SIMULATORS[env.simulator])
    given = dict(env.kwargs)
    if env.max_episode_steps is not None:
        given["max_episode_steps"] = env.max_episode_steps
    _check_arguments(env, make, given)
    if adapter is not None:
        _check_options(env, adapter)
    try:
        with imported(f"{_JAX}:on_device")(device) if _is_jax(env) else nullcontext():
            made = make(num_envs=num_envs, device=device, seed=seed, **given)
            if adapter is not None:
                made = adapter(made, num_envs, device, names, seed, **env.simulator_options)
    except ConfigError as e:
        raise ConfigError(f"{subject}: {e}") from e
    except Exception as e:
        raise ConfigError(
            f"{subject} and env.simulator={env.simulator}: {num_envs} environments on {device} cannot be made: "
            f"{in_one_line(e)}"
        ) from e
    return _checked(made, subject, num_envs, device)


def _is_jax(env: EnvConfig) -> bool:
    return SIMULATORS.get(env.simulator, "").startswith(_JAX)


def _check_arguments(env: EnvConfig, make: Callable[..., Any], given: dict[str, Any]) -> None:
    """Raise ConfigError if what env.id names does not take its arguments, as far as its signature tells."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some callables have none
        return
    if any(x.kind == x.VAR_KEYWORD for x in parameters):
        return
    known = [x.name for x in parameters if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)]
    if lacking := [name for name in _ARGUMENTS if name not in known]:
        raise ConfigError(
            f"env.id={env.id} takes no {', '.join(lacking)}: it is called as make(num_envs=..., device=..., seed=..., "
            "**env.kwargs): let it take them"
        )
    others = [name for name in known if name not in _ARGUMENTS]
    for name in given:
        if name not in known and name == "max_episode_steps":
            raise ConfigError(
                f"env.max_episode_steps={env.max_episode_steps}: env.id={env.id} takes no max_episode_steps: let it "
                "take it, or leave the setting out"
            )
        if name not in known:
            raise ConfigError(
                f"env.kwargs.{name}: env.id={env.id} does not take this argument{near(name, others)}; it takes "
                f"{', '.join(others) or 'none'}"
            )


def _check_options(env: EnvConfig, adapter: Callable[..., Any]) -> None:
    """Raise ConfigError for an option that the adapter of env.simulator does not have."""
    known = [x.name for x in inspect.signature(adapter).parameters.values() if x.kind == x.KEYWORD_ONLY]
    for name in env.simulator_options:
        if name not in known:
            raise ConfigError(
                f"env.simulator_options.{name}: env.simulator={env.simulator} has no such option{near(name, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )


def _checked(made: Any, subject: str, num_envs: int, device: torch.device) -> TensorVecEnv:
    """Return `made` if it keeps the contract as far as it can be seen. Raises ConfigError."""
    lacking = [name for name in _MEMBERS if not hasattr(made, name)]
    if lacking:
        raise ConfigError(
            f"{subject}: {type(made).__name__} has no {', '.join(lacking)}: give it what ddppo.envs.tensor_env."
            "TensorVecEnv lists, or name its simulator by env.simulator"
        )
    if made.num_envs != num_envs:
        raise ConfigError(
            f"{subject}: it made {made.num_envs} environments and was asked for {num_envs}: let it take num_envs"
        )
    found = torch.device(made.device)
    if (found.type, found.index or 0) != (device.type, device.index or 0):
        raise ConfigError(
            f"{subject}: its environments are on {found}, and this rank computes on {device}: make them on the device "
            "that it is given"
        )
    spec: EnvSpec = made.spec
    if spec.mask_size is not None or spec.is_text:
        what = "are text" if spec.is_text else "have masks"
        raise ConfigError(f"{subject}: its actions {what}, which env.backend=device does not take")
    there = spec.obs if isinstance(spec.obs, dict) else {}
    for name in ("policy_keys", "value_keys"):
        if unknown := [key for key in getattr(spec, name) or () if key not in there]:
            has = f"its observations are {', '.join(there)}" if there else "its observations are one array"
            raise ConfigError(
                f"{subject}: {name} of its spec has {', '.join(unknown)}, and {has}: name those that it returns"
            )
    envs: TensorVecEnv = made
    return envs


class DeviceEnvs:
    """The environments of a rank on its device."""

    def __init__(self, envs: TensorVecEnv, names: EnvNames) -> None:
        self.envs = envs
        self.names = names
        self.spec: EnvSpec = envs.spec
        self.num_envs: int = envs.num_envs
        self.device = torch.device(envs.device)
        self.has_final_obs: bool = getattr(envs, "has_final_obs", False)
        self.has_own_streams: bool = getattr(envs, "has_own_streams", False)
        # By the type of actions: the bounds of a Box, on the device.
        self._bounds: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}
        self._num_steps = 0  # since the last reset
        self._kept: Mapping[str, Any] | None = None  # the next reset restores it

    def reset(self, seeds: Sequence[int]) -> Obs:
        """Begin an episode in every environment, or go on from the state that `go_on_from` got."""
        kept, self._kept, self._num_steps = self._kept, None, 0
        try:
            if kept is not None:
                return self.envs.restore(kept)
            numbers = torch.tensor(list(seeds), dtype=torch.int64)
            return self.envs.reset(numbers.to(self.device, non_blocking=True))
        except Exception as e:
            raise explained(self.names.all(), when_reset(0), e) from e

    def scatter_ages(self) -> None:
        """After a reset in training: spread the ages of episodes, if the simulator's options ask for it."""
        if callable(scatter := getattr(self.envs, "scatter_ages", None)):
            scatter()

    def step(self, actions: torch.Tensor) -> TensorStep:
        """Step with actions of the policy, which are clipped here to the bounds of a Box."""
        self._num_steps += 1
        if self.spec.action.low:
            actions = actions.clamp(*self._bounds_of(actions))
        try:
            return self.envs.step(actions)
        except Exception as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _bounds_of(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if actions.dtype not in self._bounds:
            low, high = (
                torch.tensor(x, dtype=actions.dtype).to(self.device, non_blocking=True)
                for x in (self.spec.action.low, self.spec.action.high)
            )
            self._bounds[actions.dtype] = low, high
        return self._bounds[actions.dtype]

    # -- States, for checkpoints: a list with one entry for each environment, as VecEnv.state has it.

    def state(self) -> dict[str, Any]:
        arrays = {name: x.cpu().numpy() for name, x in self.envs.state().items()}
        return {
            "envs": [
                {"how": "device", **{name: np.array(x[i]) for name, x in arrays.items()}}
                for i in range(self.num_envs)
            ]
        }

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Make the next reset restore `state` instead of beginning new episodes."""
        first = state["envs"][0]
        self._kept = {
            name: torch.from_numpy(np.stack([one[name] for one in state["envs"]])).to(self.device)
            for name in first
            if name != "how"
        }

    def close(self) -> None:
        self.envs.close()


class HostEnvs:
    """Environments on a device as a `VecEnv`, for evaluation: every step copies to the host."""

    def __init__(self, envs: DeviceEnvs) -> None:
        self._envs = envs
        self.spec, self.num_envs, self.names = envs.spec, envs.num_envs, envs.names

    def reset(self, seeds: Sequence[int], options: Options | None = None) -> tuple[ObsArrays, None]:
        if options and any(options):
            raise no_options(self.names)
        return self._arrays(self._envs.reset(seeds)), None

    def step(self, actions: np.ndarray) -> EnvStep:
        with torch.no_grad():
            step = self._envs.step(torch.from_numpy(actions).to(self._envs.device))
        terminated, truncated = (x.cpu().numpy().astype(bool) for x in (step.terminated, step.truncated))
        (ended,) = np.nonzero(terminated | truncated)
        final_obs = self._arrays(step.obs if step.final_obs is None else step.final_obs)
        return EnvStep(
            self._arrays(step.obs),
            step.rewards.cpu().double().numpy(),  # MPS has no float64
            terminated,
            truncated,
            np.ones(self.num_envs, bool),
            ended,
            each(lambda x: x[ended], final_obs),
            None,
        )

    def _arrays(self, obs: Obs) -> ObsArrays:
        return each(lambda x: x.cpu().numpy().copy(), obs)

    def state(self) -> dict[str, Any]:
        return self._envs.state()

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, None]:
        self._envs.go_on_from(state)
        return self.reset([])

    def go_on_from(self, state: dict[str, Any]) -> None:
        self._envs.go_on_from(state)

    def close(self) -> None:
        self._envs.close()


def _probe_anywhere(env: EnvConfig, device: str | None, then: Callable[[Probed, torch.device], None]) -> None:
    """Probe on the device of the run; if it is unknown, on an accelerator if there is one, else the CPU.

    Some simulators step several environments on an accelerator only; a JAX for the CPU sees none.
    """
    kind, count = accelerators()
    places = [torch.device(kind, 0), torch.device("cpu")] if count else [torch.device("cpu")]
    if device is not None:
        with suppress(ConfigError):  # a run on other machines, which may have what this one lacks
            places = [resolve(device)]
    fault: ConfigError | None = None
    for place in places:
        select(place)
        try:
            _probe_here(env, place, lambda found, place=place: then(found, place))  # type: ignore[misc]
            return
        except ConfigError as e:
            fault = fault or e
    assert fault is not None
    raise fault


def main() -> None:
    """The process of `_probe_in_a_process`: it sends (fault, None), or (None, found) and then why there is one only."""
    writing = Connection(int(sys.argv[1]), readable=False)
    env, device = pickle.load(sys.stdin.buffer)

    def report(found: Probed, place: torch.device) -> None:
        writing.send((None, tuple(found)))
        # A simulator in JAX is a few functions, which can be made again; to compile them again takes minutes.
        writing.send(None if _is_jax(env) else _why_one(env, place))

    try:
        _probe_anywhere(env, device, report)
    except Exception as e:
        text = str(e) if isinstance(e, ConfigError) else f"env.id={env.id} cannot be tried: {in_one_line(e)}"
        writing.send((text, None))
    writing.close()
    os._exit(0)  # a simulator may leave threads behind


if __name__ == "__main__":
    main()
