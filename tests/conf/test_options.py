"""Every option of every group composes, converts, fits together and is documented."""

import json
import re
import sys
from dataclasses import fields

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from ddppo.config import rules, stored
from ddppo.config.compose import register
from ddppo.config.help import description, setting_names
from ddppo.config.presets import conf_dir, presets, schemas, shown_help
from ddppo.config.settings import Config, config_class
from ddppo.errors import ConfigError
from tests.support import run

CONF = conf_dir()
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
PRESETS = {(group, name): path for group in GROUPS for name, path in presets(group).items()}
OPTIONS = list(PRESETS)  # of plugins too
SECTION = {"distributed": "dist"}
NEEDS = {"hf": ["model.hf_path=a-model"], "gym": ["env.id=CartPole-v1"], "a3c": ["distributed=async_actors"]}
NEEDS["remote"] = ["env.backend=remote", "env.urls=[ws://127.0.0.1:8000]"]
NEEDS["openenv"] = ["env.backend=openenv", "env.urls=[http://127.0.0.1:8000]"]


@pytest.fixture(scope="module")
def composed():
    register()

    def from_overrides(*overrides):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", list(overrides))

    yield from_overrides
    GlobalHydra.instance().clear()


def needs_extra(group, option):
    if (group, option.split("/")[0]) == ("experiment", "tune"):
        pytest.importorskip(
            "hydra_plugins.hydra_optuna_sweeper", reason="needs the extra tune: pip install '.[tune]'"
        )


def convert(cfg):
    config = stored.from_omegaconf(cfg)
    return config, rules.validate(config)


def test_the_groups_are_those_of_the_issue():
    assert GROUPS == ["algorithm", "distributed", "env", "experiment", "model", "ppo", "scaling"]
    assert {path.stem for path in (CONF / "env").iterdir()} == {
        "acrobot", "atari", "atari_sticky", "bipedal", "cartpole", "cartpole_device", "cartpole_masked", "gym",
        "gymnax_cartpole", "halfcheetah", "hopper", "lunarlander", "minigrid", "mountaincar_continuous", "mujoco",
        "pendulum", "popgym", "quadruped", "synthetic", "tmaze", "walker2d",
    }  # fmt: skip


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_converts_and_fits(composed, group, option):
    needs_extra(group, option)
    extra = NEEDS.get(option, []) if group in ("env", "ppo", "model") else []
    cfg = composed(f"{group}={option}", *extra)
    config, shape = convert(cfg)
    assert isinstance(config, Config)
    num_rollouts = config.ppo.rollouts_per_update
    batch_envs = num_rollouts * shape.local_num_envs if num_rollouts else config.env.num_envs
    assert shape.batch_size == batch_envs * config.training.rollout_steps
    assert stored.to_yaml(config) == stored.to_yaml(stored.from_omegaconf(cfg))


@pytest.mark.parametrize("env", [o for g, o in OPTIONS if g == "env"])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_every_task_fits_on_2_and_4_ranks(composed, env, world_size, scaling):
    overrides = [f"env={env}", f"dist.world_size={world_size}", f"scaling={scaling}", *NEEDS.get(env, [])]
    config, shape = convert(composed(*overrides))
    grown = 1 if scaling == "strong" else world_size
    assert shape.batch_size == grown * config.env.num_envs * config.training.rollout_steps


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_has_a_description_of_one_line(group, option):
    text = description(PRESETS[group, option])
    assert len(text) > 15
    assert text.endswith(".")
    assert len(text) < 120


def test_every_setting_has_a_meaning():
    def meanings(section, prefix=""):
        for item in fields(section):
            inner = item.default_factory
            if hasattr(inner, "__dataclass_fields__"):
                yield from meanings(inner, f"{prefix}{item.name}.")
            else:
                yield prefix + item.name, item.metadata["meaning"]

    assert [name for name, meaning in meanings(config_class()) if len(meaning) < 6] == []


TUNED = ["acrobot", "cartpole", "lunarlander", "mountaincar_continuous", "pendulum"]
ROBOTS = ["halfcheetah", "hopper", "walker2d"]
MODELS = {
    "atari": "cnn",
    "atari_sticky": "cnn",
    "circuit": "pairs",
    "cloud": "token_policy",
    "halfcheetah": "mlp_256",
    "bipedal": "mlp_robot",
    "hopper": "mlp_robot",
    "mujoco": "mlp_robot",
    "walker2d": "mlp_robot",
    "cartpole_masked": "lstm",
    "popgym": "lstm",
    "tmaze": "lstm",
}


@pytest.mark.parametrize("env", sorted({*TUNED, *ROBOTS, *MODELS} & {o for g, o in OPTIONS if g == "env"}))
def test_the_tuned_preset_comes_with_the_task_unless_another_is_named(composed, env):
    tuned = composed(f"env={env}").ppo
    assert tuned == composed(f"env={env}", f"ppo={env}").ppo
    default = composed(f"env={env}", "ppo=default").ppo
    assert tuned != default
    assert default.learning_rate == 3e-4
    assert composed(f"env={env}", "ppo.clip_coef=0.123").ppo == {**tuned, "clip_coef": 0.123}


@pytest.mark.parametrize("env", ["gym", "synthetic"])
def test_a_task_that_nothing_was_tuned_for_gets_the_general_settings(composed, env):
    assert composed(f"env={env}", *NEEDS.get(env, [])).ppo == composed("ppo=default").ppo


def test_a_model_may_come_with_the_task_unless_another_is_named(composed):
    assert composed("env=atari", "model=mlp").model == composed("model=mlp").model
    for env in [o for g, o in OPTIONS if g == "env"]:
        model = composed(f"model={MODELS.get(env, 'mlp')}").model
        assert composed(f"env={env}", *NEEDS.get(env, [])).model == model


def test_distributed_lands_at_dist(composed):
    cfg = composed("distributed=single")
    assert "distributed" not in cfg
    assert cfg.dist.world_size == 1
    assert composed("distributed=ddp", "dist.world_size=4").dist.world_size == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 16, 32])
def test_strong_scaling_keeps_a_batch_of_512(composed, world_size):
    sizes = ["env.num_envs=8", "ppo.rollout_steps=64", f"dist.world_size={world_size}"]
    _, shape = convert(composed("scaling=strong", *sizes))
    assert shape.batch_size == shape.num_envs * shape.rollout_steps == 512
    assert shape.fewest_envs == max(1, 8 // world_size)
    assert [i for rank in range(world_size) for i in shape.env_indices(rank)] == list(
        range(max(8, world_size))
    )


@pytest.mark.parametrize(("rule", "scale"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_weak_scaling_keeps_a_rank_s_batch_and_scales_the_learning_rate(composed, rule, scale):
    sizes = [
        "env.num_envs=8",
        "ppo.rollout_steps=64",
        "dist.world_size=4",
        f"scaling.learning_rate_rule={rule}",
    ]
    _, shape = convert(composed("scaling=weak", *sizes))
    assert shape.batch_size == 4 * 512
    assert shape.learning_rate_scale == scale


def test_a_resolved_configuration_reads_back_as_itself(composed, tmp_path):
    config, _ = convert(composed("env=synthetic", "++env.slow_ranks={0: 0.5}", "dist.world_size=2"))
    path = tmp_path / "config.yaml"
    path.write_text(stored.to_yaml(config))
    assert stored.load_config(path) == config
    config.env.kwargs = {"text": "${nothing} \\${more", "list": ["${x}"]}
    path.write_text(stored.to_yaml(config))
    assert stored.load_config(path) == config


def test_commands_of_one_second_name_different_folders_and_each_keeps_to_its_own():
    names = set()
    for _ in range(3):
        register()  # as every command does
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            job = GlobalHydra.instance().config_loader().load_sweep_config(cfg, ["seed=1"])  # as launchers do
        name = cfg.sweep.removeprefix("outputs/sweeps/")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[a-z0-9]{6}", name)
        assert job.sweep == job.hydra.sweep.dir == cfg.hydra.sweep.dir == cfg.sweep
        assert cfg.hydra.run.dir == f"outputs/cartpole/{name}"
        HydraConfig.instance().cfg = None
        names.add(name)
    assert len(names) == 3


WITHOUT_TORCH = """
import json, sys
from ddppo import train
try:
    train.main()
except SystemExit as e:
    assert not e.code, e.code
print(json.dumps([m for m in ("torch", "numpy", "gymnasium", "tensorboard") if m in sys.modules]))
"""


def without_torch(tmp_path, *arguments):
    result = run([sys.executable, "-c", WITHOUT_TORCH, *arguments], tmp_path)
    assert result.code == 0, result.stderr
    text, _, imported = result.stdout.rstrip("\n").rpartition("\n")
    assert json.loads(imported) == []
    return text


def test_help_all_lists_every_option_and_setting_and_imports_no_torch(tmp_path):
    text = without_torch(tmp_path, "--help", "all")
    shown = {line.strip() for line in text.splitlines()}
    for group, option in OPTIONS:
        expected = description(PRESETS[group, option])
        assert any(line.startswith(option) and line.endswith(expected) for line in shown), (group, option)
    settings = [
        *setting_names(config_class()),
        *(
            name
            for schema, section in schemas().items()
            if schema.startswith("hydra/")
            for name in setting_names(section, schema.rpartition("/")[0].replace("/", ".") + ".")
        ),
    ]
    for name in settings:
        if name.endswith("._target_"):
            assert name not in text
            continue
        assert re.search(rf"^  {re.escape(name)}=\S* +\S", text, re.MULTILINE), name
    for option in ("basic", "joblib", "optuna", "gp_ucb", "slurm", "slurm_local"):
        assert re.search(rf"^    {option} +\S", text, re.MULTILINE), option
    assert "sweep=<folder>" in text
    assert "  ppo.learning_rate=0.0003 " in text
    assert "  ppo.target_kl=null " in text
    assert "  log.tensorboard=true " in text


def test_version_names_ours_torch_s_and_hydra_s_and_imports_no_torch(tmp_path):
    assert re.fullmatch(r"ddppo \S+\ntorch \S+\nhydra \S+", without_torch(tmp_path, "--version"))


def test_cfg_job_shows_the_composed_configuration_and_imports_no_torch(tmp_path):
    text = without_torch(tmp_path, "--cfg", "job", "env=pendulum", "dist.world_size=4")
    assert "id: Pendulum-v1" in text
    assert "world_size: 4" in text
    assert not list(tmp_path.iterdir())


def test_help_fits_two_screens_names_every_option_and_says_how_to_see_the_rest(composed):
    text = shown_help()
    assert len(text.splitlines()) <= 100
    assert max(map(len, text.splitlines())) <= 120
    words = set(text.split())
    assert [option for group, option in OPTIONS if option not in words] == []
    assert "  ppo.learning_rate=0.0003 " in text
    assert "--help all " in text


def test_help_of_a_group_has_its_options_and_settings_alone(composed):
    text = shown_help("ppo")
    assert re.search(r"^    halfcheetah +Tuned", text, re.MULTILINE)
    assert "  ppo.gamma=0.99 " in text
    assert "  env.num_envs=" not in text
    assert "dist.world_size=1 " in shown_help("distributed")
    with pytest.raises(ConfigError, match=r"--help envs: .*did you mean env\?"):
        shown_help("envs")
