import gymnasium as gym
import numpy as np
import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.envs.make import make_eval_env
from ddppo.loop.evaluation import Policy, play_episodes
from ddppo.models.build import build_model
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.seeding import derived_seed
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

CARTPOLE = EnvConfig(id="CartPole-v1", max_episode_steps=30)


@pytest.fixture
def policy():
    spec = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (2,)))
    normalizer = ObsNormalizer(ArraySpec((4,)), torch.device("cpu"), torch.float64)
    normalizer.update_(moments(torch.randn(100, 4, generator=torch.Generator().manual_seed(0))))
    return Policy(build_model(spec, settings_of("model"), 0, torch.float64), normalizer, spec)


def play(policy, num_envs, episodes, seed=0):
    env = make_eval_env(CARTPOLE, num_envs)
    try:
        return play_episodes(policy, env, episodes, seed)
    finally:
        env.close()


def test_scores_are_those_of_playing_episode_after_episode_by_hand(policy):
    env = gym.make("CartPole-v1", max_episode_steps=30)
    returns = []
    for j in range(6):
        obs, _ = env.reset(seed=derived_seed(0, "eval", j))
        total, done = 0.0, False
        while not done:
            action = policy.act(obs[None], None)[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total += reward
            done = terminated or truncated
        returns.append(total)
    scores = play(policy, 3, range(6))
    assert list(scores.returns) == returns
    assert list(scores.lengths) == returns
    assert len(set(returns)) > 1


@pytest.mark.parametrize("num_envs", [1, 3, 4, 7, 10])
def test_scores_do_not_depend_on_how_many_environments_play_side_by_side(policy, num_envs):
    assert play(policy, num_envs, range(7)) == play(policy, 7, range(7))


def test_an_episode_has_the_same_score_whoever_plays_it_and_in_whatever_company(policy):
    whole = play(policy, 8, range(8))
    for rank in range(3):
        part = play(policy, 2, range(rank, 8, 3))
        assert part.returns == whole.returns[rank::3]
        assert part.lengths == whole.lengths[rank::3]


def test_other_seeds_play_other_episodes(policy):
    assert play(policy, 4, range(8), seed=1) != play(policy, 4, range(8))


def test_playing_changes_neither_the_model_nor_the_normaliser(policy):
    before = [p.clone() for p in policy.model.parameters()], policy.normalizer.state.clone()
    play(policy, 4, range(4))
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before[0], strict=True))
    assert torch.equal(policy.normalizer.state, before[1])
    assert all(p.grad is None for p in policy.model.parameters())


def test_actions_are_the_mode_of_what_is_allowed(policy):
    policy = Policy(policy.model, None, policy.spec)
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    greedy = policy.act(obs, None)
    params = policy.model.action_params(torch.from_numpy(obs).double())
    assert greedy.tolist() == params.argmax(dim=-1).tolist()
    other = 1 - greedy
    assert policy.act(obs, np.eye(2, dtype=bool)[other]).tolist() == other.tolist()
