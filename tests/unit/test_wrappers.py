"""env.wrappers: around every environment of sync and pool, the first one innermost."""

import re

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config import rules
from ddppo.config.settings import Config
from ddppo.envs.make import make_eval_env, make_vec_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.errors import ConfigError

HERE = "tests.unit.test_wrappers"
STACK = {"path": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}


class Scaled(gym.ObservationWrapper):
    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by

    def observation(self, obs):
        return (obs * self.by).astype(np.float32)


class Plus(Scaled):
    def observation(self, obs):
        return (obs + self.by).astype(np.float32)


def no_env(env):
    return 3


def wrapped(*wrappers, **env):
    config = Config()
    config.env.id, config.env.wrappers = "CartPole-v1", list(wrappers)
    for name, value in env.items():
        setattr(config.env, name, value)
    return config


def first_obs(*wrappers, backend="sync"):
    env = make_vec_env(wrapped(*wrappers, backend=backend).env, range(2), rank=0, cores=1)
    try:
        obs, _ = env.reset([1, 2])
        return np.array(obs)
    finally:
        env.close()


def test_the_first_wrapper_is_innermost_by_every_backend_that_wraps():
    plain = first_obs()
    both = first_obs({"path": f"{HERE}:Plus", "by": 1.0}, f"{HERE}:Scaled")
    np.testing.assert_allclose(both, (plain + 1.0) * 2.0, rtol=1e-6)
    pool = first_obs({"path": f"{HERE}:Plus", "by": 1.0}, f"{HERE}:Scaled", backend="pool")
    np.testing.assert_array_equal(pool, both)


def test_evaluations_and_single_environments_are_wrapped_and_the_model_sees_the_shape():
    config = wrapped(STACK)
    assert probe(config.env).obs.shape == (3, 4)
    for env in (make_eval_env(config.env, 2), make_env(config.env)):
        obs, _ = env.reset([1, 2]) if hasattr(env, "names") else env.reset(seed=1)
        assert obs.shape[-2:] == (3, 4)
        env.close()


def test_a_wrapped_environment_goes_on_from_its_state():
    env = make_vec_env(wrapped(STACK, backend="sync").env, range(2), rank=0, cores=1)
    env.reset([1, 2])
    env.step(np.array([0, 1]))
    state = env.state()
    then = env.step(np.array([1, 1])).obs.copy()
    env.restore(state)
    np.testing.assert_array_equal(env.step(np.array([1, 1])).obs, then)
    env.close()


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        (f"{HERE}:nowhere", "env.wrappers=[tests.unit.test_wrappers:nowhere]: AttributeError"),
        ({"path": f"{HERE}:Scaled", "with": 3}, "unexpected keyword argument 'with'"),
        (f"{HERE}:no_env", "made int, no gymnasium.Env"),
    ],
)
def test_what_is_no_wrapper_is_named(wrapper, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        probe(wrapped(wrapper).env)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (wrapped("Noisy"), "env.wrappers=[Noisy]: must be an import path"),
        (wrapped(f"{HERE}:Scaled", backend="batched"), "env.wrappers with env.backend=batched"),
        (wrapped(f"{HERE}:Scaled", id="ALE/Pong-v5"), "env.wrappers with env.id=ALE/Pong-v5"),
    ],
)
def test_wrappers_that_no_environment_could_get_are_a_mistake(config, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        rules.validate(config)
