"""A trained policy in any program: `load_policy`."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

import ddppo
from ddppo import load_policy
from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, RunFolderError
from ddppo.policies.loading import spaces
from ddppo.policies.playing import play, task_of
from ddppo.policies.scores import by_task, evaluated
from tests.support import CHECKOUT, PATIENCE_S
from tests.unit.policy_tasks import ChosenEnv, MaskedEnv, run_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the run folder of a task, made once."""
    made = {}

    def folder_of(name):
        if name not in made:
            is_normalized = name != "PixelsEnv"
            made[name] = run_folder(tmp_path_factory.mktemp("run"), name, normalized=is_normalized)
        return made[name]

    return folder_of


def test_the_package_names_it_and_imports_no_torch_before_it_is_asked_for():
    code = "import sys, ddppo; assert 'torch' not in sys.modules; assert callable(ddppo.load_policy)"
    assert subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, timeout=PATIENCE_S).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'load_polcy'"):
        ddppo.load_polcy  # noqa: B018


@pytest.mark.parametrize("name", ["ChosenEnv", "MaskedEnv", "BitsEnv", "BoundedEnv", "WholeEnv", "PixelsEnv"])
def test_its_actions_are_what_the_task_takes_for_one_observation_and_for_a_batch(folders, name):
    policy = load_policy(folders(name))
    task = task_of(policy.trained.config.env)
    for deterministic in (True, False):
        obs, info = task.reset(seed=3)
        for _ in range(5):  # the task refuses what is no action of its own
            obs, *_, info = task.step(policy(obs, info.get("action_mask"), deterministic))
    envs = gym.vector.SyncVectorEnv([lambda: task_of(policy.trained.config.env)] * 3)
    many, infos = envs.reset(seed=3)
    masks = infos.get("action_mask")
    actions = policy(many, masks)
    assert actions.shape == (3, *policy.action_space.shape)
    obs, info = task.reset(seed=4)  # that of the second of three
    assert np.array_equal(actions[1], policy(obs, info.get("action_mask")))
    envs.step(actions)
    envs.close()


def test_it_chooses_only_what_a_mask_allows(folders):
    policy, rng = load_policy(folders("ChosenEnv")), np.random.default_rng(0)
    ChosenEnv.observation_space.seed(0)
    for _ in range(20):
        only = rng.integers(2), rng.integers(3)
        mask = np.zeros(5, bool)
        mask[[only[0], 2 + only[1]]] = True
        obs = ChosenEnv.observation_space.sample()
        for deterministic in (True, False):
            assert policy(obs, mask, deterministic).tolist() == [only[0], 5 + only[1]]
    MaskedEnv.observation_space.seed(0)
    obs = MaskedEnv.observation_space.sample() | {"action_mask": np.array([0, 0, 1], np.int8)}
    assert load_policy(folders("MaskedEnv"))(obs) == 1


def test_sampled_actions_are_repeated_by_their_seed_alone(folders):
    folder, obs = folders("BoundedEnv"), np.zeros((4, 3), np.float32)
    draws = [load_policy(folder, seed=seed)(obs, deterministic=False) for seed in (5, 5, 6)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert len({tuple(row) for row in draws[0].reshape(4, -1)}) > 1


def test_what_is_no_observation_of_the_task_is_said(folders):
    policy = load_policy(folders("BoundedEnv"))
    with pytest.raises(ValueError, match=r"given an observation of shape \(4,\), its space says \(3,\)"):
        policy(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="has none: leave it out"):
        policy(np.zeros(3, np.float32), mask=np.ones(2, bool))
    with pytest.raises(ValueError, match=r"with keys \['status'\]"):
        load_policy(folders("MaskedEnv"))({"status": 1})


def test_a_folder_or_checkpoint_that_is_none_is_said(folders, tmp_path):
    with pytest.raises(RunFolderError, match="not a run folder"):
        load_policy(tmp_path)
    with pytest.raises(RunFolderError, match=r"best\.pt does not exist"):
        load_policy(folders("BitsEnv"), "best")


def test_a_task_that_servers_make_is_refused_with_who_plays_it():
    env = EnvConfig(id="CartPole-v1", backend="remote", urls=["ws://127.0.0.1:8000"])
    with pytest.raises(ConfigError, match=r"env\.urls=ws://127\.0\.0\.1:8000: .* use ddppo\.evaluate"):
        spaces(env, probe(EnvConfig(id="CartPole-v1")))


def test_it_remembers_each_environment_until_it_is_told_that_an_episode_starts(tmp_path):
    folder = run_folder(tmp_path, "BoundedEnv", memory="lstm", memory_size=8)
    policy, alone = load_policy(folder), load_policy(folder)
    of = policy.trained.policy
    seen = np.random.default_rng(0).standard_normal((5, 2, 3), np.float32)
    together = []
    for t, obs in enumerate(seen):
        if t == 3:
            policy.reset([False, True])
        policy(obs)
        together.append(policy._remembered.state.numpy().copy())
    for i in range(2):
        alone.reset()
        for t in range(5):
            if (t, i) == (3, 1):
                alone.reset()
            alone(seen[t, i])
            np.testing.assert_allclose(alone._remembered.state.numpy()[0], together[t][i], atol=1e-6)
    assert of.model.state_size == 16
    with pytest.raises(
        ValueError, match="remembers 2 environments and was given observations of 3: call reset"
    ):
        policy(np.zeros((3, 3), np.float32))
    policy.reset()
    assert policy(np.zeros((3, 3), np.float32)).shape == (3, 1, 2)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_played_by_itself_it_scores_what_evaluation_says(tmp_path, memory):
    policy = load_policy(run_folder(tmp_path, "CartPole-v1", memory=memory))
    scores = evaluated(policy.trained, 4, [0, 7])
    task = task_of(policy.trained.config.env)
    alone = [episode.episode_return for seed in (0, 7) for episode in play(policy, task, range(4), seed)]
    assert list(scores["returns"]) == alone
    assert scores["seeds"] == [0, 7]
    low, high = scores["return_mean_interval"]
    assert low < scores["return_mean"] < high


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_drawn_actions_are_each_episode_s_own(tmp_path, task):
    policy = load_policy(run_folder(tmp_path, task))
    few, many = (evaluated(policy.trained, n, [3], deterministic=False) for n in (2, 5))
    assert few["returns"] == pytest.approx(many["returns"][:2], rel=1e-5)
    assert few["returns"] != evaluated(policy.trained, 2, [3])["returns"]
    assert not few["deterministic"]


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_so_it_does_in_a_game_that_begins_anew_when_a_life_is_lost(tmp_path, memory):
    pytest.importorskip("ale_py", reason="needs the extra atari: pip install '.[atari]'")
    kwargs = {"img_height": 21, "img_width": 21, "episodic_life": True}
    model = {"name": "cnn", "conv_layers": [[4, 8, 4]], "hidden_sizes": [16], "memory": memory}
    remembering = {} if memory == "none" else {"memory_size": 8, "shared_trunk": True}
    folder = run_folder(tmp_path, "ALE/Breakout-v5", normalized=False, kwargs=kwargs, **model, **remembering)
    policy = load_policy(folder)
    with torch.no_grad():  # else it does the same in every state
        generator = torch.Generator().manual_seed(3)
        for p in policy.trained.policy.model.parameters():
            p.normal_(std=0.3, generator=generator)
    scores = evaluated(policy.trained, 1, [0])
    alone = list(play(policy, task_of(policy.trained.config.env), range(1), 0))
    assert list(scores["returns"]) == [episode.episode_return for episode in alone]
    assert list(scores["lengths"]) == [episode.length for episode in alone]


def test_a_mission_may_be_its_sentence(tmp_path):
    pytest.importorskip("minigrid", reason="needs the extra minigrid: pip install '.[minigrid]'")
    env_id = "MiniGrid-GoToDoor-5x5-v0"
    model = {"name": "dict", "image_layout": "hwc"}
    policy = load_policy(run_folder(tmp_path, env_id, normalized=False, **model))
    task, ours = gym.make(env_id), task_of(policy.trained.config.env)
    obs, _ = task.reset(seed=5)
    numbers, _ = ours.reset(seed=5)
    assert isinstance(obs["mission"], str)
    assert policy(obs) == policy(numbers)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)] * 2)
    many, _ = envs.reset(seed=5)
    assert policy(many).shape == (2,)
    envs.close()
    with pytest.raises(ValueError, match="the task has no such mission"):
        policy({**obs, "mission": "dance"})


def test_runs_of_a_task_are_scored_together_with_intervals_over_runs():
    results = [{"env": "A", "return_mean": x} for x in (1.0, 2.0, 3.0, 10.0)] + [
        {"env": "B", "return_mean": 5.0}
    ]
    of = by_task(results)
    assert of["A"]["return_mean"] == 4.0
    assert of["A"]["return_iqm"] == 2.5
    assert of["A"]["return_iqm_interval"][0] >= 1.0
    assert of["A"]["return_iqm_interval"][1] <= 10.0
    assert np.isnan(of["B"]["return_mean_interval"]).all()
