"""Mistakes at the door `ddppo.train`: one paragraph, exit code 2, nothing left behind, no rank started."""

import os
import shutil
import sys

import gymnasium as gym
import pytest
import torch

from ddppo import train
from ddppo.config import settings, stored
from ddppo.distributed.topologies.settings import EnvWorkersSettings
from ddppo.launch.arguments import composed
from ddppo.records.run_folder import held
from tests.support import TINY, door, run

SMALL = (*TINY, "ppo.total_steps=64", "ppo.rollout_steps=8")
NEEDS_NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Call the door in this process; returns (exit code, stderr)."""

    def call_door(*arguments, in_run_dir=True):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the door sets it; this puts it back
        in_run_dir = in_run_dir and not {"-m", "hydra.mode=MULTIRUN"} & set(arguments)
        where = [f"hydra.run.dir={tmp_path / 'outputs' / 'run'}"] if in_run_dir else []
        monkeypatch.setattr("sys.argv", ["train.py", *SMALL, *arguments, *where])
        with pytest.raises(SystemExit) as ended:
            train.main()
        return ended.value.code, capsys.readouterr().err

    return call_door


@pytest.fixture
def no_ranks(monkeypatch):
    monkeypatch.setattr("ddppo.launch.checks.available_cores", lambda: 2)

    def started(*arguments):
        raise AssertionError(f"ranks were started: {arguments}")

    monkeypatch.setattr("ddppo.launch.local_ranks.start_ranks", started)
    monkeypatch.setattr("ddppo.loop.rank.train_rank", started)


def assert_one_paragraph(stderr):
    assert stderr.startswith("error: ")
    assert stderr.endswith("\n")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    assert "Set the environment variable" not in stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        # names
        ("env.id=CartPol-v1", ["env.id=CartPol-v1", "CartPole-v1"]),
        ("env.id=CartPole-v9", ["env.id=CartPole-v9", "CartPole-v0, CartPole-v1"]),
        ("env.id=nomod:Foo-v0", ["nomod", "cannot be imported"]),
        ("env=gym", ["env.id must be given"]),
        ("env=cartpol", ["env=cartpol", "did you mean cartpole"]),
        ("scaling=week", ["scaling=week", "did you mean weak?"]),
        ("distributed=dpp", ["distributed=dpp", "did you mean ddp?"]),
        ("model=mpl", ["model=mpl", "did you mean mlp?"]),
        ("ppo.gama=0.9", ["ppo.gama", "ppo.gamma"]),
        ("gamma=0.9", ["there is no setting gamma"]),
        ("dist.backend=gloo", ["dist.backend is called dist.collective now"]),
        ("+foo=1", ["foo"]),
        ("env", ["'env'"]),
        ("model.name=mpl", ["model.name=mpl", "mlp"]),
        ("model.name=nomod:Model", ["model.name=nomod:Model", "cannot be imported"]),
        ("model.name=torch.nn:Nope", ["model.name=torch.nn:Nope", "Nope"]),
        (
            "model.name=tests.fault.saboteurs:ColumnModel",
            ["ColumnModel.value returned values of shape [8, 1] for obs [8, 4]", "add .squeeze(-1)"],
        ),
        ("model.hidden_sizes=[3000000,3000000]", ["model.hidden_sizes=[3000000, 3000000]", "smaller layers"]),
        ("model.activation=tahn", ["model.activation=tahn", "did you mean tanh?"]),
        ("device=gpu", ["device=gpu", "cpu"]),
        ("env.kwargs.gravity=1", ["env.kwargs.gravity", "sutton_barto_reward"]),
        ("env=synthetic env.kwargs.step_time=1", ["env.kwargs.step_time", "did you mean step_time_s?"]),
        # values
        ("env.num_envs=-8", ["env.num_envs=-8", "at least 1"]),
        ("ppo.rollout_steps=0", ["ppo.rollout_steps=0", "at least 1"]),
        ("ppo.total_steps=-1", ["ppo.total_steps=-1", "at least 1"]),
        ("ppo.total_steps=1.5", ["ppo.total_steps=1.5", "not a whole number"]),
        ("ppo.total_steps=1e-3", ["ppo.total_steps=1e-3", "not a whole number"]),
        ("ppo.total_steps=1e99", ["ppo.total_steps=1e99", "not a whole number"]),
        ("ppo.total_steps=many", ["ppo.total_steps=many", "not a whole number"]),
        ("ppo.gamma=high", ["ppo.gamma=high", "not a number"]),
        ("log.tensorboard=maybe", ["log.tensorboard=maybe", "not true or false"]),
        ("ppo.learning_rate=0", ["ppo.learning_rate=0", "greater than 0"]),
        ("ppo.learning_rate=nan", ["ppo.learning_rate=nan", "finite"]),
        ("ppo.learning_rate=inf", ["ppo.learning_rate=inf", "finite"]),
        ("target_return=nan", ["target_return=nan", "finite"]),
        ("ppo.gamma=1.5", ["ppo.gamma=1.5", "at most 1"]),
        ("ppo.clip_coef=null", ["ppo.clip_coef=null", "not Optional"]),
        ("model.hidden_sizes=[]", ["model.hidden_sizes=[]", "at least one layer"]),
        ("model.hidden_sizes=[64,0]", ["model.hidden_sizes=[64, 0]", "at least 1 unit"]),
        ("checkpoint.keep=0", ["checkpoint.keep=0", "at least 1"]),
        ("dist.world_size=0", ["dist.world_size=0", "at least 1"]),
        ("env.num_envs=8,16", ["env.num_envs=8,16", "--multirun"]),
        # sizes that do not fit together
        (
            "dist.world_size=7 env.num_envs=4",
            [
                "dist.world_size=7",
                "4 * ppo.rollout_steps=8 = 32",
                "use at most 4",
                "multiple of 7",
                "scaling=weak",
            ],
        ),
        ("ppo.num_minibatches=65", ["ppo.num_minibatches=65", "8 envs * 8 steps = 64"]),
        ("distributed=single dist.world_size=2", ["dist.world_size=2", "use distributed=ddp"]),
        ("env.slow_ranks={2:0.1} dist.world_size=2", ["env.slow_ranks", "rank 2", "0 to 1"]),
        (
            "env.num_workers=5 env.backend=pool dist.world_size=2",
            ["env.num_workers=5", "4 environments of a rank"],
        ),
        ("env.backend=async", ["env.backend=async is now pool"]),
        ("env.backend=native", ["env.backend=native is called env.backend=gym_vector now"]),
        ("env.slow_ranks={0:-1}", ["env.slow_ranks", "at least 0"]),
        # settings without effect
        ("env.num_workers=2 env.backend=sync", ["env.num_workers=2", "no effect", "env.backend=pool"]),
        ("dist.bucket_cap_mb=5", ["dist.bucket_cap_mb=5", "no effect", "dist.grad_sync=ddp"]),
        ("ppo.adaptive_kl=0.1", ["ppo.adaptive_kl=0.1", "no effect", "ppo.lr_schedule=adaptive"]),
        ("scaling.learning_rate_rule=sqrt", ["scaling.learning_rate_rule=sqrt", "no effect", "scaling=weak"]),
        ("dist.max_restarts=5", ["dist.max_restarts=5", "no effect", "dist.on_lost=restart"]),
        (
            "dist.on_lost=restart",
            ["dist.on_lost=restart", "no effect", "dist.world_size=1", "env.backend=pool"],
        ),
        ("target_return=5 eval.final_episodes=0", ["target_return=5", "eval.every_steps"]),
        # the machine
        ("dist.collective=nccl device=cpu", ["dist.collective=nccl", "dist.collective=shm"]),
        pytest.param("device=cuda", ["device=cuda", "device=cpu"], marks=NEEDS_NO_GPU),
        pytest.param("dist.collective=nccl", ["dist.collective=nccl", "shm or gloo"], marks=NEEDS_NO_GPU),
        ("dist.world_size=4 dist.oversubscribe=refuse", ["dist.world_size=4", "2 cores", "at most 2 ranks"]),
        # sweeps
        ("sweep=somewhere", ["sweep=somewhere", "add -m"]),
        ("-m sweep=", ["sweep= names no folder"]),
        ("-m sweep=null", ["sweep=null names no folder"]),
        ("-m experiment=a,b", ["experiment=a,b", "a command for each"]),
        ("-m --cfg job", ["--cfg", "leave -m out"]),
        ("seed=range(3)", ["seed=range(3)", "--multirun"]),
        ("objective=time_to_target", ["objective=time_to_target", "no effect on one run", "add -m"]),
        ("-m hydra/launcher=baisc", ["hydra/launcher=baisc", "did you mean basic"]),
        ("hydra/launcher=joblib", ["hydra/launcher=joblib", "no effect on one run"]),
        ("hydra/sweeper=optuna", ["hydra/sweeper=optuna", "no effect on one run"]),
        ("hydra.launcher.n_jobs=2", ["hydra.launcher.n_jobs=2", "no effect on one run"]),
        ("hydra.sweep.dir=somewhere", ["hydra.sweep.dir=somewhere", "no effect on one run"]),
        ("-m hydra.run.dir=somewhere", ["hydra.run.dir=somewhere", "sweep=<folder>"]),
        ("-m sweep=a hydra.sweep.dir=b", ["sweep=a", "hydra.sweep.dir=b", "sweep= alone"]),
        ("-m hydra/sweeper=nevergrad", ["hydra/sweeper=nevergrad", "basic"]),
        # sections and their groups
        ("dist=ddp", ["dist=ddp", "use distributed=ddp"]),
        ("log=none", ["log=none", "log.progress"]),
        ("compile=true", ["compile=True", "must be one of auto, on, torch, off", "quote it"]),
        ("env=schema", ["env=schema", "must be one of", "cartpole"]),
        ("~ppo.gamma", ["~ppo.gamma", "leave it out"]),
        # flags
        ("--hlep", ["--hlep"]),
        ("--mult", ["--mult"]),
        ("--cfg jbo", ["--cfg", "jbo", "job"]),
        ("--resolve", ["--resolve", "--cfg job"]),
        ("--info all --cfg job", ["--cfg and --info"]),
        ("-sc install=csh", ["install=csh", "bash"]),
        ("experiment=tune/carpole", ["experiment=tune/carpole", "did you mean tune/cartpole"]),
        # tasks
        ("env=gym env.id=tests.fault.saboteurs:TextObs-v0", ["observation space Text", "not supported"]),
        ("env=gym env.id=tests.fault.saboteurs:DictActions-v0", ["action space", "not supported"]),
        (
            "env=gym env.id=tests.unit.seen_tasks:seen/Picture-v0 ppo.normalize_obs=true",
            ["ppo.normalize_obs=true", "nothing but pixels", "use ppo.normalize_obs=false"],
        ),
        ("env.backend=gym_vector env.id=Acrobot-v1", ["env.backend=gym_vector", "use env.backend=sync"]),
        # resuming
        ("resume=/no/such/folder", ["resume=/no/such/folder", "not a run folder"]),
        ("resume=", ["resume=", "not a run folder"]),
    ],
)
def test_a_mistake_costs_one_paragraph_and_leaves_nothing(call, no_ranks, tmp_path, arguments, said):
    code, stderr = call(*arguments.split())
    assert code == 2
    assert_one_paragraph(stderr)
    for words in said:
        assert words in stderr
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named_with_the_pip_command(call, no_ranks, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it were not installed
    for name in [n for n in sys.modules if n.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    assert "LunarLander-v3" in gym.registry
    code, stderr = call("env=lunarlander")
    assert code == 2
    assert_one_paragraph(stderr)
    assert "pip install 'box2d>=" in stderr
    assert not list(tmp_path.iterdir())


WITHOUT_PLUGINS = """
import sys
try:
    import hydra_plugins
except ModuleNotFoundError:  # neither is installed: ours are found by their path
    hydra_plugins = None
from ddppo.config import settings, stored
from ddppo import train
if hydra_plugins is not None:
    hydra_plugins.__path__ = []  # where pip puts them
for argument in ("experiment=tune/cartpole", "hydra/sweeper=optuna", "hydra/launcher=joblib"):
    sys.argv[1:] = ["-m", argument, "sweep=" + sys.argv[-1].removeprefix("sweep=").strip("'")]
    try:
        train.main()
    except SystemExit as e:
        assert e.code == 2, e.code
"""


def test_sweepers_and_launchers_of_an_extra_are_named_with_the_pip_command(tmp_path):
    result = run([sys.executable, "-c", WITHOUT_PLUGINS, str(tmp_path / "sweep")], tmp_path)
    assert result.code == 0, result.stderr
    needs = (
        "needs a package that is not installed: pip install 'hydra-optuna-sweeper>=1.2' 'hydra-joblib-launcher>=1.2' "
        "'sqlalchemy<2'"
    )
    assert result.stderr.splitlines() == [
        f"error: hydra/sweeper=optuna {needs}",
        f"error: hydra/sweeper=optuna {needs}",
        f"error: hydra/launcher=joblib {needs}",
    ]
    assert not list(tmp_path.iterdir())


def test_a_second_command_on_a_sweep_folder_is_refused_in_one_sentence(call, no_ranks, tmp_path):
    folder = tmp_path / "sweep"
    with held(folder):
        code, stderr = call("-m", "seed=0,1", f"sweep={folder}")
    assert code == 2
    assert_one_paragraph(stderr)
    assert f"sweep={folder} is in use by another command" in stderr
    assert [p.name for p in folder.iterdir()] == [".lock"]


def test_a_sweep_of_which_no_run_can_begin_says_why_of_each_and_leaves_nothing(call, no_ranks, tmp_path):
    code, stderr = call("-m", "ppo.gamma=2,3", f"sweep={tmp_path / 'a' / 'sweep'}")
    assert code == 1
    assert stderr.count("ppo.gamma=2.0: must be at most 1\n") == 2  # as it happens, and at the end
    assert stderr.count("ppo.gamma=3.0: must be at most 1\n") == 2
    assert "Error executing job" not in stderr
    assert not list(tmp_path.iterdir())


def test_what_was_in_a_sweep_s_folder_stays_when_no_run_can_begin(call, no_ranks, tmp_path):
    (tmp_path / "sweep.jsonl").write_text("{}\n")
    call("-m", "ppo.gamma=2,3", f"sweep={tmp_path}")
    assert (tmp_path / "sweep.jsonl").read_text().startswith("{}\n")


def test_more_ranks_than_cores_are_a_warning_where_they_may_be(call, monkeypatch):
    monkeypatch.setattr("ddppo.launch.checks.available_cores", lambda: 2)
    monkeypatch.setattr("ddppo.launch.local_ranks.start_ranks", lambda *arguments: sys.exit(7))
    code, stderr = call("dist.world_size=4")
    assert code == 7
    assert stderr == (
        "warning: dist.world_size=4 exceeds this machine's 2 cores: ranks take turns, so results stay the "
        "same and times are not those of 4 cores\n"
    )


def test_layers_that_compute_with_the_rest_of_the_batch_are_a_warning_with_their_name(call, monkeypatch):
    monkeypatch.setattr("ddppo.loop.rank.train_rank", lambda *arguments: sys.exit(7))
    code, stderr = call("model.name=tests.fault.saboteurs:NormedModel")
    assert code == 7
    assert stderr.startswith(
        "warning: model.name=tests.fault.saboteurs:NormedModel: layers policy_trunk.0 (BatchNorm1d)"
    )
    assert stderr.count("\n") == 1


def test_a_single_run_of_an_experiment_that_is_a_sweep_says_so(call, monkeypatch):
    monkeypatch.setattr("ddppo.loop.rank.train_rank", lambda *arguments: sys.exit(7))
    code, stderr = call("experiment=learning_classic")
    assert code == 7
    assert stderr == "warning: experiment=learning_classic is a sweep, and this is one run of it: add -m\n"


def be_rank_0_of_2(monkeypatch, **more):
    """Set what torchrun would. The other rank is not there to be told anything, and the end is none of the tests'."""
    told = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    for name, value in (told | {"MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"} | more).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("ddppo.launch.rank._has_told", True)
    monkeypatch.setattr("ddppo.distributed.join.leave", sys.exit)


def test_torchrun_and_dist_world_size_must_agree(call, no_ranks, monkeypatch):
    be_rank_0_of_2(monkeypatch)
    code, stderr = call("dist.world_size=4")
    assert code == 2
    assert "dist.world_size=4, but torchrun started 2 ranks" in stderr
    code, stderr = call("-m")
    assert code == 2
    assert_one_paragraph(stderr)


def test_mpirun_starts_one_run_of_as_many_ranks_as_it_started(call, no_ranks, monkeypatch):
    be_rank_0_of_2(monkeypatch, OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    for name in ("DDPPO_LAUNCHER", "DDPPO_HOST_CORES"):
        monkeypatch.setenv(name, "")  # set by the command, to be gone behind the test
    assert call("dist.world_size=4") == (
        2,
        "error: dist.world_size=4, but mpirun started 2 ranks: leave it out\n",
    )
    assert call("-m") == (2, "error: -m starts several runs, mpirun one: use one or the other\n")


def test_what_torchrun_would_start_again_must_find_its_run(call, no_ranks, monkeypatch):
    be_rank_0_of_2(monkeypatch, TORCHELASTIC_MAX_RESTARTS=3)
    code, stderr = call()
    assert code == 2
    assert "add resume=auto hydra.run.dir=<folder>, or leave --max-restarts out" in stderr
    assert_one_paragraph(stderr)


def test_what_torchrun_left_in_the_shell_counts_under_torchrun_only(call, monkeypatch):
    monkeypatch.setattr("ddppo.loop.rank.train_rank", lambda *arguments: sys.exit(7))
    for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "64")
    assert call() == (7, "")  # neither a warning of 64 ranks on this machine
    assert "LOCAL_WORLD_SIZE" not in os.environ  # nor cores and a GPU for them later


@pytest.mark.parametrize("written", ["1e5", "100_000", "1.0e+5", "1E5"])
def test_whole_numbers_are_read_however_they_are_written(call, monkeypatch, tmp_path, written):
    monkeypatch.setattr("ddppo.loop.rank.train_rank", lambda *arguments: sys.exit(7))
    code, stderr = call(f"ppo.total_steps={written}", "model.hidden_sizes=[1e1,2_0]")
    assert (code, stderr) == (7, "")
    config = stored.load_config(tmp_path / "outputs" / "run" / "config.yaml")
    assert config.ppo.total_steps == 100_000
    assert config.model.hidden_sizes == [10, 20]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A complete run of 2 iterations with a checkpoint after each."""
    run_dir = tmp_path_factory.mktemp("train_door") / "run"
    result = door(*SMALL, "ppo.total_steps=128", "checkpoint.every_steps=64", run_dir=run_dir)
    assert result.code == 0, result.stderr
    return run_dir


@pytest.fixture
def copied_run(finished_run, tmp_path):
    return shutil.copytree(finished_run, tmp_path / "copy")


def test_a_run_folder_that_holds_a_run_is_not_written_to(call, no_ranks, finished_run):
    before = contents(finished_run)
    code, stderr = call(f"hydra.run.dir={finished_run}", in_run_dir=False)
    assert code == 2
    assert_one_paragraph(stderr)
    assert f"resume={finished_run}" in stderr
    assert contents(finished_run) == before


@pytest.fixture
def refused(monkeypatch, capsys, no_ranks):
    """Call the door with resume= and return stderr, sure that it refused and that nothing in the run changed."""

    def call_door(run_dir, *arguments):
        before = contents(run_dir)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["train.py", f"resume={run_dir}", *arguments])
        with pytest.raises(SystemExit) as ended:
            train.main()
        stderr = capsys.readouterr().err
        assert ended.value.code == 2
        assert_one_paragraph(stderr)
        assert contents(run_dir) == before
        return stderr

    return call_door


def test_a_complete_run_is_not_resumed(refused, copied_run):
    assert "complete at 128 of ppo.total_steps=128" in refused(copied_run)


def test_a_folder_without_a_configuration_is_not_resumed(refused, tmp_path):
    assert "not a run folder" in refused(tmp_path)


@pytest.mark.parametrize("value", [{"model": {}}, [1, 2], {"format": "ddppo-checkpoint", "version": 99}])
def test_a_foreign_checkpoint_is_named(refused, copied_run, value):
    last = copied_run / "checkpoints" / "iteration_00000002.pt"
    torch.save(value, last)
    assert str(last) in refused(copied_run, "ppo.total_steps=256")


def test_a_configuration_that_is_not_ours_is_named(refused, copied_run):
    path = copied_run / "config.yaml"
    whole = path.read_text()
    for text, said in {
        "a: 1\n": "no setting a;",
        "a: [1\n": "not readable YAML",
        "": "holds nothing",
        "null\n": "holds nothing",
        "{}\n": "holds nothing",
        "- 1\n- 2\n": "holds a list",
        "just words\n": "just words",
        "\x00\x01": "not readable YAML",
        whole + "gamma: 0.9\n": "no setting gamma (did you mean",
        whole.replace("gamma:", "gama:"): "gama",
        whole.replace("num_envs: 8", "num_envs: many"): "env.num_envs: many is not a whole number",
        whole.replace("num_envs: 8", "num_envs: ${nothing}"): "nothing",
        whole.replace("env:", "env: null\nold:", 1): "env",
    }.items():
        path.write_text(text)
        stderr = refused(copied_run, "ppo.total_steps=256")
        assert str(path) in stderr, text
        assert said in stderr, text


@pytest.mark.parametrize(
    "change", ["ppo.gamma=0.5", "seed=1", "env=pendulum", "env.num_envs=16", "dtype=float64"]
)
def test_a_resumed_run_may_not_become_a_different_one(refused, copied_run, change):
    stderr = refused(copied_run, change, "ppo.total_steps=256")
    assert change in stderr
    assert "ppo.total_steps" in stderr


def test_resuming_at_a_world_size_that_does_not_fit_is_refused(refused, copied_run):
    assert "dist.world_size=11" in refused(copied_run, "dist.world_size=11", "ppo.total_steps=256")
    assert "change the batch" in refused(copied_run, "dist.world_size=16", "ppo.total_steps=256")


NASTY = ("a,b=c(d'e{f g}h[i\"j$k\\l", "~a\\")


@pytest.mark.parametrize("name", NASTY)
def test_a_run_is_resumed_whatever_its_folder_is_called(name, finished_run, tmp_path, monkeypatch):
    run_dir = shutil.copytree(finished_run, tmp_path / name)
    resumed = []
    monkeypatch.setattr("ddppo.loop.rank.train_rank", resumed.append)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for _ in range(2):  # the second time from the configuration that names the folder
        monkeypatch.setattr("sys.argv", ["train.py", f"resume={run_dir}", "ppo.total_steps=256"])
        train.main()
        assert stored.load_config(run_dir / "config.yaml").resume == str(run_dir)
    assert resumed == [run_dir, run_dir]
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_a_folder_that_reads_as_an_interpolation_is_named(refused, finished_run, tmp_path):
    assert "rename it" in refused(shutil.copytree(finished_run, tmp_path / "${x}b"))


def test_resume_and_another_folder_exclude_each_other(refused, copied_run, tmp_path):
    assert "stays in its folder" in refused(copied_run, f"hydra.run.dir={tmp_path / 'other'}")


def test_resume_and_multirun_exclude_each_other(refused, copied_run):
    assert "-m" in refused(copied_run, "-m", "ppo.total_steps=256")


def test_in_a_process_of_its_own_a_mistake_says_the_same(tmp_path):
    result = door(*SMALL, "env.id=CartPol-v1", "dist.world_size=2", run_dir=tmp_path / "outputs" / "run")
    assert result.code == 2
    assert result.stdout == ""
    assert_one_paragraph(result.stderr)
    assert not list(tmp_path.iterdir())


def test_a_run_from_before_dist_collective_keeps_what_its_dist_backend_said(tmp_path):
    from ddppo.config import stored
    from ddppo.config.settings import Config

    config = Config()
    config.env.id, config.dist.collective = "CartPole-v1", "gloo"
    text = stored.to_yaml(config)
    assert "  collective: gloo\n" in text
    (tmp_path / "config.yaml").write_text(text.replace("  collective: gloo\n", "  backend: gloo\n"))
    assert stored.load_config(tmp_path / "config.yaml").dist.collective == "gloo"


def test_a_kept_configuration_is_the_one_in_its_file_and_no_reader_can_change_it(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_kept", {})
    path = tmp_path / "config.yaml"
    config = composed(["env=cartpole", "++env.kwargs.size='12:30'", "ppo.learning_rate=1e-5"])
    path.write_text(stored.to_yaml(config))
    parsed = stored.load_config(path)
    stored.keep(config)
    first = stored.load_config(path)
    assert repr(first) == repr(parsed)
    first.env.kwargs["size"] = "changed"
    assert repr(stored.load_config(path)) == repr(parsed)
    path.write_text(path.read_text().replace("seed: 0", "seed: 7"))
    assert stored.load_config(path).seed == 7


def test_a_run_from_before_there_were_pools_goes_on_with_one(tmp_path):
    config = settings.Config()
    config.env.id, config.env.backend = "CartPole-v1", "pool"
    text = stored.to_yaml(config)
    (tmp_path / "config.yaml").write_text(text.replace("  backend: pool\n", "  backend: async\n"))
    assert stored.load_config(tmp_path / "config.yaml").env == config.env


def test_a_run_of_the_backend_that_was_called_native_goes_on_with_gym_vector(tmp_path):
    config = settings.Config()
    config.env.id, config.env.backend = "CartPole-v1", "gym_vector"
    text = stored.to_yaml(config)
    (tmp_path / "config.yaml").write_text(text.replace("  backend: gym_vector\n", "  backend: native\n"))
    assert stored.load_config(tmp_path / "config.yaml").env == config.env


def test_a_run_of_env_workers_hetero_goes_on_as_the_preset_that_it_is_now(tmp_path):
    config = settings.Config(dist=EnvWorkersSettings(world_size=3))
    config.env.id = "CartPole-v1"
    for shares, now in ("[]", [0]), ("[5, 3]", [5, 3]):
        old = stored.to_yaml(config)
        old = old.replace(
            "  topology: env_workers\n", "  topology: env_workers_hetero\n  max_world_size: null\n"
        )
        old = old.replace("  env_shares: []\n", f"  env_shares: {shares}\n")
        (tmp_path / "config.yaml").write_text(old)
        found = stored.load_config(tmp_path / "config.yaml").dist
        assert found == EnvWorkersSettings(world_size=3, env_shares=now)
