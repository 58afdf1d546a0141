"""The list of every setting: names, types, defaults, units, meanings, and the rule of each by itself."""

from ddppo.config.settings.all import SECTIONS, Config, SamplerSettings, config_class, section, sections
from ddppo.config.settings.dist import DistSettings, ScalingConfig
from ddppo.config.settings.env import EnvConfig
from ddppo.config.settings.model import (
    CnnSettings,
    DictSettings,
    ImageSettings,
    LayerSettings,
    MlpSettings,
    ModelSettings,
    ResnetSettings,
)
from ddppo.config.settings.ppo import AlgorithmSettings, GrpoSettings, PPOSettings
from ddppo.config.settings.run import CheckpointConfig, EvalConfig, LogConfig, RunConfig

__all__ = [
    "SECTIONS",
    "AlgorithmSettings",
    "CheckpointConfig",
    "CnnSettings",
    "Config",
    "DictSettings",
    "DistSettings",
    "EnvConfig",
    "EvalConfig",
    "GrpoSettings",
    "ImageSettings",
    "LayerSettings",
    "LogConfig",
    "MlpSettings",
    "ModelSettings",
    "PPOSettings",
    "ResnetSettings",
    "RunConfig",
    "SamplerSettings",
    "ScalingConfig",
    "config_class",
    "section",
    "sections",
]
