"""Play episodes of a trained policy in a single environment: in a window, or recorded as a gif or mp4.

`play` is the loop of an episode. `show` plays in a window, `record` into a file; `check_draws` tries out beforehand
that the task can be drawn. Episodes have the same seeds as in an evaluation (loop/evaluation.py), so that episode 3
here is episode 3 there.
"""

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from ddppo.config.settings import EnvConfig, eval_env
from ddppo.envs.encoding.gym_spaces import MASK
from ddppo.envs.encoding.step_values import PlainAnswers, as_number
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.make import make_eval_env
from ddppo.envs.probing.probe import make_env
from ddppo.errors import ConfigError, EnvError, TrainingError, in_one_line
from ddppo.loop.evaluation import evaluator_of
from ddppo.package import install_command
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.loading import spaces_on_device
from ddppo.policies.pictures import PAGE, check_pictures, film_for
from ddppo.seeding import derived_seed
from ddppo.spaces import each

_COUNTS = "ddppo.counts"  # key in the infos of a Game: whether the step was a transition
_ZOOM = 4  # enlargement of a game's observation, 84 x 84 pixels
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")  # variables that name one
_GAME_FPS = 60  # frames per second of an Atari game


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """One finished episode."""

    number: int  # its number in an evaluation with the same seed
    episode_return: float  # undiscounted
    length: int  # steps


class Game(gym.Env):
    """An Atari game, stepped as in an evaluation. render() returns the observation's last frame, enlarged."""

    def __init__(self, env: EnvConfig) -> None:
        self._envs = make_eval_env(env, 1)
        spec = self._envs.spec
        assert not isinstance(spec.obs, dict), spec
        self.observation_space = Box(0, 255, spec.obs.shape, np.uint8)
        self.action_space = Discrete(spec.action.sizes[0])
        self._obs = np.zeros(spec.obs.shape, np.uint8)
        self.metadata = {"render_fps": _GAME_FPS / env.kwargs.get("frameskip", 4)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self._obs = np.asarray(self._envs.reset([seed])[0])[0]
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game. After the loss of a life the batch resets instead of stepping, and the info says so."""
        # The batch resets at the end of an episode: the last observation is in final_obs.
        step = self._envs.step(np.array([action]))
        self._obs = np.asarray(step.final_obs if len(step.ended) else step.obs)[0]
        info = {_COUNTS: bool(step.valid[0])}
        return self._obs, float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> np.ndarray:
        # The newest of the stacked frames.
        frame = self._obs[-1].repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
        return frame if frame.ndim == 3 else np.stack([frame] * 3, axis=-1)

    def close(self) -> None:
        self._envs.close()


class OnDevice(gym.Env):
    """One environment that lives on a device, here on the CPU. It draws no pictures."""

    def __init__(self, env: EnvConfig, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ConfigError(
                f"env.id={env.id} lives on a device (env.backend=device) and draws no pictures: use ddppo.evaluate, or "
                "the simulator's own viewer"
            )
        self._envs = make_eval_env(env, 1)
        self.observation_space, self.action_space = spaces_on_device(self._envs.spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        return each(lambda x: x[0], self._envs.reset([seed])[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self._envs.step(np.asarray(action)[None])
        obs = each(lambda x: x[0], step.final_obs if len(step.ended) else step.obs)
        return obs, float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), {}

    def close(self) -> None:
        self._envs.close()


def task_of(env: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """Make the task with its own spaces. Raises ConfigError if it cannot be made."""
    if env.is_ale:
        return Game(env)
    if env.backend == "device":
        return OnDevice(env, render_mode)
    return PlainAnswers(make_env(env, render_mode).task)


def play(
    policy: LoadedPolicy, task: gym.Env, episodes: Sequence[int], seed: int, *, deterministic: bool = True,
    look: Callable[[], None] = lambda: None,
) -> Iterator[PlayedEpisode]:  # fmt: skip
    """Play the episodes with these numbers in turn; `look` is called in every state. Raises TrainingError."""
    options, deterministic = _how(policy, deterministic=deterministic)
    for number in episodes:
        with blamed_on(policy.trained.config.env.id):
            obs, info = task.reset(seed=derived_seed(seed, "eval", number), options=options)
            policy.reset()
            look()
            episode_return, length, ended = 0.0, 0, False
            while not ended:
                # Act, step, count.
                action = policy(obs, info.get(MASK), deterministic)
                obs, reward, terminated, truncated, info = task.step(action)
                look()
                if info.get(_COUNTS, True):
                    episode_return += as_number(reward)
                    length += 1
                else:
                    policy.reset()  # the game was reset after the loss of a life
                ended = terminated or truncated
        yield PlayedEpisode(number, episode_return, length)


def _how(policy: LoadedPolicy, *, deterministic: bool) -> tuple[dict[str, Any] | None, bool]:
    """Return the reset options of episodes, and whether to take the likeliest actions, as an evaluation does."""
    # A task sampler may have left reset options for evaluation in the checkpoint.
    asked = policy.trained.state.get("options")
    return evaluator_of(policy.trained.spec).how(asked, deterministic=deterministic)


@contextmanager
def blamed_on(env_id: str) -> Iterator[None]:
    """Turn an exception of the task into a TrainingError of one line, or a missing package into a ConfigError.

    Changes that the task makes to this process (signals, random state) are undone.
    """
    try:
        with guarded(env_id, STEPPED):
            yield
    except (ConfigError, TrainingError):
        raise
    # The remedy is an install command.
    except gym.error.DependencyNotInstalled as e:
        raise ConfigError(
            f"{env_id} draws with packages that are not installed: {install_command('video')}"
        ) from e
    except (Exception, SystemExit) as e:  # a task may raise anything
        raise EnvError(f"{env_id} failed: {in_one_line(e)}") from e


def show(
    policy: LoadedPolicy,
    episodes: Sequence[int],
    seed: int,
    *,
    deterministic: bool = True,
    fps: float | None = None,
) -> Iterator[PlayedEpisode]:
    """Play the episodes in a window, at the task's own pace. Raises ConfigError if it has no window; TrainingError."""
    env = eval_env(policy.trained.config)
    if env.is_ale:
        raise ConfigError(
            f"{env.id} is stepped by ale-py's batch, which opens no window: write a file, out=policy.gif"
        )
    # Gymnasium draws into a window by itself in this mode.
    task = task_of(env, render_mode="human")
    try:
        if fps is not None:  # tasks read it when they draw
            task.unwrapped.metadata = {**task.unwrapped.metadata, "render_fps": fps}
        yield from play(policy, task, episodes, seed, deterministic=deterministic)
    except EnvError as e:
        # A fault of the window system, rather than of the task: suggest a file.
        if not type(e.__cause__).__module__.startswith(("pygame", "glfw")):
            raise
        raise EnvError(f"{e}: without a screen write a file, out=policy.gif") from e
    finally:
        task.close()


def is_without_display() -> bool:
    """Return whether no window can open here: on Linux neither an X server, nor Wayland, nor a video driver."""
    return sys.platform == "linux" and not any(map(os.environ.get, _DISPLAYS))


def film_instead_of_window(policy: LoadedPolicy) -> Path | None:
    """Return a new file name in the current folder if the task would open a window, and there is no display."""
    env = policy.trained.config.env
    if not is_without_display() or (env.backend == "device" and not env.is_ale):
        return None
    if not env.is_ale:
        task = task_of(env)
        try:
            modes, module = task.metadata.get("render_modes", []), type(task.unwrapped).__module__
        finally:
            task.close()
        # Tasks with render_mode=ansi print themselves as text in mode human too; only Gymnasium's open a window.
        if "rgb_array" not in modes or ("ansi" in modes and not module.startswith("gymnasium.")):
            return None
    stem = re.split(r"[/:]", env.id)[-1]  # MyEnv-v0 of my_pkg.envs:mine/MyEnv-v0
    numbered = (Path(f"{stem}{'' if number == 1 else f'_{number}'}.mp4") for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def record(
    policy: LoadedPolicy, episodes: Sequence[int], seed: int, path: Path, *, asked: str, deterministic: bool = True,
    fps: float | None = None,
) -> Iterator[PlayedEpisode]:  # fmt: skip
    """Play the episodes, and after the last one write their pictures to `path`, a gif or mp4.

    Args:
        asked: the option that asks for the file, for messages.
        fps: pictures per second; None for the task's own.

    Needs the extra `video`. Raises ConfigError if the task draws no pictures, TrainingError, StorageError.
    """
    check_pictures(path, asked)
    film = film_for(path, policy.trained.config.env.id, asked)
    with _drawn(policy, path) as task:
        yield from play(
            policy, task, episodes, seed, deterministic=deterministic, look=lambda: film.add(task.render())
        )
        fps = fps or _fps(task)
    film.write(path, fps)


def check_draws(policy: LoadedPolicy, path: Path, asked: str) -> None:
    """Draw two states and write them to a temporary file, so that a fault appears before hours of episodes.

    Raises ConfigError if the task draws no pictures, the task's own error, and the encoder's.
    """
    check_pictures(path, asked)
    film = film_for(path, policy.trained.config.env.id, asked)
    with _drawn(policy, path) as task, blamed_on(policy.trained.config.env.id):
        # Two states, because some tasks draw only after a step.
        options, deterministic = _how(policy, deterministic=True)
        obs, info = task.reset(seed=0, options=options)
        film.add(task.render())
        policy.reset()
        task.step(policy(obs, info.get(MASK), deterministic))
        film.add(task.render())
        policy.reset()
        fps = _fps(task)
    with tempfile.TemporaryDirectory(prefix="ddppo-") as folder:
        film.write(Path(folder) / path.name, fps)


@contextmanager
def _drawn(policy: LoadedPolicy, path: Path) -> Iterator[gym.Env]:
    """Make the policy's task for render_mode=rgb_array, or html for a page, and close it at the end."""
    # SDL: lets pygame draw without a screen. MuJoCo draws by OpenGL, which asks for a display otherwise.
    variables = {"SDL_VIDEODRIVER": "dummy", "XDG_RUNTIME_DIR": tempfile.gettempdir()}
    variables |= {"MUJOCO_GL": "egl"} if is_without_display() else {}
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield from _made(policy, path)
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _made(policy: LoadedPolicy, path: Path) -> Iterator[gym.Env]:
    mode = "html" if path.suffix == PAGE else "rgb_array"
    env = eval_env(policy.trained.config)
    try:
        task = task_of(env, render_mode=mode)
    except ConfigError as e:
        raise ConfigError(f"{e}{_how_to_draw(e)}") from e
    try:
        if mode == "html" and mode not in task.metadata.get("render_modes", []):
            raise ConfigError(f"out={path}: {env.id} draws no page: use a file that ends in .gif or .mp4")
        yield task
    except EnvError as e:
        if not (remedy := _how_to_draw(e)):
            raise
        raise EnvError(f"{e}{remedy}") from e
    finally:
        task.close()


def _how_to_draw(error: Exception) -> str:
    """Return what to do if OpenGL, by which MuJoCo draws, is missing; "" for any other error."""
    if not re.search(r"OpenGL|mujoco_rendering|mujoco/(egl|osmesa|glfw)", str(error)):
        return ""
    return (
        f"; MuJoCo draws by OpenGL, here with MUJOCO_GL={os.environ.get('MUJOCO_GL', 'glfw')}: without a display set "
        "MUJOCO_GL=egl, which needs libEGL of the GPU's driver or of Mesa (apt install libegl1 libgl1-mesa-dri), or "
        "MUJOCO_GL=osmesa (apt install libosmesa6)"
    )


def _fps(task: gym.Env) -> float:
    """Return the task's pictures per second; 30 if it names none, or an impossible number."""
    try:
        fps = float(task.metadata["render_fps"])
    except (TypeError, KeyError, ValueError):
        return 30.0
    return fps if 0.1 <= fps <= 1000 else 30.0
