"""EnvPool's tasks: the transitions of pools of one whoever steps them, ends told apart, no seed shared, none saved."""

import importlib.util

import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.envpool import EnvPoolEnvs
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.dry_run import dry_run
from ddppo.envs.probing.probe import make_env, probe
from ddppo.errors import ConfigError, EnvStateError
from ddppo.spaces import ActionSpec, ArraySpec

if importlib.util.find_spec("envpool") is None:
    pytest.skip("needs the extra envpool", allow_module_level=True)

CARTPOLE, PONG, CHEETAH = (f"envpool/{name}" for name in ("CartPole-v1", "Pong-v5", "HalfCheetah-v5"))
SEEDS = (11, 2**31 - 2, 0, 5)


def action(space, seed, num_steps):
    draw = np.random.default_rng([seed, num_steps])
    return draw.integers(space.sizes[0]) if space.kind == "discrete" else draw.uniform(-1, 1, space.shape)


def transitions(env, indices, cores=1, num_steps=150):
    """Return the transitions of every environment: reward, terminated, truncated and what was observed after it.

    The k-th action of an environment, pseudo-steps left out, follows from its seed alone.
    """
    envs = make_vec_env(env, indices, rank=0, cores=cores)
    seeds = [SEEDS[i] for i in indices]
    obs, _ = envs.reset(seeds)
    found = [[(0.0, False, False, obs[k].copy())] for k in range(len(seeds))]
    for _ in range(num_steps):
        step = envs.step(
            np.array([action(envs.spec.action, s, len(f)) for s, f in zip(seeds, found, strict=True)])
        )
        for k, seen in enumerate(found):
            if not step.valid[k]:
                assert (step.rewards[k], step.terminated[k], step.truncated[k]) == (0, False, False)
                continue
            after = step.final_obs[list(step.ended).index(k)] if k in step.ended else step.obs[k]
            seen.append((step.rewards[k], step.terminated[k], step.truncated[k], after.copy()))
    envs.close()
    return found


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=False):  # as far as both went
            assert a[:3] == b[:3]
            np.testing.assert_array_equal(a[3], b[3])


@pytest.mark.parametrize(("env_id", "limit"), [(CARTPOLE, 12), (PONG, 40), (CHEETAH, 40)])
def test_environments_are_the_same_however_they_are_dealt_over_ranks_and_threads(env_id, limit):
    env = EnvConfig(id=env_id, num_envs=4, max_episode_steps=limit)
    one = transitions(env, range(4), cores=2)
    assert_same([*transitions(env, range(2)), *transitions(env, range(2, 4), cores=2)], one)
    assert not np.array_equal(one[0][0][3], one[1][0][3]) or env_id == PONG  # no-ops alone may look alike
    assert sum(truncated for _, _, truncated, _ in one[0]) >= 2


@pytest.mark.parametrize("env_id", [CARTPOLE, CHEETAH])
def test_pools_of_one_take_the_same_transitions_from_reset_to_end(env_id):
    batch = EnvConfig(id=env_id, num_envs=2, max_episode_steps=30)
    one = EnvConfig(id=env_id, num_envs=2, max_episode_steps=30, backend="sync")
    assert_same(transitions(one, range(2)), transitions(batch, range(2)))


def test_a_fall_is_terminated_and_a_limit_truncated():
    fallen = transitions(EnvConfig(id=CARTPOLE, num_envs=1), range(1))[0]
    assert any(terminated for _, terminated, _, _ in fallen)
    assert not any(truncated for _, _, truncated, _ in fallen)
    limited = transitions(EnvConfig(id=CARTPOLE, num_envs=1, max_episode_steps=5), range(1))[0]
    assert [k for k, (_, _, truncated, _) in enumerate(limited) if truncated][:3] == [5, 10, 15]
    assert not any(terminated for _, terminated, _, _ in limited)


def test_what_is_observed_after_an_end_is_the_last_of_its_episode_and_then_the_first_of_the_next():
    envs = make_vec_env(EnvConfig(id=CARTPOLE, num_envs=2, max_episode_steps=3), range(2), rank=0, cores=1)
    assert isinstance(envs, EnvPoolEnvs)
    envs.reset(SEEDS[:2])
    pushed = np.zeros(2, np.int64)
    steps = [envs.step(pushed) for _ in range(4)]
    np.testing.assert_array_equal(steps[2].final_obs, steps[2].obs)
    assert (steps[2].ended == [0, 1]).all()
    assert [step.valid.all() for step in steps] == [True, True, True, False]
    assert np.abs(steps[3].obs).max() <= 0.05  # where episodes begin
    envs.close()


def test_a_reset_by_the_same_seeds_begins_the_same_episodes():
    envs = make_vec_env(EnvConfig(id=CHEETAH, num_envs=2), range(2), rank=0, cores=1)
    first, other, again = (envs.reset(seeds)[0] for seeds in ([1, 2], [3, 4], [1, 2]))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    envs.close()


def test_shapes_are_those_that_models_take():
    assert (probe(EnvConfig(id=PONG)).obs, probe(EnvConfig(id=PONG)).action) == (
        ArraySpec((4, 84, 84), "uint8"),
        ActionSpec("discrete", (6,)),
    )
    assert probe(EnvConfig(id=CHEETAH)).action.kind == "box"
    env = make_env(EnvConfig(id=PONG))
    assert env.reset(seed=1)[0].shape == (4, 84, 84)
    env.close()


def test_nothing_is_saved_and_that_is_said():
    env = EnvConfig(id=CARTPOLE, num_envs=2)
    assert (
        dry_run(env).why_inexact == "envpool/CartPole-v1 is stepped by EnvPool, which cannot save its state"
    )
    envs = make_vec_env(env, range(2), rank=0, cores=1)
    with pytest.raises(EnvStateError, match="environment 0 of rank 0"):
        envs.state()
    envs.close()


@pytest.mark.parametrize("backend", ["auto", "sync"])
@pytest.mark.parametrize(
    ("env_id", "kwargs", "said"),
    [
        ("envpool/Pang-v5", {}, "Gymnasium knows no task envpool/Pang"),
        (
            PONG,
            {"reward_clip": True},
            "env.kwargs.reward_clip is no setting of the task: set ppo.reward_clip",
        ),
        (PONG, {"stak_num": 2}, "EnvPool's Pong-v5 has no such keyword .did you mean stack_num"),
    ],
)
def test_what_cannot_be_is_a_sentence(env_id, kwargs, said, backend):
    with pytest.raises(ConfigError, match=said):
        probe(EnvConfig(id=env_id, kwargs=kwargs, backend=backend))
