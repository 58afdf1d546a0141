"""Imported by a process that doors fork from: has it compose what they mostly ask for, and find Hydra's plugins."""

import sys

from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins

import ddppo.launch.sweep  # noqa: F401
import tests.composed_once  # noqa: F401
from ddppo.config.compose import conf_dir, register

conf = conf_dir()
sys.path += [str(folder) for folder in sorted((conf.parent / "ddppo").glob("*/_plugins"))]
Plugins.instance()
register()
with initialize_config_dir(str(conf), version_base="1.3"):
    for env in ("cartpole", "pendulum"):
        compose("config", [f"env={env}"])
    compose("config", [])
