"""dist.reduction=auto: with which settings sums are ordered, and why they are not with others."""

import pytest

from ddppo.config import rank_rules
from ddppo.config.settings import Config
from ddppo.errors import ConfigError


def settings(**given):
    config = Config()
    for key, value in given.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section) if name else config, name or section, value)
    return config


@pytest.mark.parametrize(
    ("num_envs", "world_size", "shards"), [(8, 1, 8), (8, 8, 8), (64, 4, 8), (12, 2, 4), (6, 2, 2), (7, 1, 1)]
)
def test_the_built_in_network_on_cpus_has_ordered_sums_wherever_ranks_own_equal_shards(
    num_envs, world_size, shards
):
    config = settings(env__num_envs=num_envs, dist__world_size=world_size)
    assert rank_rules.why_fast(config) is None
    assert rank_rules.num_shards(config) == shards


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dist__world_size": 3}, "dist.world_size=3 does not divide the 8 parts of env.num_envs=8"),
        ({"dist__topology": "sync_actors", "dist__world_size": 2}, "distributed=sync_actors"),
        ({"scaling__rule": "weak"}, "scaling=weak"),
        ({"dist__grad_sync": "flat"}, "dist.grad_sync=flat"),
        ({"device": "cuda"}, "device=cuda"),
        ({"compile": "off"}, "compile=off"),
        ({"model__memory": "lstm"}, "model.memory=lstm is computed in PyTorch"),
        ({"model__hidden_sizes": [1024, 1024]}, "model.hidden_sizes=[1024, 1024] is faster in PyTorch"),
        ({"ppo__losses": [{"path": "a:b"}]}, "ppo.losses"),
        ({"dist__threads_per_rank": 2}, "dist.threads_per_rank=2"),
        ({"ppo__normalize_advantages": "local"}, "ppo.normalize_advantages=local"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_other_settings_are_fast_and_say_why(given, why):
    config = settings(env__num_envs=8, **given)
    assert rank_rules.why_fast(config) == why
    assert rank_rules.num_shards(config) == 0
    rank_rules.check_ordered(config)  # auto refuses nothing


def test_a_model_of_ones_own_has_ordered_sums_if_cpp_has_its_layers():
    config = settings(env__num_envs=8, model__name="mine:Net")
    assert rank_rules.why_fast(config) == "model.name=mine:Net is computed in PyTorch"
    assert rank_rules.why_fast(config, has_layers=True) is None
    assert [rank_rules.num_shards(config, has_layers=has) for has in (False, True)] == [0, 8]
    config.compile = "off"  # whatever its layers are
    assert rank_rules.why_fast(config, has_layers=True) == "compile=off"


def test_an_accelerator_that_device_auto_takes_is_fast(monkeypatch):
    monkeypatch.setattr(rank_rules, "accelerators", lambda: ("cuda", 1))
    assert rank_rules.why_fast(settings(env__num_envs=8)) == "it computes on an accelerator"
    assert rank_rules.why_fast(settings(env__num_envs=8, device="cpu")) is None


def test_a_number_of_shards_asks_for_ordered_sums():
    with pytest.raises(ConfigError, match="the batch would grow with W"):
        rank_rules.check_ordered(settings(env__num_envs=8, scaling__rule="weak", dist__shards=4))
