"""Each model, topology and algorithm has settings of its own; a key of another is unknown, and told of which it is."""

import sys
from dataclasses import fields, replace

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from ddppo.algorithms.known import ALGORITHMS, algorithm_name
from ddppo.config import rules
from ddppo.config.algorithm_settings import AlgorithmChoice
from ddppo.config.compose import register
from ddppo.config.model_settings import MlpSettings
from ddppo.config.presets import conf_dir, presets
from ddppo.config.stored import (
    _OF_ALL_VARIANTS,
    from_omegaconf,
    in_effect,
    load_config,
    to_omegaconf,
    to_yaml,
)
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, keys_of, known, settings_class
from ddppo.domains.circuits.settings import GnnSettings
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed as of_command_line
from ddppo.launch.arguments import prepared_arguments
from ddppo.plugins import added, imported
from tests.conf.own_algorithms import ReinforceSettings

OWN = """
from dataclasses import dataclass, field

from ddppo.config.settings import DistSettings
from ddppo.config.model_settings import MlpSettings, ModelSettings
from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import MLP
from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.distributed.topologies.contract import TopologySpec


@dataclass
class RingSettings(DistSettings):
    hops: int = setting(1, "ranks that a gradient passes", low=1)


_DDP = TOPOLOGIES["ddp"]
RING = TopologySpec("ring", "ranks in a ring", _DDP.layout, _DDP.implementation, settings=RingSettings)
OLD = TopologySpec("old", "ranks in a ring", _DDP.layout, _DDP.implementation, settings=("dist.max_lag",))


class Plain(MLP):
    pass


class Wide(MLP):
    @dataclass
    class Settings(MlpSettings):
        width: int = setting(8, "units of the widest layer", low=2)
        gains: dict[str, float] = field(default_factory=dict)

        def check(self):
            if self.width % 2:
                raise ConfigError(f"model.width={self.width}: must be even")


class Alone(MLP):
    @dataclass
    class Settings(ModelSettings):
        depth: int = 3


class Wrong(MLP):
    Settings = dict


class Odd(MLP):
    @dataclass
    class Settings(MlpSettings):
        sizes: set = field(default_factory=set)
"""


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_variants.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    register()

    def from_overrides(*overrides):
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return compose("config", list(overrides))

    yield from_overrides
    sys.path.remove(str(folder))
    GlobalHydra.instance().clear()


def checked(cfg):
    config = from_omegaconf(cfg)
    rules.validate(config)
    return config


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model=gnn model.memory_size=3", "with model.name=gnn: it is of model=mlp or cnn or resnet or dict"),
        ("model=mlp model.graph_layers=3", "with model.name=mlp: it is of model=gnn"),
        ("model=lstm model.lstm_size=3", r"model.lstm_size \(did you mean model.memory_size"),
        ("model=gnn model.lstm_size=3", "did you mean model.memory_size of model=mlp or cnn"),
        ("model=gnn model.nonsense=3", "model.name=gnn has name, graph_conv, graph_layers"),
        ("model=token_policy model.hf_path=x", "with model.name=token_policy: it is of model=hf"),
        (
            "env=circuit model.name=mlp model.graph_width=3",
            "model.graph_width with model.name=mlp: it is of model=gnn",
        ),
        ("ppo=grpo ppo.gae_lambda=0.9", "ppo.gae_lambda with ppo.algorithm=grpo: it is of ppo.algorithm=ppo"),
        ("ppo.kl_coef=0.1", "ppo.kl_coef with ppo.algorithm=ppo: it is of ppo.algorithm=grpo"),
        ("model=resnet model.conv_layers=[[1,2,3]]", "with model.name=resnet: it is of model=cnn or dict"),
        ("dist.max_lag=2", "no setting dist.max_lag with distributed=ddp: it is of distributed=async_actors"),
        ("distributed=multi_learner dist.observers=2", "it is of distributed=central_inference"),
        ("dist.topology=async_actors dist.max_lg=2", r"did you mean dist.max_lag\?"),
        ("dist.max_lg=2", r"did you mean dist.max_lag of distributed=async_actors\?"),
        (
            "dist.topology=own_variants:OLD",
            "its settings must be a dataclass derived from ddppo.config.settings.DistSettings",
        ),
        ("dist.topology=own_variants:RING dist.hop=2", r"did you mean dist.hops\?"),
        ("dist.topology=own_variants:RING dist.hops=0", "dist.hops=0: must be at least 1"),
        ("model.name=own_variants:Wide model.widht=3", r"did you mean model.width\?"),
        (
            "model.name=own_variants:Alone model.hidden_sizes=[3]",
            "model.name=own_variants:Alone: it is of model=mlp",
        ),
        (
            "model.name=own_variants:Wrong",
            "its Settings must be a dataclass derived from ddppo.config.model_settings.ModelSettings",
        ),
        ("model.name=own_variants:Odd", "own_variants.Odd.Settings: settings are of types that YAML knows"),
        ("model.name=own_variants:None_", "model.name=own_variants:None_: cannot be imported"),
        ("model.name=own_variants:Wide model.width=1", "model.width=1: must be at least 2"),
        ("model.name=own_variants:Wide model.width=7", "model.width=7: must be even"),
    ],
)
def test_a_key_or_a_value_that_a_variant_lacks_is_refused_with_the_nearest(composed, line, said):
    with pytest.raises(ConfigError, match=said):
        checked(composed(*line.split()))


def test_the_name_alone_chooses_the_keys_and_keeps_what_a_preset_sets_of_them(composed):
    assert checked(
        composed("env=circuit", "model.name=mlp", "model.hidden_sizes=[4]")
    ).model.hidden_sizes == [4]
    assert checked(composed("env=cloud", "ppo.algorithm=ppo")).ppo.learning_rate == 1.5e-3
    model = checked(composed("model=lstm", "model.name=resnet", "model.resnet_channels=[4]")).model
    assert (model.memory, model.hidden_sizes, model.resnet_channels) == ("lstm", [64], [4])
    assert checked(composed("model.name=gnn", "model.graph_width=8", "ppo=default")).model == GnnSettings(
        graph_width=8
    )


def test_a_model_of_ones_own_has_the_settings_in_its_class_or_those_of_mlp(composed):
    own = checked(composed("model.name=own_variants:Wide", "model.width=4", "model.gains.first=2"))
    assert (own.model.width, own.model.gains, own.model.hidden_sizes) == (4, {"first": 2.0}, [64, 64])
    assert (
        type(checked(composed("model.name=own_variants:Plain", "model.hidden_sizes=[3]")).model)
        is MlpSettings
    )
    assert keys_of(type(checked(composed("model.name=own_variants:Alone")).model)) == ["name", "depth"]


def test_a_topology_by_its_name_alone_has_its_own_keys_and_the_values_of_the_command_line(composed):
    dist = checked(composed("dist.topology=central_inference", "dist.observers=2", "dist.world_size=2")).dist
    assert (dist.observers, dist.world_size) == (2, 2)
    assert checked(composed("dist.topology=own_variants:RING", "dist.hops=3")).dist.hops == 3


def test_a_sweep_over_variants_is_composed_and_each_run_says_what_it_lacks(composed):
    line = ("distributed=ddp", "dist.max_lag=2", "hydra.mode=MULTIRUN")
    with pytest.raises(ConfigError, match="it is of distributed=async_actors"):
        checked(composed(*line))
    assert checked(composed("distributed=async_actors", *line[1:])).dist.max_lag == 2
    with pytest.raises(ConfigError, match=r"no setting dist.max_lagg"):
        composed("dist.max_lagg=2", "hydra.mode=MULTIRUN")


LINES = ["model=gnn", "model=dict", "model.name=own_variants:Wide model.width=4", "distributed=ddp_preempt"]


@pytest.mark.parametrize("line", [*LINES, "dist.topology=own_variants:RING dist.hops=3"])
def test_what_is_stored_holds_the_variant_s_keys_alone_and_reads_back(composed, tmp_path, line):
    config = checked(composed(*line.split()))
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    for section in SECTIONS_WITH_VARIANTS:
        assert list(OmegaConf.load(path)[section]) == keys_of(type(getattr(config, section)))
    assert load_config(path) == config


def test_a_file_with_the_keys_of_all_variants_loads_unless_one_without_effect_was_set(composed, tmp_path):
    path = tmp_path / "config.yaml"
    config = checked(composed("model=gnn", "model.graph_width=8", "distributed=async_actors"))
    stored = OmegaConf.create(to_yaml(config))
    for section, defaults in _OF_ALL_VARIANTS.items():
        stored[section] = {**defaults, **stored[section]}
    stored.model.image_layout = "chw"  # a default of still earlier runs
    OmegaConf.save(stored, path)
    assert load_config(path) == config
    stored.model.token_width = 8
    OmegaConf.save(stored, path)
    with pytest.raises(
        ConfigError, match=r"config.yaml is not .*no setting model.token_width with model.name=gnn"
    ):
        load_config(path)


def test_every_setting_of_a_variant_has_a_meaning_and_a_default_of_before():
    for section, variants in SECTIONS_WITH_VARIANTS.items():
        before = {**_OF_ALL_VARIANTS.get(section, {}), variants.key: None}
        for kind in known(section).values():
            for item in fields(kind):
                assert len(item.metadata["meaning"]) > 5, (kind, item.name)
                if section not in _OF_ALL_VARIANTS or item.name in keys_of(variants.base):
                    continue

                assert item.name in before, (kind, item.name)


REINFORCE = "tests.conf.own_algorithms:Reinforce"


def test_an_algorithm_of_ones_own_has_the_settings_that_its_class_names(composed):
    config = checked(composed(f"algorithm.name={REINFORCE}", "algorithm.total_steps=2e3", "env=acrobot"))
    assert type(config.algorithm) is ReinforceSettings
    assert config.training is config.algorithm
    assert (config.training.total_steps, config.training.gamma) == (2000, 0.99)
    assert (config.training.num_epochs, config.training.group_size, config.training.section) == (
        1,
        1,
        "algorithm",
    )
    assert algorithm_name(config) == REINFORCE


def test_ppo_and_grpo_train_with_the_settings_in_their_own_section(composed):
    for line, name in (("algorithm=ppo", "ppo"), ("algorithm=grpo", "grpo"), ("ppo=grpo", "grpo")):
        config = checked(composed(line))
        assert config.training is config.ppo
        assert (config.algorithm, algorithm_name(config), config.training.section) == (
            AlgorithmChoice(),
            name,
            "ppo",
        )
    assert composed("algorithm=grpo") == composed("ppo=grpo")
    assert composed("algorithm=grpo", "ppo=cartpole").ppo == composed("ppo=cartpole").ppo


@pytest.mark.parametrize(
    "line", [*(f"algorithm={name}" for name in ALGORITHMS), f"algorithm.name={REINFORCE}"]
)
def test_the_section_ppo_is_left_out_if_another_algorithm_trains(composed, tmp_path, line):
    cfg = composed(line)
    assert "ppo" not in cfg
    config = from_omegaconf(cfg)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert "ppo" not in OmegaConf.load(path)
    assert load_config(path) == config
    assert not [key for key in in_effect(config) if key == "ppo"]


def test_a_run_folder_without_the_section_algorithm_was_trained_by_ppo(composed, tmp_path):
    path = tmp_path / "config.yaml"
    stored = OmegaConf.create(to_yaml(checked(composed())))
    del stored["algorithm"]
    OmegaConf.save(stored, path)
    assert algorithm_name(load_config(path)) == "ppo"


def test_a_resumed_command_line_keeps_the_algorithm_of_the_run(composed, tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(from_omegaconf(composed(f"algorithm.name={REINFORCE}"))))
    cfg = composed(f"resume={tmp_path}", "algorithm.total_steps=7e3")
    assert (cfg.algorithm.name, cfg.algorithm.total_steps) == (REINFORCE, 7000)
    with pytest.raises(ConfigError, match=r"ppo.total_steps has no effect with algorithm=tests"):
        composed(f"resume={tmp_path}", "ppo.total_steps=7e3")


def test_a_sweep_over_algorithms_gives_each_run_its_own_settings(composed):
    # What launch/arguments.py makes of -m algorithm=ppo,dqn ppo.num_epochs=2 algorithm.n_step=2, run by run.
    both = ("hydra.mode=MULTIRUN", "++ppo.num_epochs=2", "++algorithm.n_step=2")
    assert checked(composed("algorithm=ppo", *both)).ppo.num_epochs == 2
    dqn = composed("algorithm=dqn", *both)
    assert dqn.algorithm.n_step == 2
    assert "ppo" not in dqn
    with pytest.raises(ConfigError, match=r"no setting algorithm.n_stp"):
        checked(composed("algorithm=dqn", "hydra.mode=MULTIRUN", "++algorithm.n_stp=2"))
    own = ("hydra.mode=MULTIRUN", "++algorithm.group_size=2")
    assert composed("algorithm.name=tests.conf.own_algorithms:Groups", *own).algorithm.group_size == 2
    with pytest.raises(ConfigError, match=r"no setting algorithm.group_size"):
        checked(composed(f"algorithm.name={REINFORCE}", *own))


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("algorithm=my_pkg.algos:Reinforce", ["algorithm.name=my_pkg.algos:Reinforce"]),
        ("-m algorithm=a.b:C,a.b:D algorithm.x=1", ["-m", "algorithm.name=a.b:C,a.b:D", "++algorithm.x=1"]),
        ("-m algorithm=ppo,dqn ppo.gamma=.9", ["-m", "algorithm=ppo,dqn", "++ppo.gamma=.9"]),
        ("-m algorithm=ppo,grpo ppo.gamma=.9", ["-m", "algorithm=ppo,grpo", "ppo.gamma=.9"]),
        ("algorithm=dqn algorithm.capacity=1e4", ["algorithm=dqn", "algorithm.capacity=10000"]),
    ],
)
def test_an_algorithm_on_the_command_line_is_a_preset_or_an_import_path(line, arguments):
    assert prepared_arguments(line.split()) == arguments


def test_every_algorithm_has_a_preset_and_is_named_in_the_help():
    assert {*ALGORITHMS, "ppo", "grpo"} <= presets("algorithm").keys()
    meaning = next(item for item in fields(AlgorithmChoice) if item.name == "name").metadata["meaning"]
    for name, known_algorithm in ALGORITHMS.items():
        assert name in meaning
        assert settings_class("algorithm", name)().name == name
        assert len(known_algorithm.meaning) > 15


@pytest.mark.parametrize("name", list(added("models")))
def test_a_plugin_names_the_settings_that_its_model_has(name):
    assert settings_class("model", name) is imported(added("models")[name]).Settings


def test_the_text_of_a_configuration_is_kept_by_value():
    config = of_command_line(["env=cartpole"])
    written = to_yaml(config)
    assert f"seed: {config.seed + 1}" in to_yaml(replace(config, seed=config.seed + 1))
    assert to_yaml(config) == written == OmegaConf.to_yaml(to_omegaconf(config))
