"""Which device a rank takes: that of the run where it acts or learns, the CPU where it only steps environments."""

from dataclasses import replace

import pytest
import torch

from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.join import device_of_rank
from ddppo.errors import ConfigError


def settings(topology, **dist):
    dist = settings_of("dist", topology=topology, world_size=4, **dist)
    return Config(env=EnvConfig(id="CartPole-v1", num_envs=12), dist=dist)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_of_ranks_that_step_environments_for_another_only_that_one_has_a_gpu(two_gpus, device):
    config = replace(settings("env_workers"), device=device)
    assert [str(device_of_rank(config, rank, rank)) for rank in range(4)] == ["cuda:0", "cpu", "cpu", "cpu"]
    config = replace(settings("ddp"), device=device)
    assert [str(device_of_rank(config, rank, rank)) for rank in range(4)] == ["cuda:0", "cuda:1"] * 2


def test_a_rank_that_only_steps_needs_no_gpu_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = replace(settings("env_workers"), device="cuda")
    assert str(device_of_rank(config, 1, 0)) == "cpu"
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        device_of_rank(config, 0, 0)


def test_nccl_between_ranks_that_have_no_gpu_is_refused_before_the_start():
    with pytest.raises(ConfigError, match="ranks of the role environments only step"):
        validate(settings("env_workers", collective="nccl"))
