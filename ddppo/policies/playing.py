"""Episodes of a trained policy in its task by itself: in a window, or as pictures in a file."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import MASK
from ddppo.envs.encoding.step_values import PlainAnswers, as_number
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.make import make_eval_env
from ddppo.envs.probing.probe import make_env
from ddppo.errors import ConfigError, EnvError, TrainingError
from ddppo.package import install_command
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.pictures import Film, check_pictures
from ddppo.seeding import derived_seed
from ddppo.tracebacks import in_one_line

_COUNTS = "ddppo.counts"  # in infos of a Game: whether the step was a transition
_ZOOM = 4  # of what a policy sees of a game, 84 x 84
_FRAMES_A_SECOND = 60  # of a game


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """The episode of a number, as evaluation plays it: undiscounted return, and length in steps."""

    number: int
    episode_return: float
    length: int


class Game(gym.Env):
    """A game of ALE as evaluation steps it. Its picture is the last frame of what the policy sees, enlarged."""

    def __init__(self, env: EnvConfig) -> None:
        self._envs = make_eval_env(env, 1)
        spec = self._envs.spec
        assert not isinstance(spec.obs, dict), spec
        self.observation_space = Box(0, 255, spec.obs.shape, np.uint8)
        self.action_space = Discrete(spec.action.sizes[0])
        self._obs = np.zeros(spec.obs.shape, np.uint8)
        self.metadata = {"render_fps": _FRAMES_A_SECOND / env.kwargs.get("frameskip", 4)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self._obs = np.asarray(self._envs.reset([seed])[0])[0]
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play the action; in the info, whether it counts: where a life was lost, the game is begun anew instead."""
        step = self._envs.step(np.array([action]))
        self._obs = np.asarray(step.final_obs if len(step.ended) else step.obs)[0]
        info = {_COUNTS: bool(step.valid[0])}
        return self._obs, float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> np.ndarray:
        frame = self._obs[-1].repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
        return frame if frame.ndim == 3 else np.stack([frame] * 3, axis=-1)

    def close(self) -> None:
        self._envs.close()


def task_of(env: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """Make the task with its own spaces. Raises ConfigError where it cannot be made."""
    if env.is_ale:
        return Game(env)
    return PlainAnswers(make_env(env, render_mode).task)


def play(
    policy: LoadedPolicy, task: gym.Env, episodes: Sequence[int], seed: int, *, deterministic: bool = True,
    look: Callable[[], None] = lambda: None,
) -> Iterator[PlayedEpisode]:  # fmt: skip
    """Play the episodes of these numbers, one after another; `look` is called for every state. Raises TrainingError."""
    options = policy.trained.state.get("options")
    for number in episodes:
        with blamed_on(policy.trained.config.env.id):
            obs, info = task.reset(seed=derived_seed(seed, "eval", number), options=options)
            policy.reset()
            look()
            episode_return, length, ended = 0.0, 0, False
            while not ended:
                action = policy(obs, info.get(MASK), deterministic)
                obs, reward, terminated, truncated, info = task.step(action)
                look()
                if info.get(_COUNTS, True):
                    episode_return += as_number(reward)
                    length += 1
                else:
                    policy.reset()
                ended = terminated or truncated
        yield PlayedEpisode(number, episode_return, length)


@contextmanager
def blamed_on(env_id: str) -> Iterator[None]:
    """Turn what a task raises into a TrainingError in one line; packages that are not there, a ConfigError.

    What the block changes of this process is put back.
    """
    try:
        with guarded(env_id, STEPPED):
            yield
    except (ConfigError, TrainingError):
        raise
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
    """Play the episodes in a window, paced by the task. Raises ConfigError where it opens none, TrainingError."""
    env = policy.trained.config.env
    if env.is_ale:
        raise ConfigError(
            f"{env.id} is stepped by ale-py's batch, which opens no window: write a file, out=policy.gif"
        )
    task = task_of(env, render_mode="human")
    try:
        if fps is not None:  # which tasks read when they draw
            task.unwrapped.metadata = {**task.unwrapped.metadata, "render_fps": fps}
        yield from play(policy, task, episodes, seed, deterministic=deterministic)
    except EnvError as e:
        if not type(e.__cause__).__module__.startswith(("pygame", "glfw")):
            raise
        raise EnvError(f"{e}: where there is no screen write a file, out=policy.gif") from e
    finally:
        task.close()


def record(
    policy: LoadedPolicy, episodes: Sequence[int], seed: int, path: Path, *, asked: str, deterministic: bool = True,
    fps: float | None = None,
) -> Iterator[PlayedEpisode]:  # fmt: skip
    """Play the episodes, and behind the last write their pictures to `path`, a gif or mp4, as a whole.

    asked: the option that wants it, for messages. fps: pictures a second; the task's own if None. Needs the extra
    video. Raises ConfigError where the task draws none, TrainingError, StorageError.
    """
    check_pictures(path, asked)
    film = Film(policy.trained.config.env.id, asked)
    with _drawn(policy) as task:
        yield from play(
            policy, task, episodes, seed, deterministic=deterministic, look=lambda: film.add(task.render())
        )
        fps = fps or _fps(task)
    film.write(path, fps)


def check_draws(policy: LoadedPolicy, path: Path, asked: str) -> None:
    """Raise ConfigError where the policy's task draws no pictures, what it raises, and what an encoder refuses.

    Two states are drawn and written to a temporary file of the name of `path`, before an episode is played.
    """
    check_pictures(path, asked)
    film = Film(policy.trained.config.env.id, asked)
    with _drawn(policy) as task, blamed_on(policy.trained.config.env.id):
        obs, info = task.reset(seed=0, options=policy.trained.state.get("options"))
        film.add(task.render())
        policy.reset()
        task.step(policy(obs, info.get(MASK)))
        film.add(task.render())
        policy.reset()
        fps = _fps(task)
    with tempfile.TemporaryDirectory(prefix="ddppo-") as folder:
        film.write(Path(folder) / path.name, fps)


@contextmanager
def _drawn(policy: LoadedPolicy) -> Iterator[gym.Env]:
    """Make the policy's task, to be drawn as pictures."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    task = task_of(policy.trained.config.env, render_mode="rgb_array")
    try:
        yield task
    finally:
        task.close()


def _fps(task: gym.Env) -> float:
    """Return the pictures a second that the task names, 30 where it names none that can be."""
    try:
        fps = float(task.metadata["render_fps"])
    except (TypeError, KeyError, ValueError):
        return 30.0
    return fps if 0.1 <= fps <= 1000 else 30.0
