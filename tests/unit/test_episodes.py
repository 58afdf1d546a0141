import numpy as np
import pytest
import torch

from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.envs.make import make_vec_env
from ddppo.models.build import build_model
from ddppo.ppo.collector import Collector
from ddppo.ppo.rollout import ENDS, FinishedEpisode
from tests.unit.test_collector import CPU, DISCRETE, CountingEnvs, noise


def collector(env=None, *, rollout_steps=8, kind=EpisodeCollector, **settings):
    env = env or CountingEnvs(DISCRETE, **settings)
    model = build_model(env.spec, settings_of("model", hidden_sizes=[8]), 0, torch.float64)
    return kind(env, model, None, rollout_steps=rollout_steps, first_env=6, device=CPU, dtype=torch.float64)


def played(made):
    made.reset([0, 1], [{}, {}])
    return made.collect(noise(made))


@pytest.mark.parametrize("next_step", [False, True])
def test_a_rollout_is_one_episode_of_each_environment_and_nothing_after_its_end(next_step):
    rollout, episodes = played(collector(next_step=next_step))
    assert rollout.valid.sum(dim=0).tolist() == [3, 5]
    assert rollout.valid[:3].all()
    assert rollout.rewards.T.tolist() == [[0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 0, 0, 0]]
    assert rollout.terminated.nonzero().tolist() == [[2, 0]]
    assert rollout.truncated.nonzero().tolist() == [[4, 1]]
    assert rollout.episode_start.nonzero().tolist() == [[0, 0], [0, 1]]
    assert episodes == [FinishedEpisode(2, 6, 3.0, 3), FinishedEpisode(4, 7, 10.0, 5)]
    assert [ENDS[place] for place in rollout.ended_by] == ["terminated", "time_limit"]


def test_nobody_is_stepped_once_all_episodes_are_over():
    made = collector()
    played(made)
    assert len(made.env.actions) == 5


def test_an_episode_that_is_longer_than_the_rollout_is_cut_there():
    rollout, episodes = played(collector(rollout_steps=4))
    assert rollout.valid.sum(dim=0).tolist() == [3, 4]
    assert rollout.truncated.nonzero().tolist() == [[3, 1]]
    assert episodes == [FinishedEpisode(2, 6, 3.0, 3), FinishedEpisode(3, 7, 6.0, 4)]
    assert [ENDS[place] for place in rollout.ended_by] == ["terminated", "tokens"]


def test_nothing_is_left_of_the_rollout_before():
    made = collector()
    first, _ = played(made)
    kept = {name: getattr(first, name).clone() for name in ("valid", "truncated", "rewards", "logprobs")}
    again, episodes = played(made)
    for name, x in kept.items():
        assert torch.equal(getattr(again, name), x), name
    assert len(episodes) == 2


def test_log_probabilities_are_those_of_acting():
    whole, _ = played(collector(masked=True))
    made = collector(masked=True, kind=Collector)
    made.reset([0, 1])
    usual, _ = made.collect(noise(made))
    valid = whole.valid
    assert torch.equal(whole.actions[valid], usual.actions[valid])
    assert torch.equal(whole.logprobs[valid], usual.logprobs[valid])


class Losing(CountingEnvs):
    """Loses the process of environment 1 in its second step."""

    def step(self, actions):
        answer = super().step(actions)
        if len(self.actions) == 2:
            answer.valid = np.array([True, False])
            answer.truncated = np.array([False, True])
            answer.ended, answer.final_obs = np.array([1]), self.obs[[1]]
        return answer


def test_an_episode_whose_process_was_lost_has_no_row_and_is_not_told_of():
    rollout, episodes = played(collector(Losing(DISCRETE)))
    assert rollout.valid.sum(dim=0).tolist() == [3, 0]
    assert episodes == [FinishedEpisode(2, 6, 3.0, 3)]


class Living(CountingEnvs):
    """Environment 0 loses a life after every third step, and its game ends with the second."""

    def step(self, actions):
        answer = super().step(actions)
        if 0 in answer.ended:
            answer.is_life_loss = np.array([i == 0 and len(self.actions) % 6 != 0 for i in answer.ended])
        return answer


def test_a_lost_life_ends_no_episode():
    rollout, episodes = played(collector(Living(DISCRETE)))
    assert rollout.valid.sum(dim=0).tolist() == [6, 5]
    assert rollout.terminated.nonzero().tolist() == [[5, 0]]
    assert episodes == [FinishedEpisode(4, 7, 10.0, 5), FinishedEpisode(5, 6, 6.0, 6)]


class NeedsSuccessors(Algorithm):
    hands_over = "episodes"
    needs_successors = True


def transitions(env, **settings):
    """The rollout as an algorithm gets it that is neither PPO nor GRPO."""
    made = collector(env, **settings)
    made.use_algorithm(NeedsSuccessors(env.spec, AlgorithmSettings(), made.model))
    return played(made)[0]


class Long(CountingEnvs):
    """The episode of environment 1 takes 15 steps."""

    def reset(self, seeds, options=None):
        super().reset(seeds, options)
        self.steps[1] = -10
        return self.observe()


SUCCESSORS = {  # the environments, T, and the steps (t, environment) in which whole episodes end
    "whole": (CountingEnvs(DISCRETE), 8, [[2, 0], [4, 1]]),
    "before pseudo-steps": (CountingEnvs(DISCRETE, next_step=True), 8, [[2, 0], [4, 1]]),
    "cut": (CountingEnvs(DISCRETE), 4, [[2, 0]]),
    "followed by others": (Long(DISCRETE), 8, [[2, 0]]),
    "lost": (Losing(DISCRETE), 8, [[2, 0]]),
    "of two lives": (Living(DISCRETE), 8, [[4, 1], [5, 0]]),
}


@pytest.mark.parametrize("kind", SUCCESSORS)
def test_the_successor_of_a_step_belongs_to_its_own_episode(kind):
    env, rollout_steps, ends = SUCCESSORS[kind]
    rollout = transitions(env, rollout_steps=rollout_steps)
    assert rollout.ends.tolist() == ends
    assert len(rollout.final_obs) == len(ends)
    # Observations are (environment, steps since reset).
    expected = rollout.obs + torch.tensor([0, 1])
    if (
        kind == "of two lives"
    ):  # the game goes on with the next life, which these environments begin with a reset
        expected[2, 0, 1] = 0
    assert torch.equal(rollout.successors()[rollout.valid], expected[rollout.valid])


def test_two_environments_of_one_seed_begin_alike():
    env = make_vec_env(EnvConfig(id="CartPole-v1", num_envs=2), range(2), rank=0, cores=1)
    made = collector(env, rollout_steps=3)
    made.reset([5, 5], [{}, {}])
    rollout, _ = made.collect(noise(made))
    assert torch.equal(rollout.obs[0, 0], rollout.obs[0, 1])
