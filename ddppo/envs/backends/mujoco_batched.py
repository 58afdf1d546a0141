"""Gymnasium's MuJoCo tasks (-v5) as batches in C++ (mujoco.cpp), with the bits of Gymnasium's Python.

Gymnasium makes the model. The simulations are E `mjData` of MuJoCo's own library, the random numbers NumPy's. C++ gets
their addresses, and computes observations, rewards, ends and resets. `why_not` says whether that is possible here: a
trial of some steps compares every task and its settings with Gymnasium's environment before they are batched.
"""

import ctypes
import functools
import importlib.metadata
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.batched import Dynamics
from ddppo.envs.backends.classic_cpp import CppEnvs, TaskBatch
from ddppo.envs.backends.sync import make_sync
from ddppo.envs.single import make_task
from ddppo.envs.vec_env import EnvNames, EnvSpec, other_state
from ddppo.errors import ConfigError, EnvError
from ddppo.native.compiling import CPP_FLAGS, CXX, MACHINE_FLAGS, Library, NotCompiled

# Ant and Humanoid have other bits with other versions, and tests compare 10,000 steps of each task with this one.
PROVED_VERSION = "4.0.0"

# The tasks, in the order of kTasks in mujoco.cpp, with the bodies that they read by name.
TASKS: dict[str, tuple[str, ...]] = {
    "half_cheetah_v5:HalfCheetahEnv": (),
    "hopper_v5:HopperEnv": (),
    "walker2d_v5:Walker2dEnv": (),
    "ant_v5:AntEnv": (),
    "humanoid_v5:HumanoidEnv": (),
    "humanoidstandup_v5:HumanoidStandupEnv": (),
    "swimmer_v5:SwimmerEnv": (),
    "reacher_v5:ReacherEnv": ("fingertip", "target"),
    "pusher_v5:PusherEnv": ("object", "tips_arm", "goal"),
    "inverted_pendulum_v5:InvertedPendulumEnv": (),
    "inverted_double_pendulum_v5:InvertedDoublePendulumEnv": (),
}
_PACKAGE = "gymnasium.envs.mujoco."
# Attributes of Gymnasium's tasks with an underscore before. A task has some of them.
_NUMBERS = (
    *("forward_reward_weight", "ctrl_cost_weight", "contact_cost_weight", "impact_cost_weight"),
    *("reward_near_weight", "reward_dist_weight", "reward_control_weight"),
    *("healthy_reward", "reset_noise_scale"),
)
_FLAGS = (
    *("terminate_when_unhealthy", "exclude_current_positions_from_observation"),
    *("include_cinert_in_observation", "include_cvel_in_observation"),
    *("include_qfrc_actuator_in_observation", "include_cfrc_ext_in_observation"),
)
_RANGES = (
    *("healthy_state_range", "healthy_z_range", "healthy_angle_range"),
    *("contact_force_range", "contact_cost_range", "impact_cost_range"),
)
_TRIAL_STEPS, _TRIAL_EPISODE = 200, 50
_HERE = Path(__file__).resolve().parent


class MujocoBatch(TaskBatch):
    """The struct `MujocoBatch` of mujoco.cpp."""

    _fields_ = [  # noqa: RUF012 (ctypes declares it so)
        *((name, ctypes.c_void_p) for name in ("team", "model", "data", "bit_generators")),
        *(
            (name, ctypes.c_void_p)
            for name in ("mj_step", "mj_rnePostConstraint", "mj_resetData", "mj_forward")
        ),
        *((name, ctypes.c_void_p) for name in ("random_uniform", "random_standard_normal")),
        *((name, ctypes.c_void_p) for name in ("init_qpos", "init_qvel", "low", "high")),
        ("frame_skip", ctypes.c_int64),
        ("bodies", ctypes.c_int64 * 3),
        ("is_dot_fused", ctypes.c_int64),
        ("body_mass", ctypes.c_double),
        *((name, ctypes.c_double) for name in (*_NUMBERS, *_FLAGS)),
        *((name, ctypes.c_double * 2) for name in _RANGES),
    ]


class Simulations(Dynamics):
    """E simulations of one model. C++ steps and resets them; `task` is an environment of Gymnasium without wrappers."""

    def __init__(self, num_envs: int, task: Any) -> None:
        import mujoco

        super().__init__(0, num_envs)
        self.model = task.model
        self._data = [mujoco.MjData(self.model) for _ in range(num_envs)]
        self.data = np.array([data._address for data in self._data], np.uintp)
        self.batch = MujocoBatch()  # replaced by MujocoEnvs

    def reset(self, i: int) -> np.ndarray:
        raise AssertionError("C++ resets the environments")

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("C++ steps the environments")

    def remembered(self) -> list[dict[str, Any]]:
        save, address = _library().mujoco_save, ctypes.addressof(self.batch)
        states = []
        for i in range(len(self.data)):
            content = ctypes.create_string_buffer(save(address, i, None))
            save(address, i, content)
            states.append({"mjData": content.raw})
        return states

    def remember(self, states: list[dict[str, Any]]) -> None:
        address = ctypes.addressof(self.batch)
        for i, state in enumerate(states):
            content = state.get("mjData", b"")
            if not _library().mujoco_restore(address, i, content, len(content)):
                raise other_state(f"environment {i} of the batch", "another model's mjData", "this model's")


class MujocoEnvs(CppEnvs):
    """A batch of robots, stepped in C++ by `num_threads` threads, which change no number."""

    def __init__(
        self,
        entry_point: str,
        task: Any,
        spec: EnvSpec,
        names: EnvNames,
        max_episode_steps: int | None,
        num_threads: int,
    ) -> None:
        simulations, library = Simulations(len(names.indices), task), _library()
        self._bit_generators = np.zeros(len(names.indices), np.uintp)
        # Arrays that C++ reads by their addresses, as long as this object lives.
        self._constants = {
            "init_qpos": task.init_qpos,
            "init_qvel": task.init_qvel,
            "low": np.ascontiguousarray(task.action_space.low, np.float32),
            "high": np.ascontiguousarray(task.action_space.high, np.float32),
            "data": simulations.data,
            "bit_generators": self._bit_generators,
        }
        main_body = (task._main_body,) if hasattr(task, "_main_body") else ()
        bodies = [task.model.body(body).id for body in (*main_body, *TASKS[entry_point])]
        batch = MujocoBatch(
            task=list(TASKS).index(entry_point),
            model=task.model._address,
            frame_skip=task.frame_skip,
            bodies=(ctypes.c_int64 * 3)(*bodies),
            is_dot_fused=bool(_dots_are_fused()),
            body_mass=task.model.body_mass.sum(),
            **{name: array.ctypes.data for name, array in self._constants.items()},
            **_functions(),
            **{name: getattr(task, f"_{name}", 0) for name in (*_NUMBERS, *_FLAGS)},
            **{name: (ctypes.c_double * 2)(*getattr(task, f"_{name}", (0, 0))) for name in _RANGES},
        )
        functions = library.mujoco_step, library.mujoco_reset
        super().__init__(simulations, batch, functions, task.action_space, spec, names, max_episode_steps)
        simulations.batch = batch
        self._set_threads = library.mujoco_set_threads
        self._set_threads(self._address, min(num_threads, self.num_envs))

    def close(self) -> None:
        self._set_threads(self._address, 1)

    def _take_generators(self, generators: list[np.random.Generator]) -> None:
        super()._take_generators(generators)
        self._bit_generators[:] = [each.bit_generator.ctypes.bit_generator.value for each in generators]


def make_robots(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, limit: int | None, num_threads: int = 1
) -> MujocoEnvs:
    """Make the batch of a task for which `why_not` returned None."""
    task = make_task(env)
    try:
        return MujocoEnvs(_entry_point(env), task.unwrapped, spec, names, limit, num_threads)
    finally:
        task.close()


def _entry_point(env: EnvConfig) -> str:
    return str(gym.registry[env.id.rpartition(":")[2]].entry_point).removeprefix(_PACKAGE)


# -- Whether C++ can step a task here.


def why_not(env: EnvConfig) -> str | None:
    """Return why C++ cannot step a robot with these settings, with the remedy; None if it can."""
    otherwise = "or use env.backend=sync"
    if _entry_point(env) not in TASKS:
        return f"of Gymnasium's robots only {', '.join(TASKS)} are: {otherwise.removeprefix('or ')}"
    if importlib.util.find_spec("mujoco") is None:
        return "mujoco is not installed"  # the probe says how to install it
    version = importlib.metadata.version("mujoco")
    if version != PROVED_VERSION:
        return (
            f"equal bits are proved for mujoco {PROVED_VERSION}, and {version} is installed: "
            f"pip install mujoco=={PROVED_VERSION}, {otherwise}"
        )
    if (why := _why_not_settings(env.kwargs)) is not None:
        return f"{why}, {otherwise}"
    try:
        _library()
        _functions()
    except NotCompiled as e:
        return f"robots are stepped in C++, which is not possible here ({e}): change that, {otherwise}"
    if not _steps_alike(env):
        return (
            "a trial in C++ had other bits than Gymnasium's environment on this machine: use env.backend=sync"
        )
    return None


def _why_not_settings(kwargs: Mapping[str, Any]) -> str | None:
    """Return which keyword of the task has a value that C++ does not take, None if all are fine."""
    for name, value in kwargs.items():
        key = f"env.kwargs.{name}={value}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _NUMBERS and not (is_number and math.isfinite(value)):
            return f"{key} is no finite number: give one"
        if name == "reset_noise_scale" and value < 0:
            return f"{key} is negative: give a number of at least 0"
        if name in _FLAGS and not isinstance(value, bool):
            return f"{key} must be true or false for C++: give one of them"
        if name in _RANGES and not _is_range(value):
            return f"{key} must be a range of two numbers for C++, as [0.2, 1.0]: give one"
    return None


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(x, int | float) for x in value)
    )


@functools.cache
def _dots_are_fused() -> bool | None:
    """Return whether NumPy's dot product of short vectors fuses multiplications with additions; None if neither fits.

    BLAS decides it by the processor.
    """
    vectors = np.random.default_rng(0).standard_normal((1000, 3))
    norms = [np.linalg.norm(x[:n]) for x in vectors for n in (2, 3)]
    norm = _library().mujoco_norm
    for is_fused in (False, True):
        if norms == [norm(is_fused, x.ctypes.data, n) for x in vectors for n in (2, 3)]:
            return is_fused
    return None


_alike: dict[tuple[str, str], bool] = {}  # results of `_steps_alike`


def _steps_alike(env: EnvConfig) -> bool:
    """Return whether C++ has the bits of Gymnasium's environment in a trial: processors have other sums and sines.

    It is tried once for each id and kwargs.
    """
    key = (env.id, repr(env.kwargs))
    if key not in _alike:
        try:
            _alike[key] = _dots_are_fused() is not None and _step_alike(env)
        except (ConfigError, EnvError):  # a keyword or a file that the task does not take: the probe says so
            return True
    return _alike[key]


def _step_alike(env: EnvConfig) -> bool:
    from ddppo.envs.probing.probe import probe

    env = EnvConfig(id=env.id, kwargs=env.kwargs, max_episode_steps=_TRIAL_EPISODE)
    spec, names, rng = probe(env), EnvNames(range(1), None), np.random.default_rng(0)
    both = make_robots(env, spec, names, _TRIAL_EPISODE), make_sync(env, spec, names, 0.0)
    first, expected = (np.asarray(envs.reset([0])[0]) for envs in both)
    is_equal = np.array_equal(first, expected)
    for _ in range(_TRIAL_STEPS):
        actions = rng.uniform(-1.5, 1.5, (1, *spec.action.shape)).astype(np.float32)
        steps = [envs.step(actions) for envs in both]
        is_equal &= all(
            np.array_equal(getattr(steps[0], name), getattr(steps[1], name))
            for name in ("obs", "rewards", "terminated", "truncated", "ended", "final_obs")
        )
        if not is_equal:
            break
    for envs in both:
        envs.close()
    return is_equal


# -- Libraries.


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the compiled mujoco.cpp. Raises NotCompiled."""
    import mujoco

    source, include = _HERE / "mujoco.cpp", Path(mujoco.__file__).parent / "include"
    shared = _HERE.parents[1] / "native" / "src"
    headers = [shared / "tasks.hpp", *sorted((include / "mujoco").glob("*.h"))]
    flags = (*CPP_FLAGS, "-pthread", f"-I{include}", f"-I{shared}")
    library = Library("mujoco", [source], [source, *headers], flags, CXX, machine_flags=MACHINE_FLAGS).load()
    signatures: dict[str, tuple[list[Any], Any]] = {
        "mujoco_step": ([ctypes.c_void_p], ctypes.c_int64),
        "mujoco_reset": ([ctypes.c_void_p, ctypes.c_int64], None),
        "mujoco_set_threads": ([ctypes.c_void_p, ctypes.c_int64], None),
        "mujoco_norm": ([ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64], ctypes.c_double),
        "mujoco_save": ([ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p], ctypes.c_int64),
        "mujoco_restore": ([ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64], ctypes.c_bool),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


@functools.cache
def _functions() -> dict[str, int]:
    """Return the addresses of the functions of MuJoCo and NumPy that C++ calls, by name. Raises NotCompiled."""
    import mujoco

    # The very library that Python has loaded, so that both have the same callbacks and warnings; and NumPy's functions
    # of distributions, which it exports for ctypes and CFFI.
    path = next(Path(mujoco.__file__).parent.glob("libmujoco*"), None)
    if path is None:
        raise NotCompiled("this package mujoco has no library beside its Python, as the wheel has")
    simulator, generator = ctypes.CDLL(str(path)), ctypes.CDLL(np.random._generator.__file__)
    try:
        return {
            **{
                name: _address(getattr(simulator, name))
                for name in ("mj_step", "mj_rnePostConstraint", "mj_resetData", "mj_forward")
            },
            **{
                name: _address(getattr(generator, name))
                for name in ("random_uniform", "random_standard_normal")
            },
        }
    except AttributeError as e:
        raise NotCompiled(f"a function is not exported: {e}") from e


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, function
    return address
