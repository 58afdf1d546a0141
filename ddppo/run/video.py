"""Recording an episode of a trained policy."""

import os
import tempfile
from pathlib import Path

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs import make_env
from ddppo.errors import ConfigError
from ddppo.files import stored
from ddppo.run.evaluation import Policy
from ddppo.seeding import derived_seed
from ddppo.spaces import each


def record_episode(policy: Policy, env_config: EnvConfig, seed: int, path: Path) -> float:
    """Play evaluation episode 0, write its frames to `path` (mp4 or gif) and return its return.

    Needs the extra video. Raises ConfigError where the task cannot draw itself, StorageError.
    """
    import imageio.v3 as imageio

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    env = make_env(env_config, render_mode="rgb_array")
    fps = float(env.metadata.get("render_fps") or 30)
    try:
        frames: list[np.ndarray] = []
        episode_return, ended = 0.0, False
        obs, info = env.reset(seed=derived_seed(seed, "eval", 0))
        while not ended:
            frames.append(_frame(env.render(), env_config.id))
            mask = info.get("action_mask")
            action = policy.act(each(lambda x: x[None], obs), None if mask is None else mask[None])[0]
            obs, reward, terminated, truncated, info = env.step(action)
            episode_return += float(reward)
            ended = terminated or truncated
        frames.append(_frame(env.render(), env_config.id))
    finally:
        env.close()
    temporary = path.with_name(f".{path.name}.tmp{path.suffix}")
    with stored(path):
        try:
            if path.suffix == ".gif":
                imageio.imwrite(temporary, frames, duration=1000 / fps, loop=0)
            else:
                imageio.imwrite(temporary, frames, fps=fps, codec="libx264", macro_block_size=2)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return episode_return


def _frame(picture: object, env_id: str) -> np.ndarray:
    if not isinstance(picture, np.ndarray):
        raise ConfigError(f"video=true: {env_id} draws no pictures (render_mode=rgb_array gave nothing)")
    return picture
