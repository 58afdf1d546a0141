"""The train door's arguments on their way to Hydra, and the names of a sweep's run folders."""

import hashlib
import re
from unittest import mock

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from ddppo import train
from ddppo.config import compose, presets
from ddppo.config.compose import folder_name, register
from ddppo.config.presets import conf_dir
from ddppo.errors import ConfigError
from ddppo.launch.arguments import one_line, prepared_arguments
from ddppo.launch.sweep import SweepFolder, check_objective
from ddppo.launch.sweep_runs import _OF_NO_ACCOUNT, objective


def test_folders_are_quoted_whatever_their_characters(tmp_path):
    awkward = f"{tmp_path}/a=(1), b's"
    assert prepared_arguments(["-m", f"sweep={awkward}"]) == [
        "-m",
        "sweep='{}'".format(awkward.replace("'", "\\'")),
    ]
    assert prepared_arguments(["-m", f"sweep='{tmp_path}'"]) == ["-m", f"sweep='{tmp_path}'"]


NASTY = (
    "a,b",
    "a=b",
    "a(b",
    "a'b",
    'a"b',
    "a{b",
    "a b",
    "[a",
    "a\\",
    "a\\'b",
    "~a",
    "1e5",
    "a:b",
    "null",
    "#a",
    "a\tb",
)


@pytest.mark.parametrize("name", NASTY)
def test_a_folder_is_what_was_written_after_hydra_has_read_it(name, tmp_path):
    for key in ("hydra.run.dir", "sweep"):
        flags = ["-m"] if key == "sweep" else []
        argument = prepared_arguments([*flags, f"{key}={tmp_path}/{name}"])[-1]
        (override,) = OverridesParser.create().parse_overrides([argument])
        assert override.value() == f"{tmp_path}/{name}"


def test_an_interpolation_in_a_folder_s_name_is_resolved():
    assert prepared_arguments(["hydra.run.dir=out/${seed}"]) == ["hydra.run.dir='out/${seed}'"]


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_addresses_are_what_was_written_after_hydra_has_read_them(quote):
    urls = ["ws://[::1]:8000", "ws://127.0.0.1:8000", "wss://[fd00::a1]"]
    written = ",".join(f"{quote}{url}{quote}" for url in urls)
    (override,) = OverridesParser.create().parse_overrides(prepared_arguments([f"env.urls=[{written}]"]))
    assert override.value() == urls


def test_whole_numbers_are_written_out_where_an_integer_is_meant():
    for given, prepared in {
        "ppo.total_steps=1e5,2e5": "ppo.total_steps=100000,200000",
        "ppo.total_steps=range(1e3,3e3,1e3)": "ppo.total_steps=range(1000,3000,1000)",
        "ppo.total_steps=1_000_000": "ppo.total_steps=1000000",
        "+seed=choice(1e1,2)": "+seed=choice(10,2)",
        "model.hidden_sizes=[1e2,6_4]": "model.hidden_sizes=[100,64]",
        "env.max_episode_steps=2.5e3": "env.max_episode_steps=2500",
        "ppo.total_steps=1.5e0": "ppo.total_steps=1.5e0",
        "ppo.total_steps=1e999999999": "ppo.total_steps=1e999999999",
        "ppo.total_steps=${x1e5}": "ppo.total_steps=${x1e5}",
        "ppo.learning_rate=1e1": "ppo.learning_rate=1e1",
        "env.kwargs.limit=1e3": "++env.kwargs.limit=1e3",
    }.items():
        assert prepared_arguments(["-m", given]) == ["-m", prepared]


def test_flags_may_stand_between_settings():
    given = ["seed=1", "--cfg", "job", "env=pendulum"]
    assert prepared_arguments(given) == ["--cfg", "job", "seed=1", "env=pendulum"]


@pytest.fixture
def jobs_of(monkeypatch, tmp_path):
    """Return the configurations, Hydra's part included, that a command gives to its jobs, and how often it composed."""
    compose.register()
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    composing, num_composed = ConfigLoaderImpl._load_configuration_impl, []

    def counted(*arguments, **more):
        num_composed.append(1)
        return composing(*arguments, **more)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)

    def run(*arguments):
        jobs = []
        folders = (f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}")
        monkeypatch.setattr("sys.argv", ["train.py", *arguments, *folders])

        def job(cfg):
            jobs.append((OmegaConf.to_yaml(cfg), OmegaConf.to_yaml(HydraConfig.get())))

        num_composed.clear()
        with SweepFolder.during_command():
            hydra.main(version_base="1.3", config_path=str(presets.conf_dir()), config_name="config")(job)()
        return jobs, len(num_composed)

    return run


@pytest.mark.parametrize(
    ("arguments", "num_jobs", "num_composed"),
    [
        (["seed=3"], 1, 1),
        (["env=pendulum", "hydra.mode=RUN"], 1, 1),
        # Hydra composes the whole sweep twice, then each job twice.
        (["-m", "seed=1,2"], 2, 6),
        (["hydra.mode=MULTIRUN", "seed=1,2"], 2, 6),
        (["-m", "seed=1"], 1, 4),
    ],
)
def test_a_single_run_is_composed_once_and_as_hydra_does_it(jobs_of, arguments, num_jobs, num_composed):
    jobs, count = jobs_of(*arguments)
    assert (len(jobs), count) == (num_jobs, num_composed)
    with mock.patch.object(Hydra, "get_mode", compose._get_mode):
        by_hydra, _ = jobs_of(*arguments)
    assert jobs == by_hydra


def test_a_mistake_has_the_message_that_hydra_gives_it(jobs_of):
    for wrong in (["seed=x"], ["env=cartpool"], ["no.such=1"], ["seed=1,2"]):
        with pytest.raises(HydraException) as ours:
            jobs_of(*wrong)
        with (
            mock.patch.object(Hydra, "get_mode", compose._get_mode),
            pytest.raises(HydraException) as of_hydra,
        ):
            jobs_of(*wrong)
        assert str(ours.value) == str(of_hydra.value)


def completions(words, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", f"ddppo-train {words}")
    monkeypatch.setenv("COMP_POINT", "99")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr("sys.argv", ["train.py", "-sc", "query=bash"])
    train.main()
    return capsys.readouterr().out.split()


def test_the_seeds_of_a_sweep_come_first_so_that_they_take_turns_over_w():
    given = ["-m", "env=cartpole", "dist.world_size=1,2", "seed=0,1"]
    assert prepared_arguments(given) == ["-m", "seed=0,1", "env=cartpole", "dist.world_size=1,2"]
    assert prepared_arguments(["env=cartpole", "seed=1"]) == ["env=cartpole", "seed=1"]


def test_completion_offers_the_options_of_a_group_and_no_schema(monkeypatch, capsys):
    assert completions("scaling=", monkeypatch, capsys) == ["scaling=strong", "scaling=weak"]
    assert "hydra/launcher=basic" in completions("hydra/launcher=", monkeypatch, capsys)
    for words in ("", "env=", "hydra/launcher=", "ppo=", "model="):
        assert "schema" not in " ".join(completions(words, monkeypatch, capsys))


def test_mappings_whose_keys_users_make_up_are_added():
    assert prepared_arguments(["env.kwargs.g=1", "seed=2"]) == ["++env.kwargs.g=1", "seed=2"]


def test_a_keyword_that_the_task_s_preset_names_is_a_setting_of_env():
    for given, prepared in {
        ("env=tmaze", "env.length=3"): "++env.kwargs.length=3",
        ("env=synthetic", "+env.tail={a: 1}"): "++env.kwargs.tail={a: 1}",
        ("env=cartpole,tmaze", "env.length=3,5"): "++env.kwargs.length=3,5",
        ("experiment=topologies/slow", "env.step_time_s=0.1"): "++env.kwargs.step_time_s=0.1",
        ("env=tmaze", "env.num_envs=4"): "env.num_envs=4",
        ("env=tmaze", "env.kwargs.length=5"): "++env.kwargs.length=5",
    }.items():
        assert prepared_arguments(["-m", *given])[-1] == prepared


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("env=tmaze env.lenth=3", ["env.lenth (did you mean env.length", "env=tmaze also length"]),
        ("env=tmaze env.num_env=3", ["did you mean env.num_envs", "env has id, num_envs, backend"]),
        ("env.length=3", ["no setting env.length", "env has id,", "env.kwargs.<keyword>"]),
    ],
)
def test_what_is_neither_a_setting_of_env_nor_a_keyword_of_the_task_is_told_with_both_lists(given, said):
    with pytest.raises(ConfigError) as raised:
        prepared_arguments(given.split())
    assert all(part in str(raised.value) for part in said), raised.value


def test_of_a_resumed_run_every_keyword_is_known_and_cannot_change(tmp_path):
    (tmp_path / "config.yaml").touch()
    given = [f"resume={tmp_path}", "env.length=3"]
    assert prepared_arguments(given)[1] == "++env.kwargs.length=3"


@pytest.mark.parametrize("flag", ["-m", "--multirun", "hydra.mode=MULTIRUN"])
def test_every_way_to_ask_for_a_multirun_allows_a_sweep_folder(flag, tmp_path):
    assert prepared_arguments([flag, f"sweep={tmp_path}"]) == [flag, f"sweep='{tmp_path}'"]


def test_names_of_run_folders_have_no_slash_and_no_prefix_and_tell_settings_apart():
    assert folder_name("dist.world_size-2_seed-0") == "dist.world_size-2_seed-0"
    assert folder_name("++env.kwargs.g-1_seed-0") == "env.kwargs.g-1_seed-0"
    assert folder_name("++env.slow_ranks-{0:1}_seed-0").startswith("env.slow_ranks--0-1-_seed-0-")
    assert folder_name("env.id-pkg/mod:X-v0").startswith("env.id-pkg-mod-X-v0-")
    assert folder_name("env.id-pkg/mod:X-v0") != folder_name("env.id-pkg:mod/X-v0")
    assert folder_name("") == "run"


def test_a_long_name_of_a_run_folder_becomes_w_a_hash_and_the_seed(tmp_path):
    many = "_".join(f"section.setting_{i}-{i}" for i in range(40))
    names = [folder_name(f"{many}_seed-{seed}", tmp_path) for seed in range(3)]
    assert names == sorted(set(names))
    assert (
        len({name.rpartition("_")[0] for name in names}) == 1
    )  # the seed apart, their settings are the same
    assert re.fullmatch(r"run_[0-9a-f]{8}_seed-2", names[2])
    assert names[2] != folder_name(f"{many}_ppo.seed-2_seed-2")
    name = folder_name(f"dist.world_size-16_ppo.seed-3_{many}_seed-12")
    assert re.fullmatch(r"dist\.world_size-16_[0-9a-f]{8}_seed-12", name)
    assert len(set(map(folder_name, (f"a-{i}_{many}_z-1" for i in range(3))))) == 3
    # A sweep that an earlier version began goes on in its folders.
    few = "dist.world_size-2_env-cartpole_ppo.learning_rate-0.0003_model.hidden_sizes-[32,32]_seed-0"
    old = "dist.world_size-2_env-cartpole_ppo.learning_rate-0.0003_model.hidden_sizes--32-32-_seed-0-"
    old += hashlib.sha256(few.encode()).hexdigest()[:6]
    assert len(folder_name(few, tmp_path)) == 33
    (tmp_path / old).mkdir()
    assert folder_name(few, tmp_path) == old


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ([], "cartpole"),
        (["env=gym", "env.id=my_pkg.envs:MyEnv-v0"], "MyEnv-v0"),
        (["env=gym", "env.id=LunarLander-v3"], "LunarLander-v3"),
        (["env=atari", "env.id=ALE/Breakout-v5"], "ALE-Breakout-v5"),
        (["env=atari"], "atari"),
        (["env=gym", "env.id=..:.."], "gym"),
    ],
)
def test_runs_of_one_task_share_a_folder_of_outputs(settings, folder):
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = compose("config", settings, return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)
            assert re.fullmatch(rf"outputs/{re.escape(folder)}/[^/]+", cfg.hydra.run.dir)
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None


def test_settings_that_change_nothing_about_a_run_stay_out_of_its_folder_s_name():
    cfg = OmegaConf.load(presets.conf_dir() / "config.yaml")
    excluded = set(cfg.hydra.job.config.override_dirname.exclude_keys)
    assert excluded == _OF_NO_ACCOUNT - {"resume"} | {"experiment"}


def sweeping(direction, **settings):
    cfg = {"hydra": {"sweeper": {"direction": direction}}, "objective": "eval_return"}
    return OmegaConf.create(cfg | {"eval": {"final_episodes": 1}} | settings)


def test_a_sweeper_looks_for_the_best():
    check_objective(sweeping("maximize"))
    check_objective(sweeping("minimize", objective="time_to_target"))
    check_objective(OmegaConf.create({"hydra": {"sweeper": {"params": None}}}))  # optimises nothing
    with pytest.raises(ConfigError, match=r"needs .*direction=maximize"):
        check_objective(sweeping("minimize"))
    with pytest.raises(ConfigError, match=r"needs .*direction=minimize"):
        check_objective(sweeping("maximize", objective="time_to_target"))
    with pytest.raises(ConfigError, match="without a value"):
        check_objective(sweeping("maximize", eval={"final_episodes": 0}))


def test_the_objective_is_the_final_score_or_the_seconds_to_the_target():
    summary = {"eval": {"final": {"return_mean": 7.5}}, "target": {"time_to_target_s": 12}}
    assert objective(summary, "eval_return") == 7.5
    assert objective(summary, "time_to_target") == 12.0
    never = {"eval": {"final": None}, "target": {"time_to_target_s": None}}
    assert objective(never, "time_to_target") == float("inf")
    assert objective(never, "eval_return") is None


def test_an_error_fits_on_one_line_and_names_its_class_unless_it_is_ours():
    assert one_line(ConfigError("a\n  b")) == "a b"
    assert one_line(ZeroDivisionError("a\n  b")) == "ZeroDivisionError: a b"


@pytest.mark.parametrize("folder", ["/proc/nothing", "x" * 300, "file/below", "file"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can be written to"):
        prepared_arguments([f"hydra.run.dir={folder}"])
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
