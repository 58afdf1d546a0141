"""The classic tasks stepped in C++ (ddppo/native/src/tasks.cpp), and the choice of tasks that are batched.

One call steps all environments. The arrays belong to NumPy and C++ gets their addresses, so a batch has the same state
in C++ and in NumPy. `make_fastest` uses C++ only if it gives NumPy's bits on this machine. The last section says which
tasks can be batched (`why_not_batched`) and makes the batch (`make_batched`).
"""

import ctypes
import functools
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends import classic
from ddppo.envs.backends.batched import BatchedEnvs, Dynamics, Synthetic
from ddppo.envs.single import make_task
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep
from ddppo.plugins import added, imported
from ddppo.terminal import warn_once

_logger = logging.getLogger(__name__)


class CppTask(NamedTuple):
    """A task that C++ can step."""

    dynamics: type[Dynamics]  # the same task in NumPy
    setting: str  # the one keyword that it takes, "" for none
    default: float  # of this keyword


TASKS = (  # in the order of kTasks in tasks.cpp
    CppTask(classic.CartPole, "sutton_barto_reward", 0.0),
    CppTask(classic.Acrobot, "", 0.0),
    CppTask(classic.Pendulum, "g", 10.0),
    CppTask(classic.MountainCar, "goal_velocity", 0.0),
    CppTask(classic.ContinuousMountainCar, "goal_velocity", 0.0),
)
_CHECKED_ENVS, _CHECKED_SCALES = 128, (0.1, 1.0, 3.0, 100.0)
_WORD = 2**64 - 1
_agreed: dict[tuple[CppTask, float], bool] = {}  # results of `_agrees`


class TaskBatch(ctypes.Structure):
    """The struct `TaskBatch` of tasks.hpp."""

    _fields_ = [
        ("step", ctypes.c_void_p),
        ("task", ctypes.c_int64),
        ("num_envs", ctypes.c_int64),
        ("obs_size", ctypes.c_int64),
        ("num_steps", ctypes.c_int64),
        ("max_episode_steps", ctypes.c_int64),
        ("setting", ctypes.c_double),
        ("state", ctypes.c_void_p),
        ("is_obs_double", ctypes.c_int64),
        ("obs", ctypes.c_void_p),
        ("rewards", ctypes.c_void_p),
        ("terminated", ctypes.c_void_p),
        ("truncated", ctypes.c_void_p),
        ("last_steps", ctypes.c_void_p),
        ("ended", ctypes.c_void_p),
        ("final_obs", ctypes.c_void_p),
        ("actions", ctypes.c_void_p),
        ("generators", ctypes.c_void_p),
    ]


class CppEnvs(BatchedEnvs):
    """A batch stepped in C++.

    Args:
        batch: what only this task has; the arrays that all tasks have are set here.
        functions: of C++, that step all environments and reset one.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        batch: TaskBatch,
        functions: tuple[Any, Any],
        space: gym.Space,
        spec: EnvSpec,
        names: EnvNames,
        max_episode_steps: int | None,
    ) -> None:
        self.batch = batch
        super().__init__(dynamics, space, spec, names, max_episode_steps)
        # C++ reads and writes these arrays through their addresses, so they must never be replaced.
        self._step_all, self._reset_one = functions
        envs = self.num_envs
        self._rewards = np.zeros(envs)
        self._terminated, self._truncated = np.zeros((2, envs), bool)
        self._ended = np.zeros(envs, np.int64)
        self._final_obs = np.zeros_like(self._obs)
        is_box = spec.action.kind == "box"
        self._actions = np.zeros((envs, *spec.action.shape), np.float32 if is_box else np.int64)
        batch.step = ctypes.cast(self._step_all, ctypes.c_void_p)
        batch.num_envs = envs
        batch.obs_size = spec.obs_size
        batch.max_episode_steps = self._max_episode_steps
        batch.is_obs_double = self._obs.dtype == np.float64
        batch.obs = self._obs.ctypes.data
        batch.rewards = self._rewards.ctypes.data
        batch.terminated = self._terminated.ctypes.data
        batch.truncated = self._truncated.ctypes.data
        batch.last_steps = self._last_steps.ctypes.data
        batch.ended = self._ended.ctypes.data
        batch.final_obs = self._final_obs.ctypes.data
        batch.actions = self._actions.ctypes.data
        self._address = ctypes.addressof(batch)

    @property
    def _num_steps(self) -> int:
        return self.batch.num_steps

    @_num_steps.setter
    def _num_steps(self, num_steps: int) -> None:
        self.batch.num_steps = num_steps

    def _step(self, actions: np.ndarray) -> EnvStep:
        self._actions[...] = actions  # rounds to float32 before C++ clips, as the bounds are float32
        # A negative result is the index of an environment with an invalid action.
        num_ended = self._step_all(self._address)
        if num_ended < 0:
            i = -1 - num_ended
            raise IndexError(f"its environment {i}, counted from 0, has no action {self._actions[i]}")
        ended, final_obs = self._ended[:num_ended], self._final_obs[:num_ended]
        return EnvStep(
            self._obs, self._rewards, self._terminated, self._truncated, self._valid, ended, final_obs, None
        )

    def _reset(self, i: int) -> None:
        self._reset_one(self._address, i)


class ClassicEnvs(CppEnvs):
    """A batch of a classic task. `setting`: the value of its one keyword."""

    def __init__(
        self,
        dynamics: Dynamics,
        setting: float,
        space: gym.Space,
        spec: EnvSpec,
        names: EnvNames,
        max_episode_steps: int | None,
    ) -> None:
        functions = _functions()
        assert functions is not None, "make_fastest has checked this"
        # State and increment of each environment's PCG64, two words each, the high one first.
        self._generators = np.zeros((len(names.indices), 4), np.uint64)
        batch = TaskBatch(
            task=[task.dynamics for task in TASKS].index(type(dynamics)),
            setting=setting,
            state=dynamics.state.ctypes.data,
            generators=self._generators.ctypes.data,
        )
        super().__init__(dynamics, batch, functions, space, spec, names, max_episode_steps)

    def state(self) -> dict[str, Any]:
        # C++ advances its own copies of the generators: write them back to NumPy's.
        for generator, words in zip(self._dynamics.generators, self._generators.tolist(), strict=True):
            numbers = {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3]}
            generator.bit_generator.state = {**generator.bit_generator.state, "state": numbers}
        return super().state()

    def _take_generators(self, generators: list[np.random.Generator]) -> None:
        super()._take_generators(generators)
        # Copy NumPy's generators for C++, as four words each.
        for words, generator in zip(self._generators, generators, strict=True):
            state = generator.bit_generator.state["state"]
            words[:] = [state[name] >> shift & _WORD for name in ("state", "inc") for shift in (64, 0)]


def make_fastest(
    kwargs: dict[str, Any],
    dynamics: Dynamics,
    space: gym.Space,
    spec: EnvSpec,
    names: EnvNames,
    max_episode_steps: int | None,
) -> BatchedEnvs:
    """Return a batch in C++ if that is compiled and gives NumPy's bits, else a batch in NumPy."""
    task = next((task for task in TASKS if task.dynamics is type(dynamics)), None)
    if task is not None and _functions() is not None:
        setting = float(kwargs.get(task.setting, task.default))
        if _agrees(task, setting, kwargs, space, spec):
            return ClassicEnvs(dynamics, setting, space, spec, names, max_episode_steps)
        warn_once(
            f"{task.dynamics.__name__} is stepped by NumPy, not in C++, and several times slower: its "
            "sines or random numbers have other bits on this machine"
        )
    return BatchedEnvs(dynamics, space, spec, names, max_episode_steps)


def _agrees(task: CppTask, setting: float, kwargs: dict[str, Any], space: gym.Space, spec: EnvSpec) -> bool:
    """Whether C++ gives NumPy's bits for random states and resets: NumPy may have its own sin and cos."""
    # Compare once per task and setting: resets, and one step from random states of several magnitudes.
    key = (task, setting)
    if key not in _agreed:
        names = EnvNames(range(_CHECKED_ENVS), None)
        in_cpp = ClassicEnvs(task.dynamics(_CHECKED_ENVS, **kwargs), setting, space, spec, names, 9)
        numpy = BatchedEnvs(task.dynamics(_CHECKED_ENVS, **kwargs), space, spec, names, 9)
        _agreed[key] = _step_alike(in_cpp, numpy)
    return _agreed[key]


def _step_alike(in_cpp: ClassicEnvs, numpy: BatchedEnvs) -> bool:
    rng, both, action = np.random.default_rng(0), (in_cpp, numpy), in_cpp.spec.action
    seeds, shape = range(in_cpp.num_envs), (in_cpp.num_envs, *action.shape)
    for envs in both:
        envs.reset(seeds)
    is_equal = np.array_equal(in_cpp._obs, numpy._obs)
    for scale in _CHECKED_SCALES:
        state = rng.uniform(-scale, scale, in_cpp._dynamics.state.shape)
        drawn = rng.integers(0, action.sizes[0], shape) if action.kind == "discrete" else None
        actions = rng.standard_normal(shape, np.float32) if drawn is None else drawn
        for envs in both:
            envs._dynamics.state[:] = state
        steps = [envs.step(actions) for envs in both]
        is_equal &= all(
            np.array_equal(getattr(steps[0], name), getattr(steps[1], name))
            for name in ("obs", "rewards", "terminated", "truncated", "ended", "final_obs")
        )
    return is_equal and in_cpp.state() == numpy.state()


@functools.cache
def _functions() -> tuple[Any, Any] | None:
    """Return the C++ functions tasks_step and tasks_reset, or None if they cannot be compiled."""
    from ddppo.native import NotCompiled, library

    try:
        compiled = library()
    except NotCompiled as e:
        _logger.debug("tasks are stepped by NumPy: %s", e)
        return None
    compiled.tasks_step.argtypes, compiled.tasks_step.restype = [ctypes.c_void_p], ctypes.c_int64
    compiled.tasks_reset.argtypes, compiled.tasks_reset.restype = [ctypes.c_void_p, ctypes.c_int64], None
    return compiled.tasks_step, compiled.tasks_reset


# -- Which tasks are batched.


_CLASSIC = "gymnasium.envs.classic_control"
# By entry point and not by id, because a user may register an id again for another task. A str is an import path.
_DYNAMICS: dict[str, Callable[..., Dynamics] | str] = {
    f"{_CLASSIC}.cartpole:CartPoleEnv": classic.CartPole,
    f"{_CLASSIC}.acrobot:AcrobotEnv": classic.Acrobot,
    f"{_CLASSIC}.pendulum:PendulumEnv": classic.Pendulum,
    f"{_CLASSIC}.mountain_car:MountainCarEnv": classic.MountainCar,
    f"{_CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": classic.ContinuousMountainCar,
    "ddppo.envs.tasks.synthetic:SyntheticEnv": Synthetic,
    "ddppo.envs.tasks.memory_tasks:MaskedCartPoleEnv": "ddppo.envs.tasks.memory_tasks:MaskedCartPole",
    "ddppo.envs.tasks.memory_tasks:TMazeEnv": "ddppo.envs.tasks.memory_tasks:TMazes",
}
_IDS = (
    "CartPole-v0",
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "ddppo/Synthetic-v0",
    "ddppo/MaskedCartPole-v0",
    "ddppo/TMaze-v0",
)
# Gymnasium's tasks of MuJoCo have a file of their own, which is imported for them alone.
_ROBOT, _MUJOCO = re.compile(r"gymnasium\.envs\.mujoco\.\w+_v5:"), "ddppo.envs.backends.mujoco_batched"
_COSTS = ("step_time_s", "reset_time_s")


def batched_ids() -> list[str]:
    """Return the ids of all tasks that can be batched, those of plugins last."""
    dynamics = added("dynamics")
    return [
        *_IDS,
        *(task for task, keywords in added("tasks").items() if keywords["entry_point"] in dynamics),
    ]


def _dynamics(entry_point: object) -> Callable[..., Dynamics] | None:
    found = (
        _DYNAMICS.get(entry_point) or added("dynamics").get(entry_point)
        if isinstance(entry_point, str)
        else None
    )
    return imported(found) if isinstance(found, str) else found


def is_robot(env: EnvConfig) -> bool:
    """Return whether it is one of Gymnasium's tasks of MuJoCo at the fifth version."""
    entry_point = gym.registry[env.id.rpartition(":")[2]].entry_point
    return isinstance(entry_point, str) and bool(_ROBOT.match(entry_point))


def why_not_batched(env: EnvConfig) -> str | None:
    """Return why the task cannot be batched, with the remedy; None if it can."""
    registered = gym.registry[env.id.rpartition(":")[2]]
    # Keywords or wrappers at the registration could change the task in ways that the dynamics do not know.
    ours = (
        (is_robot(env) or _dynamics(registered.entry_point) is not None)
        and not registered.kwargs
        and not registered.additional_wrappers
    )
    if not ours:
        return (
            f"only {', '.join(batched_ids())} and Gymnasium's tasks of MuJoCo (-v5) are: use env.backend=auto"
        )
    if env.wrappers:
        return "with env.wrappers every environment is wrapped separately: use env.backend=auto"
    if env.context is not None:
        return f"with env.context={env.context} every environment is wrapped separately: use env.backend=auto"
    for name in _COSTS:
        if env.kwargs.get(name):
            return (
                f"with env.kwargs.{name}={env.kwargs[name]} every environment takes that long: "
                "use env.backend=auto"
            )
    return imported(f"{_MUJOCO}:why_not")(env) if is_robot(env) else None


def make_batched(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, cores: int = 1
) -> BatchedEnvs:
    """Make a batch that this process steps at once. timeout_s is unused: nothing waits.

    cores: the threads that step robots, unless env.num_workers says how many.
    """
    registered = gym.registry[env.id.rpartition(":")[2]]
    if is_robot(env):
        limit = env.max_episode_steps or registered.max_episode_steps
        robots: BatchedEnvs = imported(f"{_MUJOCO}:make_robots")(
            env, spec, names, limit, env.num_workers or cores
        )
        return robots
    make = _dynamics(registered.entry_point)
    assert make is not None, registered
    dynamics = make(len(names.indices), **env.kwargs)
    # The shorter one of the registered limit and the task's own.
    limits = (env.max_episode_steps or registered.max_episode_steps, dynamics.max_episode_steps)
    # Made once, only for its action space.
    task = make_task(env)
    try:
        limit = min(filter(None, limits), default=None)
        return make_fastest(env.kwargs, dynamics, task.action_space, spec, names, limit)
    finally:
        task.close()
