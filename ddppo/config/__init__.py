"""Settings: one (fields), all (settings and *_settings), which section has which keys (variants), rules across them
(rules, rank_rules), config.yaml (stored), Hydra (compose, help).

`Config` is the resolved configuration of one run. YAML files in conf/ hold presets of its sections; Hydra composes
them against these dataclasses, `from_omegaconf` converts the result, and `validate` checks it before any process
starts. Nothing changes it afterwards. Imports no torch, so that `--help` is quick.
"""

from ddppo.config.algorithm_settings import AlgorithmSettings, GrpoSettings, PPOSettings
from ddppo.config.compose import (
    conf_dir,
    conf_dirs,
    folder_name,
    is_schema,
    presets,
    register,
    schemas,
    stamp,
)
from ddppo.config.fields import check_fields, in_words, near, setting
from ddppo.config.model_settings import (
    CnnSettings,
    DictSettings,
    ImageSettings,
    LayerSettings,
    MlpSettings,
    ModelSettings,
    ResnetSettings,
)
from ddppo.config.rank_rules import batch_shape, check_restarts, layout
from ddppo.config.rules import validate
from ddppo.config.settings import (
    SECTIONS,
    CheckpointConfig,
    Config,
    DistSettings,
    EnvConfig,
    EvalConfig,
    LogConfig,
    RunConfig,
    SamplerSettings,
    ScalingConfig,
    config_class,
    section,
    sections,
)
from ddppo.config.stored import escaped, from_omegaconf, load, to_omegaconf, to_yaml
from ddppo.config.variants import settings_of

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
    "batch_shape",
    "check_fields",
    "check_restarts",
    "conf_dir",
    "conf_dirs",
    "config_class",
    "escaped",
    "folder_name",
    "from_omegaconf",
    "in_words",
    "is_schema",
    "layout",
    "load",
    "near",
    "presets",
    "register",
    "schemas",
    "section",
    "sections",
    "setting",
    "settings_of",
    "stamp",
    "to_omegaconf",
    "to_yaml",
    "validate",
]
