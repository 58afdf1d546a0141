"""What the tests keep of Hydra's work is what Hydra makes."""

from unittest import mock

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from omegaconf import OmegaConf

from ddppo.config import compose as own
from ddppo.config.compose import register
from ddppo.config.presets import conf_dir
from tests import composed_once


def composed(*overrides):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", list(overrides), return_hydra_config=True)
    return OmegaConf.to_yaml(cfg)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seed=3", "ppo.gamma=0.9"],
        ["env=pendulum", "++env.slow_ranks={0: 0.5}", "scaling=weak"],
        ["env=acrobot", "ppo=default", "model=lstm", "distributed=env_workers", "hydra/sweeper=gp_ucb"],
    ],
)
def test_what_is_composed_again_is_what_hydra_composes(overrides):
    register()
    first, again = composed(*overrides), composed(*overrides)
    with (
        mock.patch.object(config_loader_impl, "create_defaults_list", composed_once._defaults_of),
        mock.patch.object(
            ConfigLoaderImpl, "_compose_config_from_defaults_list", composed_once._composed_from
        ),
        mock.patch.object(CachingConfigRepository, "load_config", composed_once._loaded_from),
        mock.patch.object(own, "_store_schemas", composed_once._store_schemas),
    ):
        register()
        assert first == again == composed(*overrides)


def test_nothing_that_is_done_to_a_composed_configuration_is_in_the_next():
    register()
    assert "gamma: 0.123" in composed("ppo.gamma=0.123", "+env.kwargs.size=3")
    assert "gamma: 0.123" not in composed()
    assert "size: 3" not in composed()
