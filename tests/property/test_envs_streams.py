from itertools import pairwise

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import decode_actions
from ddppo.envs.make import make_vec_env
from ddppo.seeding import derived_seed

NUM_ENVS, NUM_STEPS = 6, 60


def play(env, env_indices, actions):
    """Return every array of every step, for the environments `env_indices` of a run with seed 7."""
    envs = make_vec_env(env, env_indices, rank=0, cores=1)
    obs, _ = envs.reset([derived_seed(7, "env", i) for i in env_indices])
    columns = [obs.copy()]
    for row in actions[:, env_indices.start : env_indices.stop]:
        step = envs.step(row)
        final = np.zeros_like(step.obs)
        final[step.ended] = step.final_obs
        columns += [step.obs.copy(), final, step.rewards, step.terminated, step.truncated]
    envs.close()
    return columns


@settings(max_examples=15)
@given(
    cuts=st.sets(st.integers(1, NUM_ENVS - 1)), name=st.sampled_from(["CartPole-v1", "ddppo/Synthetic-v0"])
)
def test_an_environments_stream_does_not_depend_on_how_indices_are_split_among_ranks(cuts, name):
    env = EnvConfig(id=name, backend="sync", max_episode_steps=11)
    actions = np.random.default_rng(0).integers(0, 2, (NUM_STEPS, NUM_ENVS))
    bounds = [0, *sorted(cuts), NUM_ENVS]
    parts = [play(env, range(low, high), actions) for low, high in pairwise(bounds)]
    for whole, *split in zip(play(env, range(NUM_ENVS), actions), *parts, strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(split))


def test_sync_and_pool_are_interchangeable_to_the_bit():
    actions = np.random.default_rng(0).uniform(-4, 4, (NUM_STEPS, 2, 1)).astype(np.float32)
    runs = [
        play(EnvConfig(id="Pendulum-v1", backend=backend, max_episode_steps=11), range(2), actions)
        for backend in ("sync", "pool")
    ]
    for sync, pool in zip(*runs, strict=True):
        np.testing.assert_array_equal(sync, pool)


finite = st.floats(-1e6, 1e6, width=32)


@given(
    raw=st.lists(st.tuples(finite, finite), min_size=1, max_size=4),
    bounds=st.tuples(st.tuples(finite, finite), st.tuples(finite, finite)),
)
def test_decoded_box_actions_lie_in_the_box_and_inside_it_are_unchanged(raw, bounds):
    pairs = np.sort(np.array(bounds, np.float32), axis=1)
    space = Box(pairs[:, 0], pairs[:, 1], dtype=np.float32)
    actions = np.array(raw, np.float32)
    decoded = decode_actions(space, actions)
    assert all(space.contains(action) for action in decoded)
    inside = (actions >= space.low) & (actions <= space.high)
    np.testing.assert_array_equal(decoded[inside], actions[inside])
    assert not np.shares_memory(decoded, actions)


@given(raw=st.integers(0, 4), start=st.integers(-5, 5))
def test_discrete_choices_are_counted_from_the_start_of_their_space(raw, start):
    assert decode_actions(gym.spaces.Discrete(5, start=start), np.int64(raw)) == raw + start
