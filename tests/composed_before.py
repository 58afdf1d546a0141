"""Imported by a process that doors fork from: has it compose what they mostly ask for, and find Hydra's plugins.

Ranks fork from doors: a configuration converted here makes the schema of settings for all of them, 90 ms each.
"""

import sys

import gymnasium.envs.classic_control  # noqa: F401  for all ranks, which else import it each
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import open_dict

import ddppo.launch.sweep  # noqa: F401
import tests.composed_once  # noqa: F401
from ddppo.config import stored
from ddppo.config.compose import register
from ddppo.config.presets import conf_dir

conf = conf_dir()
sys.path += [str(folder) for folder in sorted((conf.parent / "ddppo").glob("*/_plugins"))]
Plugins.instance()
register()
with initialize_config_dir(str(conf), version_base="1.3"):
    loader = GlobalHydra.instance().config_loader()
    for choice in (["env=cartpole"], ["env=pendulum"], []):
        # In this mode ddppo/config/compose.py has every command composed first.
        composed = loader.load_configuration("config", choice, RunMode.MULTIRUN)
        with open_dict(composed):
            del composed["hydra"]
        stored.to_yaml(stored.from_omegaconf(composed))
