"""What `python -m ddppo.train` imports before it answers or trains: counted, since seconds depend on the machine."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ddppo.config.help import all_names
from ddppo.config.presets import refuse_plain_mistakes
from ddppo.config.settings import SECTIONS, config_class
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed
from ddppo.launch.local_ranks import _import_for_ranks
from tests.support import CHECKOUT, TINY

BRIEF = (
    "env=cartpole",
    "env.num_envs=2",
    "ppo.rollout_steps=8",
    "ppo.num_minibatches=2",
    "ppo.total_steps=32",
)
# Packages that take long to import, and that no answer about the command line needs.
LARGE = {"torch", "numpy", "gymnasium", "tensorboard", "rich", "google"}


def imported_by(*arguments: str) -> tuple[set[str], str]:
    """Return the modules that a command imports, and what it writes to stderr beside them."""
    command = [sys.executable, "-m", "ddppo.train", *arguments]
    environ = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    ended = subprocess.run(
        command, cwd=CHECKOUT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines = ended.stderr.splitlines()
    noted = [line for line in lines if line.startswith("import time:")]
    said = [line for line in lines if not line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in noted}, "\n".join(said)


@pytest.mark.parametrize(
    ("arguments", "answer", "without"),
    [
        (["foo.bar=1"], "error: there is no setting foo.bar", LARGE | {"hydra"}),
        (["env.num_envs=x"], "error: env.num_envs=x: x is not a whole number", LARGE | {"hydra"}),
        (["--help"], "", LARGE | {"hydra"}),
        (["env=cartpole", "ppo.clip_coef=-1.0"], "error: ppo.clip_coef=-1.0: must be greater than 0", LARGE),
    ],
    ids=["name", "value", "help", "rule"],
)
def test_help_and_mistakes_are_answered_without_large_packages(arguments, answer, without):
    modules, said = imported_by(*arguments)
    assert said.startswith(answer)
    assert "ddppo.config.settings" in modules
    assert not without & modules


@pytest.mark.parametrize("mistake", ["foo.bar=1", "foo=1", "log.progres=none", "env.num_envs=x", "seed=five"])
def test_a_mistake_that_is_found_without_hydra_is_reported_as_hydra_finds_it(mistake):
    with pytest.raises(ConfigError) as at_once:
        refuse_plain_mistakes(["env=cartpole", mistake])
    with pytest.raises(ConfigError) as of_hydra:
        composed(["env=cartpole", mistake])
    assert str(at_once.value) == str(of_hydra.value)


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("ppo", []),
        ("ppo", ["ppo.losses={undecided: {term: 'ddppo.study.bench.own:undecided', coef: 0.1}}"]),
        ("ppo", ["model=lstm"]),
        ("algorithm", ["algorithm.name=ddppo.study.bench.own:OwnPPO"]),
    ],
    ids=["in C++", "a loss term", "in PyTorch", "an algorithm"],
)
def test_a_run_on_one_rank_imports_no_compiler_and_nothing_for_outputs_that_it_lacks(
    section, changed, tmp_path
):
    brief = [setting.replace("ppo.", f"{section}.") for setting in BRIEF]
    modules, said = imported_by(*brief, *changed, *TINY, f"hydra.run.dir={tmp_path / 'run'}")
    assert (tmp_path / "run" / "summary.json").is_file(), said
    assert {"torch", "gymnasium", "ddppo.loop.rank"} <= modules
    packages = {".".join(name.split(".")[:2]) for name in modules} | {
        name.partition(".")[0] for name in modules
    }
    unused = {"torch._dynamo", "torch._inductor", "sympy", "tensorboard", "google"}
    assert not (unused | {"matplotlib", "pandas", "scipy", "mujoco", "PIL", "transformers"}) & packages
    assert "gymnasium.envs.mujoco" not in modules


COLLECTING = """
import gc, gymnasium
class Task(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        assert gc.isenabled()
def wrapped(env): return Task(env)
"""


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_garbage_collector_is_on_where_a_users_code_runs(world_size, tmp_path):
    (tmp_path / "own_collecting.py").write_text(COLLECTING)
    own = ["env.wrappers=[own_collecting:wrapped]", f"dist.world_size={world_size}"]
    command = [sys.executable, "-m", "ddppo.train", *BRIEF, *TINY, *own, f"hydra.run.dir={tmp_path / 'run'}"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)])}
    ended = subprocess.run(command, cwd=CHECKOUT, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("compiler", "is_used"), [("auto", False), ("off", False), ("torch", True)])
def test_what_ranks_learn_with_is_imported_once_in_the_process_that_they_are_forked_from(compiler, is_used):
    asked: list[str] = []
    server = SimpleNamespace(have_imported=asked.extend)
    _import_for_ranks(server, composed(["env=cartpole", f"compile={compiler}"]))
    assert ("torch._dynamo" in asked) == is_used
    assert {"ddppo.loop.rank", "tensorboard.compat.proto.event_pb2"} <= set(asked)


def test_a_setting_that_exists_is_left_to_hydra():
    refuse_plain_mistakes([f"{name}=1" for name in all_names(config_class())])
    refuse_plain_mistakes([f"{group}=one" for group in (*SECTIONS, "experiment")])
    refuse_plain_mistakes(["env.num_envs=null", "seed=1e3", "eval.env.limit=3", "env.kwargs.size=3"])
    refuse_plain_mistakes(["foo.bar=1", "-m"])  # it finds nothing beside flags and signs
    refuse_plain_mistakes(["+foo.bar=1"])
