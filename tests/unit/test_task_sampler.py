"""What episodes begin with, where nothing is learned of it."""

import math

import pytest
import torch

from ddppo.algorithms.task_sampler import EpisodeResults, GroupSampler, TaskSampler, make_sampler, state_in
from ddppo.config import Config, EnvConfig, PPOConfig
from ddppo.errors import RunFolderError
from ddppo.seeding import derived_seed
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (2,)))


def test_every_environment_has_a_seed_of_its_own_whichever_rank_steps_it():
    sample = TaskSampler(3).sample(0)
    seeds, options = sample.of(range(8))
    assert len(set(seeds)) == 8
    assert options is None
    assert sample.of(range(4, 8))[0] == seeds[4:]
    assert seeds[5] == derived_seed(3, "env", 5, 0)
    assert not set(seeds) & set(TaskSampler(3).sample(7).of(range(8))[0])


def test_those_of_a_group_begin_alike_and_anew_in_every_iteration():
    sampler = GroupSampler(seed=3, num_envs=8, group_size=4)
    first, second = (sampler.sample(iteration).of(range(8))[0] for iteration in (1, 2))
    assert first == [first[0]] * 4 + [first[4]] * 4
    assert len({*first, *second}) == 4
    assert sampler.sample(1).of(range(2, 6))[0] == first[2:6]  # a rank may hold parts of groups
    assert first != GroupSampler(4, 8, 4).sample(1).of(range(8))[0]


def test_the_first_groups_play_the_same_seeds_however_many_there_are():
    few, many = (GroupSampler(0, num_envs, 2).sample(7).of(range(4))[0] for num_envs in (4, 10))
    assert many == few


def test_rates_are_by_group_of_what_is_known():
    nan = math.nan
    achieved = torch.tensor([1.0, 0.0, nan, 1.0, nan, nan], dtype=torch.float64)
    assert EpisodeResults(achieved, torch.ones(6)).rates(2) == [0.5, 1.0, None]


def test_grpo_and_text_are_of_groups_and_other_runs_of_environments_that_go_on():
    env = EnvConfig(id="Task-v0")
    assert type(make_sampler(Config(env=env), SPEC, 8)) is TaskSampler
    grpo = make_sampler(Config(env=env, ppo=PPOConfig(algorithm="grpo", group_size=4)), SPEC, 8)
    assert (type(grpo), grpo.num_groups, grpo.every_iteration) == (GroupSampler, 2, True)


def test_a_checkpoint_of_a_run_that_learned_what_to_play_is_not_gone_on_from_without():
    sampler = TaskSampler(0)
    for checkpoint in ({"sampler": {"round": 3}}, {"curriculum": {"round": 3}, "program": None}):
        with pytest.raises(
            RunFolderError, match="what a curriculum or a search had learned, and the run has none"
        ):
            sampler.load(state_in(checkpoint, sampler))
    for checkpoint in ({"sampler": None}, {"curriculum": None, "program": {"of": "a topology"}}):
        sampler.load(state_in(checkpoint, sampler))
