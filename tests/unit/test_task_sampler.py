"""What episodes begin with, where nothing is learned of it."""

import math
import pickle
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from omegaconf import OmegaConf

from ddppo.algorithms.task_sampler import (
    EpisodeResults,
    GroupSampler,
    TaskSample,
    TaskSampler,
    make_sampler,
    state_in,
)
from ddppo.config import stored
from ddppo.config.fields import setting
from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig, SamplerSettings, config_class, sections
from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError, RunFolderError
from ddppo.plugins import Plugin
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
    grpo = make_sampler(Config(env=env, ppo=settings_of("ppo", algorithm="grpo", group_size=4)), SPEC, 8)
    assert (type(grpo), grpo.num_groups, grpo.every_iteration) == (GroupSampler, 2, True)


def test_a_checkpoint_of_a_run_that_learned_what_to_play_is_not_gone_on_from_without():
    sampler = TaskSampler(0)
    for checkpoint in ({"sampler": {"round": 3}}, {"curriculum": {"round": 3}, "program": None}):
        with pytest.raises(
            RunFolderError, match="the state of a curriculum or a search, and this run has none"
        ):
            sampler.load(state_in(checkpoint, sampler))
    for checkpoint in ({"sampler": None}, {"curriculum": None, "program": {"of": "a topology"}}):
        sampler.load(state_in(checkpoint, sampler))


@dataclass(slots=True)
class Asked(SamplerSettings):
    """A plugin's section of settings."""

    may_change: ClassVar[tuple[str, ...]] = ("longest",)

    name: str | None = setting(None, "what is asked for", choices=("twice", "thrice"))
    longest: int = setting(3, "a whole number", low=1)

    def asks(self, config, spec):
        return self.name is not None

    def check_run(self, config, shape):
        if self.longest > shape.rollout_steps:
            raise ConfigError(f"asked.longest={self.longest} is more than ppo.rollout_steps")


class Twice(TaskSampler):
    def sample(self, iteration):
        return TaskSample(iteration, lambda i: 2 * i, lambda i: {"times": 2})


def make(config, spec, num_envs):
    return Twice(config.seed)


@pytest.fixture
def brought(monkeypatch):
    """Have plugins of these sections, each with a sampler."""

    def bring(*names):
        plugins = tuple(
            Plugin(
                package=f"{__name__}{i}",
                sections={name: f"{__name__}:Asked"},
                samplers={name: f"{__name__}:make"},
            )
            for i, name in enumerate(names)
        )
        monkeypatch.setattr("ddppo.plugins.plugins", lambda: plugins)
        forget()

    def forget():
        for cached in (sections, config_class, stored._schema):
            cached.cache_clear()

    yield bring
    monkeypatch.undo()
    forget()


def loaded(**of_section):
    given = {"env": {"id": "CartPole-v1"}, "asked": of_section}
    return stored.from_omegaconf(OmegaConf.create(given))


def test_a_plugin_brings_settings_and_the_sampler_that_they_ask_for(brought):
    brought("asked")
    config = loaded(name="twice")
    assert make_sampler(config, SPEC, 8).sample(0).of(range(3, 5)) == ([6, 8], [{"times": 2}] * 2)
    assert type(make_sampler(loaded(), SPEC, 8)) is TaskSampler
    assert type(make_sampler(Config(), SPEC, 8)) is TaskSampler  # made without sections
    assert stored.from_omegaconf(stored.to_omegaconf(config)) == config
    assert type(pickle.loads(pickle.dumps(config))) is config_class()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "twcie"}, r"asked\.name=twcie: must be one of twice, thrice \(did you mean twice\?\)"),
        ({"longest": 0}, r"asked\.longest=0: must be at least 1"),
        ({"longest": 4096}, r"asked\.longest=4096 is more than ppo\.rollout_steps"),
        ({"longst": 4}, r"there is no setting asked\.longst \(did you mean asked\.longest"),
    ],
)
def test_settings_of_a_plugin_are_checked_as_those_of_ddppo(brought, given, said):
    brought("asked")
    with pytest.raises(ConfigError, match=said):
        validate(loaded(**given))


def test_two_plugins_that_both_say_what_episodes_begin_with_are_refused(brought):
    brought("asked", "more")
    both = replace(loaded(name="twice"), more=Asked(name="twice"))
    with pytest.raises(
        ConfigError, match="asked and more each choose the tasks of episodes: use one of them"
    ):
        make_sampler(both, SPEC, 8)


def test_a_plugin_cannot_take_a_section_of_ddppo_s(brought):
    brought("ppo")
    with pytest.raises(
        ConfigError, match="a plugin brings a section of settings ppo, which ddppo has: rename it"
    ):
        sections()


def test_a_run_of_a_plugin_that_is_gone_is_read_unless_it_was_sampled_by_it(brought, tmp_path):
    brought("asked")
    path = tmp_path / "config.yaml"
    for name in (None, "twice"):
        path.write_text(stored.to_yaml(loaded(name=name)))
        assert stored.load_config(path).asked.name == name
    brought()
    with pytest.raises(
        ConfigError, match=r"the run has asked\.name=twice, which no plugin here brings: install its"
    ):
        stored.load_config(path)
    brought("asked")
    path.write_text(stored.to_yaml(loaded()))
    brought()
    assert not hasattr(stored.load_config(path), "asked")
