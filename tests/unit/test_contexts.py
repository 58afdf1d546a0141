"""A context is observed beside all else, is that of the reset's options, and stays until others are given."""

import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_eval_env, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.single import ContextEnv
from ddppo.errors import ConfigError, EnvError
from ddppo.spaces import ArraySpec

LENGTH = 3


class HearingEnv(gym.Env):
    """Rewards what the options of its last reset name, by 0 without any; observes the steps since."""

    action_space = Discrete(2)

    def __init__(self, *, is_dict=False, own_context=False):
        box = Box(-9, 9, (1,), np.float32)
        self.observation_space = Dict({"context" if own_context else "x": box}) if is_dict else box
        self._is_dict = is_dict

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._reward = 0, (options or {}).get("reward", 0.0)
        return self._obs(), {}

    def step(self, action):
        self._steps += 1
        return self._obs(), self._reward, False, self._steps == LENGTH, {}

    def _obs(self):
        obs = np.full(1, self._steps, np.float32)
        return {"x": obs} if self._is_dict else obs

    def state(self):
        return {"steps": self._steps, "reward": self._reward}

    def restore(self, state):
        self._steps, self._reward = state["steps"], state["reward"]
        return self._obs(), {}


gym.register("test/Hearing-v0", HearingEnv)
ID = f"{__name__}:test/Hearing-v0"
OPTIONS = [{"context": [float(i), float(-i)], "reward": float(i)} for i in (1, 2, 3)]


@pytest.fixture
def batch():
    """Make batches of 3 that are closed after the test."""
    made = []

    def make(*, max_restarts=0, **settings):
        env = EnvConfig(id=ID, **settings)
        made.append(make_vec_env(env, range(3), 0, 1, max_restarts=max_restarts))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def played(envs, num_steps):
    return [envs.step(np.zeros(3, np.int64)).rewards.tolist() for _ in range(num_steps)]


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_each_environment_hears_its_options_and_observes_its_context_in_every_episode_to_come(batch, backend):
    envs = batch(backend=backend, context=2)
    obs, _ = envs.reset([0, 1, 2])
    assert obs["context"].tolist() == [[0, 0]] * 3
    obs, _ = envs.reset([0, 1, 2], OPTIONS)
    assert obs["obs"].tolist() == [[0]] * 3
    assert obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    for _ in range(2 * LENGTH):  # over an end and the reset after it
        step = envs.step(np.zeros(3, np.int64))
        assert step.rewards.tolist() == [1, 2, 3]
        assert step.obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    assert step.final_obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    obs, _ = envs.reset([0, 1, 2])  # nobody says otherwise
    assert obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    obs, _ = envs.reset([0, 1, 2], OPTIONS[::-1])
    assert obs["context"].tolist() == [[3, -3], [2, -2], [1, -1]]
    assert played(envs, 1) == [[3, 2, 1]]


def test_options_go_to_a_task_without_a_context_too(batch):
    envs = batch(backend="sync")
    obs, _ = envs.reset([0, 1, 2], OPTIONS)
    assert obs.shape == (3, 1)
    assert played(envs, LENGTH + 1) == [[1, 2, 3]] * (LENGTH + 1)


def test_environments_whose_process_was_lost_begin_again_with_their_options(batch, monkeypatch):
    monkeypatch.setattr("ddppo.envs.backends.pool_memory.History.replay", lambda history, rows: None)
    envs = batch(backend="pool", context=2, num_workers=1, max_restarts=1)
    envs.reset([0, 1, 2], OPTIONS)
    os.kill(envs._stepper.workers[0].process.pid, signal.SIGKILL)
    step = envs.step(np.zeros(3, np.int64))
    assert not step.valid.any()
    assert step.obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    assert played(envs, 1) == [[1, 2, 3]]


def test_environments_whose_process_was_lost_come_to_where_they_were_with_their_options(batch):
    envs = batch(backend="pool", context=2, num_workers=1, max_restarts=1)
    envs.reset([0, 1, 2], OPTIONS)
    assert played(envs, LENGTH) == [[1, 2, 3]] * LENGTH
    os.kill(envs._stepper.workers[0].process.pid, signal.SIGKILL)
    step = envs.step(np.zeros(3, np.int64))
    assert step.valid.all()
    assert step.obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]


def test_what_a_task_hands_over_as_its_state_holds_the_options(batch):
    envs, other = batch(backend="sync"), batch(backend="sync")
    envs.reset([0, 1, 2], OPTIONS)
    envs.step(np.zeros(3, np.int64))
    other.reset([0, 1, 2])
    other.restore(envs.state())
    assert played(other, 2 * LENGTH) == [[1, 2, 3]] * 2 * LENGTH
    wrapped = batch(backend="sync", context=2)
    wrapped.reset([0, 1, 2], OPTIONS)
    wrapped.step(np.zeros(3, np.int64))
    again = batch(backend="sync", context=2)
    again.reset([0, 1, 2])
    obs, _ = again.restore(wrapped.state())
    assert obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    assert played(again, 2 * LENGTH) == [[1, 2, 3]] * 2 * LENGTH


def test_a_dict_of_observations_has_one_key_more():
    task = gym.make(ID, is_dict=True)
    spec = probe(EnvConfig(id=ID, kwargs={"is_dict": True}, context=5))
    assert spec.obs == {"context": ArraySpec((5,)), "x": ArraySpec((1,))}
    assert set(ContextEnv(task, 5).reset(seed=0)[0]) == {"x", "context"}


def test_a_context_that_cannot_be_is_refused(batch):
    with pytest.raises(
        ConfigError, match=r"env\.context=2: the task observes a context of its own: leave it out"
    ):
        probe(EnvConfig(id=ID, kwargs={"is_dict": True, "own_context": True}, context=2))
    envs = batch(backend="sync", context=2)
    for wrong in ([1, 2, 3], "ab", [1.0, np.inf], None, [[1, 2]]):
        with pytest.raises(
            EnvError, match=r"environment 0 of rank 0 raised ValueError .* it must be 2 numbers"
        ):
            envs.reset([0, 1, 2], [{"context": wrong}] * 3)


@pytest.mark.parametrize("backend", ["batched", "gym_vector"])
def test_who_cannot_hand_options_over_says_so(backend):
    envs = make_vec_env(EnvConfig(id="CartPole-v1", backend=backend), range(2), 0, 1)
    envs.reset([0, 1], None)
    with pytest.raises(EnvError, match=r"takes no options at a reset: use env\.backend=sync or pool"):
        envs.reset([0, 1], [{}, {}])
    envs.close()


def test_evaluation_hands_options_over_too():
    envs = make_eval_env(EnvConfig(id=ID, context=2), 3)
    obs, _ = envs.reset([0, 1, 2], OPTIONS)
    assert obs["context"].tolist() == [[1, -1], [2, -2], [3, -3]]
    envs.close()


def test_a_batch_at_once_is_refused_with_a_context():
    with pytest.raises(ConfigError, match=r"with env\.context=2 every environment is wrapped separately"):
        probe(EnvConfig(id="CartPole-v1", backend="batched", context=2))
