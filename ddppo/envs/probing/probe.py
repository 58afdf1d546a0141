"""Learn a task's shapes before any process starts, and say plainly why it cannot be made."""

import dataclasses

import gymnasium as gym

from ddppo.config import EnvConfig
from ddppo.envs.atari.batch import atari_spec
from ddppo.envs.envpool import make_envpool_task
from ddppo.envs.guard import TRIED, guarding
from ddppo.envs.native import learn_native_spec, make_native_task
from ddppo.envs.probing.advice import check_wrappers
from ddppo.envs.probing.explaining import explained
from ddppo.envs.probing.finding import find_packages, find_task
from ddppo.envs.probing.shapes import Say, learn_spec, silent
from ddppo.envs.scalar.row_env import ArrayEnv, make_task
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError

_OF_TEXT = ("auto", "sync", "remote")


@guarding(TRIED)
def probe(env: EnvConfig, at: Say = silent, remark: Say = silent) -> EnvSpec:
    """Make the task once, read its shapes and close it. Raises ConfigError with the cause and the remedy.

    at: told what is done next, which a task may never do. remark: told what is odd and harmless, a sentence each.

    A task has masks if its Dict observations have the key action_mask, or its first infos have.
    With env.backend=native it is the batched implementation that is asked, for it may preprocess; with env.urls it is
    the servers.
    """
    if env.backend == "remote":
        find_packages(env)
        if env.urls:
            from ddppo.envs.remote.served import served_spec

            return served_spec(env)
    find_task(env)
    if env.is_ale:
        return explained(env, lambda: atari_spec(env))
    if env.backend == "native" or env.is_envpool:
        make = make_envpool_task if env.is_envpool else make_native_task
        envs: gym.vector.VectorEnv = explained(env, lambda: make(env, num_envs=2))
        try:
            explained(env, lambda: check_wrappers(envs))
            return explained(env, lambda: learn_native_spec(envs))
        finally:
            envs.close()
    at("when it was made")
    task = explained(env, lambda: make_task(env))
    try:
        spec = explained(env, lambda: learn_spec(task, at, remark))
    finally:
        task.close()
    if spec.is_text and env.backend not in _OF_TEXT:
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} observes and does text, which goes through no array: use env.backend="
            f"{' or '.join(_OF_TEXT)}"
        )
    if spec.is_text and spec.one_a_process and env.num_envs > 1:
        find_packages(env)
    return spec


def make_env(env: EnvConfig, render_mode: str | None = None) -> ArrayEnv:
    """Make one environment that speaks the model's language, e.g. to record video with render_mode=rgb_array.

    It encodes observations and decodes actions as the batches of sync and pool do. Raises as probe() does.
    """
    spec = probe(dataclasses.replace(env, backend="sync"))
    return ArrayEnv(explained(env, lambda: make_task(env, render_mode)), spec, "the environment")
