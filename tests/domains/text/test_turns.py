"""Environments that are stepped each at its own pace: who is told what, and what comes of failures."""

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.text.turns import LocalTurns, make_turns
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.single import scalars
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

TEXT = EnvSpec(ArraySpec((20,), "text"), ActionSpec("text", (20,)))


class Echo(gym.Env):
    """Says what it is told and how often it was told something; ends at "end", raises at "raise"."""

    observation_space = action_space = gym.spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_told = 0
        return f"{seed} {(options or {}).get('task')}", {"is_success": np.bool_(False), "array": np.zeros(3)}

    def step(self, action):
        self.num_told += 1
        if action == "raise":
            raise RuntimeError("the cloud is down")
        return f"{action} {self.num_told}", 0.5, action == "end", False, {"is_success": action == "end"}


gym.register("Echo-v0", Echo)


def echoes(num_envs=3, max_restarts=0):
    return LocalTurns(EnvConfig(id="Echo-v0"), TEXT, EnvNames(range(num_envs), 0), max_restarts)


def test_only_who_was_told_something_answers_and_each_at_its_own_pace():
    turns = echoes()
    assert turns.ready(None) == []
    turns.begin(2, 7, {"task": "a"})
    turns.begin(0, 8, {})
    assert [(turn.env, turn.obs) for turn in turns.ready(None)] == [(2, "7 a"), (0, "8 None")]
    for _ in range(2):
        turns.act(2, "x")
        (turn,) = turns.ready(0.0)
    turns.act(0, "end")
    (other,) = turns.ready(0.0)
    assert (turn.obs, turn.reward, turn.is_over) == ("x 2", 0.5, False)
    assert (other.obs, other.terminated, other.is_over, other.info) == (
        "end 1",
        True,
        True,
        {"is_success": True},
    )
    assert turns.ready(None) == []


def test_nobody_is_told_twice_before_the_answer():
    turns = echoes()
    turns.begin(0, 1, {})
    with pytest.raises(AssertionError, match="has not answered"):
        turns.act(0, "x")


def test_an_episode_whose_environment_raises_is_lost_and_the_next_one_is_not(capsys):
    turns = echoes(max_restarts=1)
    for i in range(2):
        turns.begin(i, 1, {})
    turns.ready(None)
    turns.act(0, "raise")
    turns.act(1, "x")
    failed, other = turns.ready(None)
    assert (failed.env, failed.failed, failed.is_over, failed.obs) == (0, True, True, None)
    assert other.obs == "x 1"
    assert turns.num_lost_episodes == 1
    assert "environment 0 of rank 0 raised RuntimeError" in capsys.readouterr().err
    turns.begin(0, 2, {})
    assert turns.ready(None)[0].obs == "2 None"


def test_more_losses_than_are_allowed_are_an_error_that_names_the_environment():
    turns = echoes()
    turns.begin(1, 1, {})
    turns.ready(None)
    turns.act(1, "raise")
    with pytest.raises(
        EnvError, match="environment 1 of rank 0 raised RuntimeError in step 1: the cloud is down"
    ):
        turns.ready(None)


def test_an_observation_that_is_longer_than_its_space_says_is_an_error():
    turns = echoes()
    turns.begin(0, 1, {})
    turns.ready(None)
    turns.act(0, "x" * 30)
    with pytest.raises(EnvError, match="of 32 characters"):
        turns.ready(None)


def test_arrays_are_those_of_a_batch():
    env = EnvConfig(id="CartPole-v1", backend="sync")
    turns, batch = make_turns(env, range(4, 6), 1, 60.0, 0), make_vec_env(env, range(4, 6), 1, 1)
    obs, _ = batch.reset([3, 4])
    for i, seed in enumerate((3, 4)):
        turns.begin(i, seed, {})
    assert np.array_equal([turn.obs for turn in turns.ready(None)], obs)
    for _ in range(8):
        step = batch.step(np.array([0, 1]))
        turns.act(0, 0)
        turns.act(1, 1)
        answers = turns.ready(None)
        assert np.array_equal([turn.obs for turn in answers], step.obs)
        assert [turn.reward for turn in answers] == step.rewards.tolist()
    assert probe(env) == turns.spec
    batch.close()
    turns.close()


def test_of_infos_scalars_alone_are_told():
    info = {"a": np.float32(0.5), "b": np.zeros(2), "c": "x", 4: 1, "d": True, "e": None, "f": [1]}
    assert scalars(info) == {"a": 0.5, "c": "x", "d": True, "e": None}
