"""Simulators in JAX as `TensorVecEnv`: gymnax, Brax and MuJoCo Playground.

A step is one compiled function of JAX over all environments. On a GPU tensors go there and back by DLPack, without the
host; on a CPU by NumPy.
Arrays of JAX do not change, while tensors do; so actions are copied before JAX keeps them, and so are observations and
rewards, which may share memory with the simulator's state.

Every environment has a key of its own, which its seed determines and which splits once a step. So its episodes do not
depend on the others, and JAX's state is all there is to save.
"""

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from ddppo.envs.encoding.gym_spaces import action_spec
from ddppo.envs.simulators.torch_simulators import Actions, Groups, SimulatorEnvs, box
from ddppo.envs.tensor_env import TensorStep
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvStateError, near
from ddppo.models.actor_critic import Obs
from ddppo.package import program
from ddppo.spaces import ActionSpec

# gymnax 1.0 asks for an older Gymnasium than ours, with which it works, so pip must not resolve what it needs.
_GYMNAX = ("install 'jax<0.12' flax six matplotlib seaborn", "install --no-deps 'gymnax>=1.0.1'")


# -- What the function behind env.id may be: these make a task by its name. ------------------------------------


def _for_env_id(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let env.id call a function of (task, max_episode_steps, **kwargs): JAX needs the other arguments later only."""

    @functools.wraps(make)
    def called(
        task: str,
        num_envs: int,
        device: torch.device,
        seed: int,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> Any:
        return make(task, max_episode_steps, **kwargs)

    return called


@_for_env_id
def make_gymnax(task: str, max_episode_steps: int | None = None, **kwargs: Any) -> Any:
    """Return gymnax' environment and its parameters, for env.id=<this function> env.kwargs.task=CartPole-v1.

    `kwargs` are entries of the parameters, e.g. gravity.
    """
    gymnax = package("gymnax", *_GYMNAX)
    try:
        env, params = gymnax.make(task)
    except ValueError as e:
        raise ConfigError(
            f"env.kwargs.task={task}: gymnax has no such task{near(task, list(gymnax.registered_envs))}"
        ) from e
    if max_episode_steps is not None:
        kwargs["max_steps_in_episode"] = max_episode_steps
    known = list(getattr(params, "__dataclass_fields__", {}))
    for name in kwargs:
        if name not in known:
            raise ConfigError(
                f"env.kwargs.{name}: {task} has no such parameter{near(name, known)}; it has {', '.join(known)}"
            )
    return env, params.replace(**kwargs)


@_for_env_id
def make_brax(task: str, max_episode_steps: int | None = None, **kwargs: Any) -> Any:
    """Return an environment of Brax, for env.id=<this function> env.kwargs.task=ant."""
    env = package("brax.envs", "install brax").get_environment(task, **kwargs)
    env.max_episode_steps = max_episode_steps
    return env


@_for_env_id
def make_playground(task: str, max_episode_steps: int | None = None, **kwargs: Any) -> Any:
    """Return an environment of MuJoCo Playground, for env.id=<this function> env.kwargs.task=CartpoleBalance.

    `kwargs` override entries of its configuration.
    """
    registry = package("mujoco_playground", "install playground").registry
    env = registry.load(task, config_overrides=kwargs or None)
    env.max_episode_steps = max_episode_steps
    return env


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which JAX computes on the rank's device; simulators put their models there when made."""
    # JAX would take three quarters of the memory for itself, at the first use of the device.
    if device.type != "cpu":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax = importlib.import_module("jax")
    except ImportError:  # what is made here says which packages it needs
        return nullcontext()
    context: AbstractContextManager[Any] = jax.default_device(jax_device(jax, device))
    return context


def package(name: str, *commands: str) -> Any:
    """Import a package, or raise ConfigError with the commands of pip that install it."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ConfigError(
            f"the simulator needs the package {name.partition('.')[0]}, which cannot be imported ({e}): {pip(commands)}"
        ) from e


def pip(commands: Sequence[str]) -> str:
    return " && ".join(f"{program('pip')} {command}" for command in commands)


# -- The base of both adapters. --------------------------------------------------------------------------------


class JaxEnvs(SimulatorEnvs):
    """E environments in JAX. A subclass gives two pure functions of JAX, which are compiled once.

    begin(keys) returns (obs, state). advance(keys, state, actions) returns (obs, state, rewards, terminated, truncated,
    final_obs, metrics). Both are over E environments with a key each.
    """

    has_final_obs = True
    has_own_streams = True

    def __init__(self, made: Any, num_envs: int, device: torch.device, names: EnvNames, seed: int) -> None:
        super().__init__(made, num_envs, device, names, seed)
        self._jax = package("jax", "install 'jax<0.12'")
        self._place = jax_device(self._jax, device)
        self._is_on_cpu = device.type == "cpu"
        self._carry: Any = None  # (keys, state, obs), all that determines what follows
        self._begin = self._jax.jit(self._begun)
        self._advance = self._jax.jit(self._advanced)

    def begin(self, keys: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def advance(self, keys: Any, state: Any, actions: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _describe(self, action: ActionSpec, space: Any = None, **names: Any) -> None:
        """Set the spec, from the actions and from the observations that begin an episode."""
        obs = self._start(torch.zeros(self.num_envs, dtype=torch.int64))
        self._groups = Groups(obs, self.num_envs, self.device, **names)
        self.spec = self._groups.env_spec(action)
        self._actions = Actions(action, self.device, space)

    def reset(self, seeds: torch.Tensor) -> Obs:
        return self._groups(self._start(seeds))

    def step(self, actions: torch.Tensor) -> TensorStep:
        self._carry, out = self._advance(self._carry, self._array(self._actions(actions.detach())))
        rewards, terminated, truncated, final, metrics = self._tensors(out)
        return TensorStep(
            obs=self._groups(self._tensors(self._carry[2])),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_obs=self._groups(final),
            metrics=metrics,
        )

    def state(self) -> dict[str, Any]:
        leaves = self._jax.tree.leaves(self._carry)
        return {str(k): _signed(self._tensors(x)) for k, x in enumerate(leaves)}

    def restore(self, state: Mapping[str, Any]) -> Obs:
        if self._carry is None:
            self._start(torch.zeros(self.num_envs, dtype=torch.int64))
        leaves, form = self._jax.tree.flatten(self._carry)
        now = [_signed(self._tensors(x)) for x in leaves]
        found = [state[str(k)] for k in range(len(state)) if str(k) in state]
        if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in now]:
            raise EnvStateError(
                f"{self.names.all()} cannot go on from a state of another task, or of another version of its simulator"
            )
        arrays = [self._jax.dlpack.from_dlpack(x.to(self.device).contiguous().clone()) for x in found]
        arrays = [x.view(leaf.dtype) for x, leaf in zip(arrays, leaves, strict=True)]
        self._carry = self._jax.tree.unflatten(form, arrays)
        return self._groups(self._tensors(self._carry[2]))

    def _start(self, seeds: torch.Tensor) -> Any:
        numbers = seeds.cpu().numpy()
        halves = [(numbers >> shift & 0xFFFFFFFF).astype(np.uint32) for shift in (0, 32)]
        self._carry = self._begin(*self._jax.device_put(halves, self._place))
        return self._tensors(self._carry[2])

    def _array(self, actions: torch.Tensor) -> Any:
        """Return actions for JAX: a copy, for JAX may read it later, and keep it in its state."""
        kind = actions.dtype if actions.is_floating_point() else torch.int32
        own = actions.to(kind, copy=True)
        # A call with an array of NumPy takes half the time of one with an imported array.
        return own.numpy() if self._is_on_cpu else self._jax.dlpack.from_dlpack(own)

    def _tensors(self, tree: Any) -> Any:
        """Return copies of all arrays as tensors, in nested dicts and tuples."""
        if isinstance(tree, Mapping):
            return {name: self._tensors(part) for name, part in tree.items()}
        if isinstance(tree, tuple):
            return tuple(self._tensors(part) for part in tree)
        if hasattr(tree, "__dataclass_fields__"):
            return {name: self._tensors(getattr(tree, name)) for name in tree.__dataclass_fields__}
        # On a CPU a copy by NumPy takes a third of the time.
        return torch.from_numpy(np.array(tree)) if self._is_on_cpu else torch.from_dlpack(tree).clone()

    # The compiled functions: those of the subclass, and a key for each environment.

    def _begun(self, low: Any, high: Any) -> Any:
        random = self._jax.random
        keys = self._jax.vmap(lambda low, high: random.fold_in(random.PRNGKey(low), high))(low, high)
        keys, now = split(self._jax, keys)
        obs, state = self.begin(now)
        return self._typed((keys, state, obs))

    def _advanced(self, carry: Any, actions: Any) -> tuple[Any, Any]:
        keys, now = split(self._jax, carry[0])
        obs, state, *out = self.advance(now, carry[1], actions)
        return self._typed((keys, state, obs)), tuple(out)

    def _typed(self, carry: Any) -> Any:
        # A type that is only weakly known would make the next step another function, which is compiled again.
        return self._jax.tree.map(lambda x: self._jax.numpy.asarray(x).astype(x.dtype), carry)


def _signed(x: torch.Tensor) -> torch.Tensor:
    """Return the bits of uint32, for which torch has few operations, as int32; else `x`."""
    return x.view(torch.int32) if x.dtype == torch.uint32 else x


def split(jax: Any, keys: Any) -> tuple[Any, Any]:
    """Split the key of each environment in two."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def where_ended(jax: Any, ended: Any, then: Any, otherwise: Any) -> Any:
    """Choose between two trees of arrays `[E, ...]` by a mask `[E]`; the types are those of `otherwise`."""

    def choose(x: Any, y: Any) -> Any:
        mask = ended.reshape(ended.shape + (1,) * (y.ndim - 1))
        return jax.numpy.where(mask, x, y).astype(y.dtype)

    return jax.tree.map(choose, then, otherwise)


def jax_device(jax: Any, device: torch.device) -> Any:
    """Return JAX' own name for the rank's device. Raises ConfigError if it sees no such one."""
    try:
        found = jax.devices(device.type)
    except RuntimeError as e:
        raise ConfigError(
            f"this rank computes on {device}, and JAX sees no {device.type}, only {jax.default_backend()}: set "
            "device=cpu, or install JAX for this accelerator: https://docs.jax.dev/en/latest/installation.html"
        ) from e
    index = device.index or 0
    if index >= len(found):
        raise ConfigError(
            f"this rank computes on {device}, and JAX sees {len(found)} of this type: set CUDA_VISIBLE_DEVICES before "
            "the command, which both read"
        )
    return found[index]


# -- gymnax. ---------------------------------------------------------------------------------------------------


class GymnaxEnvs(JaxEnvs):
    """Environments of gymnax, from 1.0 on, which tells a time limit from a failure and keeps the last observation.

    `made` is what gymnax.make returns, (env, params), or an environment alone.
    """

    def __init__(
        self,
        made: Any,
        num_envs: int,
        device: torch.device,
        names: EnvNames,
        seed: int,
    ) -> None:
        env, params = made if isinstance(made, tuple) else (made, getattr(made, "default_params", None))
        missing = [name for name in ("reset", "step", "action_space") if not hasattr(env, name)]
        if missing:
            raise ConfigError(
                f"env.simulator=gymnax: {type(env).__name__} lacks {', '.join(missing)} of gymnax' environments: "
                "return what gymnax.make returns, or choose another env.simulator"
            )
        super().__init__(env, num_envs, device, names, seed)
        self._params = params
        space = env.observation_space(params)
        self._num_choices = int(space.n) if hasattr(space, "n") else 0  # an observed number, encoded one-hot

        def one_step(key: Any) -> Any:
            action = env.action_space(params).sample(key)
            return env.step(key, env.reset(key, params)[1], action, params)

        found = self._jax.eval_shape(one_step, self._jax.random.PRNGKey(0))  # compiles nothing
        if len(found) != 6 or "final_observation" not in found[5]:
            raise ConfigError(
                "this gymnax does not tell a time limit from a failure, nor keep last observations, as 1.0 does: "
                + pip(_GYMNAX)
            )
        actions = gymnasium_space(env.action_space(params))
        self._describe(action_spec(actions), actions)

    def begin(self, keys: Any) -> tuple[Any, Any]:
        obs, state = self._jax.vmap(self._env.reset, in_axes=(0, None))(keys, self._params)
        return self._encoded(obs), state

    def advance(self, keys: Any, state: Any, actions: Any) -> tuple[Any, ...]:
        step = self._jax.vmap(self._env.step, in_axes=(0, 0, 0, None))
        obs, state, rewards, terminated, truncated, info = step(keys, state, actions, self._params)
        final = self._encoded(info["final_observation"])
        numpy = self._jax.numpy
        flags = (x.astype(bool) for x in (terminated, truncated))
        return self._encoded(obs), state, rewards.astype(numpy.float32), *flags, final, {}

    def _encoded(self, obs: Any) -> Any:
        return self._jax.nn.one_hot(obs, self._num_choices) if self._num_choices else obs


def gymnasium_space(space: Any) -> Any:
    """Return a space of gymnax as Gymnasium's. Raises ConfigError for those of other kinds than Box and Discrete."""
    if hasattr(space, "n"):
        return gym.spaces.Discrete(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (space.low, space.high))
        return gym.spaces.Box(low, high, dtype=np.float32)
    raise ConfigError(f"actions of the space {space} are not supported: gymnax' Discrete and Box are")


# -- Brax and MuJoCo Playground. -------------------------------------------------------------------------------


class BraxEnvs(JaxEnvs):
    """Environments of Brax and MuJoCo Playground, without any of their wrappers.

    Their AutoResetWrapper loses the last observation; here time limit and reset are done as theirs, which keeps it.
    full_reset=true begins every episode anew; its cost depends on the task. false begins all episodes of an
    environment in the state of its first one, as Brax trains by default; what the task keeps in `info` goes on.

    Playground's critic reads the group "privileged_state", its policy "state".
    """

    def __init__(
        self,
        made: Any,
        num_envs: int,
        device: torch.device,
        names: EnvNames,
        seed: int,
        *,
        action_repeat: int | None = None,
        full_reset: bool = True,
    ) -> None:
        layer, wrappers = made, []
        while (inner := getattr(layer, "env", None)) is not None:
            wrappers.append(type(layer).__name__)
            layer = inner
        unfit = [name for name in wrappers if any(word in name for word in ("AutoReset", "Vmap", "Episode"))]
        if unfit or not hasattr(made, "action_size"):
            what = f"is wrapped in {', '.join(unfit)}" if unfit else "is no environment of Brax or Playground"
            raise ConfigError(
                f"env.simulator=brax: {type(layer).__name__} {what}: return the bare environment, e.g. "
                "brax.envs.get_environment(name) or mujoco_playground.registry.load(name)"
            )
        super().__init__(made, num_envs, device, names, seed)
        own = getattr(made, "_config", {})  # of Playground's tasks
        limit = getattr(made, "max_episode_steps", None) or own.get("episode_length")
        self._limit = int(limit or 1000)  # as Brax' own training, in steps of the task
        self._repeat = action_repeat or int(own.get("action_repeat", 1))
        self._is_full = full_reset
        self._describe(box(int(made.action_size), 1.0), policy=("state",), values="privileged_state")

    def begin(self, keys: Any) -> tuple[Any, Any]:
        numpy = self._jax.numpy
        state = self._jax.vmap(self._env.reset)(keys)
        first = None if self._is_full else self._physics(state)
        return state.obs, (state, numpy.zeros(self.num_envs, numpy.int32), first)

    def advance(self, keys: Any, state: Any, actions: Any) -> tuple[Any, ...]:
        jax, numpy = self._jax, self._jax.numpy
        now, ages, first = state
        # 1. Step, with the same action several times if the task wants that.
        now = now.replace(done=numpy.zeros_like(now.done))

        def once(before: Any, _: Any) -> tuple[Any, Any]:
            after = jax.vmap(self._env.step)(before, actions)
            return after, after.reward

        now, rewards = jax.lax.scan(once, now, None, length=self._repeat)
        # 2. Tell failures from the time limit.
        ages = ages + self._repeat
        terminated = now.done > 0
        truncated = (ages >= self._limit) & ~terminated
        ended = terminated | truncated
        final, metrics = now.obs, {name: x.mean() for name, x in now.metrics.items()}
        # 3. Begin new episodes where one ended; if none did, the reset is not computed.
        if self._is_full:

            def renewed(now: Any) -> Any:
                return where_ended(jax, ended, jax.vmap(self._env.reset)(keys), now)

            now = jax.lax.cond(ended.any(), renewed, lambda now: now, now)
        else:
            now = now.replace(**where_ended(jax, ended, first, self._physics(now)))
        ages = numpy.where(ended, 0, ages)
        rewards = rewards.sum(axis=0).astype(numpy.float32)
        return now.obs, (now, ages, first), rewards, terminated, truncated, final, metrics

    @staticmethod
    def _physics(state: Any) -> dict[str, Any]:
        """Return what Brax's own reset restores: observation and physics, called data by Playground."""
        name = "data" if hasattr(state, "data") else "pipeline_state"
        return {"obs": state.obs, name: getattr(state, name)}
