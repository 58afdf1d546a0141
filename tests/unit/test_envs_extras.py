"""Tasks of packages that come with extras: found by their ids, in what models take, and named where missing."""

import importlib.util
import sys

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

DOOR_KEY = "MiniGrid-DoorKey-6x6-v0"
EXTRAS = [
    (DOOR_KEY, "minigrid"),
    ("popgym-PositionOnlyCartPoleEasy-v0", "popgym"),
    ("ALE/Pong-v5", "ale_py"),
    ("envpool/Pong-v5", "envpool"),
]


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs the extra {module}")


@pytest.mark.parametrize(("env_id", "module"), EXTRAS)
@pytest.mark.parametrize("backend", ["auto", "sync"])
def test_a_task_without_its_package_names_the_command_that_installs_it(monkeypatch, env_id, module, backend):
    monkeypatch.setitem(sys.modules, module, None)
    package = module.replace("_", "-")
    with pytest.raises(
        ConfigError, match=rf"env.id={env_id} needs .* not installed: pip install '?{package}[>=]="
    ):
        probe(EnvConfig(id=env_id, backend=backend))


@needs("minigrid")
def test_minigrid_is_observed_as_numbers_and_its_one_mission_left_out():
    spec = probe(EnvConfig(id=DOOR_KEY))
    seen = {"direction": ArraySpec((4,)), "image": ArraySpec((7, 7, 3), high=10)}
    assert spec == EnvSpec(seen, ActionSpec("discrete", (7,)))
    env = make_env(EnvConfig(id=DOOR_KEY))
    obs, _ = env.reset(seed=3)
    theirs, _ = gym.make(DOOR_KEY).reset(seed=3)
    np.testing.assert_array_equal(obs["image"], theirs["image"])
    assert obs["direction"].argmax() == theirs["direction"]


@needs("minigrid")
def test_one_of_many_missions_is_its_number():
    env_id = "MiniGrid-GoToDoor-5x5-v0"
    assert probe(EnvConfig(id=env_id)).obs["mission"] == ArraySpec((6,))
    ours, theirs, found = make_env(EnvConfig(id=env_id)), gym.make(env_id), {}
    for seed in range(30):
        number = int(ours.reset(seed=seed)[0]["mission"].argmax())
        assert found.setdefault(number, sentence := theirs.reset(seed=seed)[0]["mission"]) == sentence
    assert len(set(found.values())) == len(found) > 3


@needs("minigrid")
def test_sentences_beyond_counting_are_refused():
    with pytest.raises(ConfigError, match="it has too many missions to number them"):
        probe(EnvConfig(id="BabyAI-GoToObj-v0"))


@pytest.mark.parametrize(
    "env_id", [pytest.param(env_id, marks=needs(module)) for env_id, module in EXTRAS[:2]]
)
def test_they_are_stepped_in_turn_and_in_a_pool_alike(env_id):
    batches = [
        make_vec_env(EnvConfig(id=env_id, backend=backend, num_workers=workers), range(3), 0, 2)
        for backend, workers in (("sync", None), ("pool", 2))
    ]
    try:
        num_actions = batches[0].spec.action.sizes[0]
        first = [envs.reset([1, 2, 3])[0] for envs in batches]
        np.testing.assert_equal(*first)
        for actions in np.random.default_rng(0).integers(0, num_actions, (50, 3)):
            one, other = (envs.step(actions) for envs in batches)
            np.testing.assert_equal(
                (one.obs, one.rewards, one.ended), (other.obs, other.rewards, other.ended)
            )
    finally:
        for envs in batches:
            envs.close()
