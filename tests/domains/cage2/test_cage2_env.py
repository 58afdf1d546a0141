"""CAGE 2 as an environment: the same games by themselves and in a batch, and their states."""

import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import AGENTS, CYBORG_NAMES
from ddppo.envs.backends.batched import BatchedEnvs
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import ConfigError

NUM_ENVS = 3
KWARGS = {"red": "meander", "green": "active", "episode_steps": 25}


def envs_of(backend, **settings):
    env = EnvConfig(id="ddppo/CAGE2-v0", backend=backend, kwargs=KWARGS, **settings)
    envs = make_vec_env(env, range(NUM_ENVS), rank=0, cores=1)
    envs.reset(range(NUM_ENVS))
    return envs


def assert_step_alike(envs, others, steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions = rng.integers(145, size=NUM_ENVS)
        step, other = envs.step(actions), others.step(actions)
        for name in ("obs", "rewards", "terminated", "truncated", "ended", "final_obs"):
            np.testing.assert_array_equal(getattr(step, name), getattr(other, name), strict=True)


def test_a_batch_equals_its_games_one_by_one_to_the_bit():
    assert_step_alike(envs_of("batched"), envs_of("sync"), 60)
    assert_step_alike(envs_of("batched", max_episode_steps=10), envs_of("sync", max_episode_steps=10), 25)


@pytest.mark.parametrize("backend", ["batched", "sync"])
def test_environments_go_on_exactly_from_their_state(backend):
    envs, others = envs_of(backend), envs_of(backend)
    for _ in range(30):
        envs.step(np.full(NUM_ENVS, 140))
    obs, _ = others.restore(unpacked(packed(envs.state())))
    assert obs.any()
    assert_step_alike(envs, others, 40)


def test_episodes_end_by_their_steps_alone_and_the_next_is_another():
    envs = envs_of("auto")
    assert isinstance(envs, BatchedEnvs)
    sums, seen = np.zeros((4, NUM_ENVS)), []
    for episode in range(4):
        for k in range(1, 26):
            step = envs.step(np.zeros(NUM_ENVS, np.int64))
            sums[episode] += step.rewards
            assert not step.terminated.any()
            assert step.truncated.all() == step.truncated.any() == (k == 25)
        seen.append(step.final_obs.tolist())
        assert not step.obs.any()
    assert len(np.unique(sums)) > 3
    assert seen[0] != seen[1]


def test_red_may_be_given_by_the_name_that_cyborg_has_for_it():
    assert set(CYBORG_NAMES) == set(AGENTS)
    for ours, theirs in CYBORG_NAMES.items():
        games, others = Games(1, ours), Games(1, theirs)
        for _ in range(30):
            games.step(np.zeros(1, np.int64))
            others.step(np.zeros(1, np.int64))
        assert games.state() == others.state()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"red": "b_lin"}, r"red=b_lin is none of b_line \(or B_lineAgent\), .* \(did you mean b_line\?\)"),
        ({"red": "MeanderAgent"}, r"red=MeanderAgent is none of .* \(did you mean RedMeanderAgent"),
        ({"green": "awake"}, "green=awake is none of sleep, active"),
        ({"episode_steps": 0}, "episode_steps=0 must be a whole number of at least 1"),
        ({"episode_steps": 1e3}, "episode_steps=1000.0 must be a whole number"),
        ({"faithful_ot_quirk": "yes"}, "faithful_ot_quirk=yes must be true or false"),
    ],
)
def test_settings_that_are_wrong_are_refused_with_what_they_may_be(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        probe(EnvConfig(id="ddppo/CAGE2-v0", kwargs=kwargs))
