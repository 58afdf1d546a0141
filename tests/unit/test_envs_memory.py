"""Tasks of memory: a T-maze, and CartPole without its speeds."""

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.tasks.memory_tasks import EAST, NORTH, SOUTH, WEST
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

CUES = {(0, 1, 1): NORTH, (1, 1, 0): SOUTH}


def walked(env, actions):
    """Return what a T-maze answers to actions: observations, rewards, and how the last step ended."""
    obs, rewards, ended = [], [], (False, False)
    for action in actions:
        seen, reward, *ended, _ = env.step(action)
        obs.append(tuple(seen.astype(int)))
        rewards.append(reward)
    return obs, rewards, tuple(ended)


def test_a_t_maze_pays_who_turns_as_the_cue_said():
    env = gym.make("ddppo/TMaze-v0", length=3)
    seen = []
    for k in range(40):
        cue, _ = env.reset(seed=0 if k == 0 else None)
        arm = CUES[tuple(cue.astype(int))]
        turn = [arm, NORTH + SOUTH - arm][k % 2]
        obs, rewards, ended = walked(env, [EAST, EAST, EAST, turn])
        assert obs == [(1, 0, 1), (1, 0, 1), (0, 1, 0), (0, 1, 0)]
        assert rewards == [0, 0, 0, -1 if k % 2 else 1]
        assert ended == (True, False)
        seen.append(arm)
    assert 10 < seen.count(NORTH) < 30


def test_a_t_maze_charges_for_walls_shows_its_cue_again_at_the_start_and_ends():
    env = gym.make("ddppo/TMaze-v0", length=1)
    cue = tuple(env.reset(seed=1)[0].astype(int))
    obs, rewards, ended = walked(env, [WEST, NORTH, SOUTH, EAST, EAST, WEST, EAST])
    assert obs == [cue, cue, cue, (0, 1, 0), (0, 1, 0), cue, (0, 1, 0)]
    assert rewards == [-0.1, -0.1, -0.1, 0, -0.1, 0, 0]
    assert ended == (False, False)
    assert walked(env, [EAST] * 13)[2] == (False, True)  # 20 steps in all


@pytest.mark.parametrize("length", [0, 2.5, True])
def test_a_t_maze_has_a_corridor(length):
    with pytest.raises(
        ConfigError, match=rf"ddppo/TMaze-v0.*length={length} must be a whole number of at least 1"
    ):
        probe(EnvConfig(id="ddppo/TMaze-v0", kwargs={"length": length}))


@pytest.mark.parametrize("backend", ["sync", "batched", "pool"])
def test_masked_cartpole_is_cartpole_without_its_speeds(backend):
    masked = EnvConfig(
        id="ddppo/MaskedCartPole-v0", backend=backend, num_workers=2 if backend == "pool" else None
    )
    assert probe(masked) == EnvSpec(ArraySpec((2,)), ActionSpec("discrete", (2,)))
    batches = [make_vec_env(env, range(3), 0, 2) for env in (masked, EnvConfig(id="CartPole-v1"))]
    try:
        found, whole = (envs.reset([5, 6, 7])[0] for envs in batches)
        np.testing.assert_array_equal(found, whole[:, ::2])
        num_ended = 0
        for action in np.random.default_rng(0).integers(0, 2, (200, 3)):
            step, of_whole = (envs.step(action) for envs in batches)
            np.testing.assert_array_equal(step.obs, of_whole.obs[:, ::2])
            np.testing.assert_array_equal(step.final_obs, of_whole.final_obs[:, ::2])
            np.testing.assert_array_equal(step.rewards, of_whole.rewards)
            num_ended += len(step.ended)
        assert num_ended > 10
    finally:
        for envs in batches:
            envs.close()
