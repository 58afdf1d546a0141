"""`ddppo.fragments out=<folder>` writes programs that train as ddppo.train does, and that one can edit."""

import ast
import itertools
import re
import subprocess
import sys

import pytest

from ddppo.distributed.topologies.contract import Layout
from ddppo.distributed.topologies.drawing import size_in_words
from ddppo.distributed.topologies.programs import write_programs
from ddppo.errors import ConfigError
from ddppo.fragments import fragments
from ddppo.launch.arguments import composed
from tests.support import CHECKOUT, TINY, Program, door, run, summary

SMALL = ("env=cartpole", "env.num_envs=5", "ppo.rollout_steps=16", "ppo.num_epochs=3", "ppo.total_steps=160")
TOPOLOGIES = {
    "ddp": ("distributed=ddp", "dist.world_size=2"),
    "sync_actors": ("distributed=sync_actors", "dist.world_size=3"),
    "multi_learner": ("distributed=multi_learner", "dist.world_size=4", "dist.num_learners=2"),
    "env_workers": ("distributed=env_workers", "dist.world_size=3"),
    "async_actors": ("distributed=async_actors", "dist.world_size=3", "dist.max_lag=0"),
}
# What programs do without: classes that take part in the loop of ddppo.train.
TOPOLOGY_MODULES = {"base", "ddp", "actors", "env_workers", "async_actors.learner", "async_actors.actor"}


def written(folder, *arguments):
    config = composed(arguments)
    return write_programs(config, fragments(config), folder, list(arguments))


def trained(folder):
    """Run the programs in `folder`; return the hash of the parameters that they end with, and their output."""
    result = run(["sh", str(folder / "run.sh")], folder)
    assert result.code == 0, result.stderr
    (found,) = re.findall(r"params_hash (\w+)", result.stdout)
    return found, result.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return the folder with the programs of a topology."""

    def of(topology):
        if topology not in made:
            made[topology] = tmp_path_factory.mktemp("programs") / topology
            written(made[topology], *SMALL, *TOPOLOGIES[topology])
        return made[topology]

    made = {}
    return of


@pytest.mark.quick_cases("sync_actors")
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_programs_train_what_the_run_trains_to_the_bit(programs, tmp_path, topology):
    found, _ = trained(programs(topology))
    result = door(*TINY, *SMALL, *TOPOLOGIES[topology], run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert found == summary(tmp_path / "run")["params_hash"]


def test_the_page_about_fragments_shows_the_loop_of_an_actor_as_it_is_written(tmp_path):
    page = (CHECKOUT / "docs" / "fragments.md").read_text()
    (loop,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written(tmp_path / "programs", "env=cartpole", "distributed=sync_actors", "dist.world_size=4")
    assert loop in (tmp_path / "programs" / "actor.py").read_text()


SETTINGS = {
    "normalisers": ("env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true"),
    "eager": ("compile=off", "dtype=float64", "ppo.lr_schedule=linear", "ppo.clip_schedule=linear"),
    "memory": ("model=gru", "ppo.num_minibatches=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "which"),
    [*itertools.product(("ddp", "sync_actors"), SETTINGS), ("async_actors", "memory")],
)
def test_so_they_do_with_other_settings(tmp_path, topology, which):
    arguments = (*SMALL, *TOPOLOGIES[topology], *SETTINGS[which])
    written(tmp_path / "programs", *arguments)
    found, _ = trained(tmp_path / "programs")
    result = door(*TINY, *arguments, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert found == summary(tmp_path / "run")["params_hash"]


@pytest.mark.slow
def test_edited_programs_run(tmp_path):
    written(tmp_path / "programs", *SMALL, *TOPOLOGIES["sync_actors"])
    found, _ = trained(tmp_path / "programs")
    # Longer rollouts, and shares of the environments that no setting gives.
    settings = tmp_path / "programs" / "run_settings.py"
    text = settings.read_text()
    edited = text.replace("T = 16", "T = 20").replace(
        "{1: range(0, 3), 2: range(3, 5)}", "{1: range(0, 1), 2: range(1, 5)}"
    )
    assert edited.count("\n") == text.count("\n")
    settings.write_text(edited)
    # Parameters of every second iteration alone travel.
    for role, message in (("learner", "wire.broadcast(group)"), ("actor", "wire.broadcast(group)")):
        program = tmp_path / "programs" / f"{role}.py"
        text = program.read_text()
        assert text.count(message) == 1
        program.write_text(text.replace(message, f"k % 2 or {message}"))
    other, output = trained(tmp_path / "programs")
    assert other != found
    assert "iteration 2: 200 steps" in output


@pytest.mark.slow
def test_the_edited_program_of_the_guide_is_its_topology(tmp_path):
    """docs/guide/topology.md: a command, an edit, and the topology that ends with the same parameters."""
    page = (CHECKOUT / "docs" / "guide" / "topology.md").read_text()
    (edit,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    (arguments,) = re.findall(r"python -m ddppo.fragments (.*) out=averaging\n", page)
    written(tmp_path / "averaging", *arguments.split())
    worker = tmp_path / "averaging" / "worker.py"
    text = worker.read_text()
    for part in edit.split("\n\n"):
        lines = part.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        assert text.count(old) == 1, old
        text = text.replace(old, "".join(f"{line[1:]}\n" for line in lines if line[0] in " +"))
    worker.write_text(text)
    found, _ = trained(tmp_path / "averaging")

    (topology,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Averager" in block
    )
    (tmp_path / "averaging.py").write_text(topology)
    own = ["averaging:Averaging" if a == "ddp" else a for a in re.split("[ =]", arguments)]
    own = [f"{key}={value}" for key, value in zip(own[::2], own[1::2], strict=True)]
    # A program of its own, because a fork of the tests' server has its path already.
    run_dir = f"hydra.run.dir={tmp_path / 'run'}"
    command = Program([sys.executable, "-m", "ddppo.train", *TINY, *own, run_dir])
    result = run(command, tmp_path, PYTHONPATH=f"{tmp_path}:{CHECKOUT}")
    assert result.code == 0, result.stderr
    assert found == summary(tmp_path / "run")["params_hash"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_programs_are_short_and_clean(programs, topology):
    for path in programs(topology).glob("*.py"):
        code = [line for line in path.read_text().splitlines() if line.strip()]
        assert len(code) <= 105, f"{path.name} has {len(code)} lines"
    rules = ["--isolated", "--line-length=120", "--select=E,F,W,B,UP,SIM,RUF"]
    command = [sys.executable, "-m", "ruff", "check", *rules, str(programs(topology))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_programs_import_no_topology(programs, topology):
    for path in programs(topology).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("ddppo.distributed.topologies."):
                name = node.module.removeprefix("ddppo.distributed.topologies.")
                assert name not in TOPOLOGY_MODULES, f"{path.name} imports {node.module}"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_programs_name_the_messages_of_the_picture_in_its_order(programs, topology):
    layout: Layout = fragments(composed([*SMALL, *TOPOLOGIES[topology]]))
    for role in layout.roles:
        story = ast.get_docstring(ast.parse((programs(topology) / f"{role.name}.py").read_text()))
        own = [m for m in layout.messages if role.name in (m.source, m.target)]
        places = [story.find(size_in_words(m.num_bytes)) for m in own]
        assert -1 not in places, (story, own)
        if (
            topology != "async_actors" or role.name == "learner"
        ):  # an actor's story begins with the parameters
            assert places == sorted(places), (story, own)


def test_one_rank_has_programs_too(tmp_path):
    written(tmp_path / "programs", *SMALL, "distributed=single")
    assert trained(tmp_path / "programs")[1].count("iteration ") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("distributed=central_inference",), "programs are written for async_actors, ddp"),
        (("distributed=async_actors", "dist.world_size=3"), "add dist.max_lag=0"),
        (("init_from=outputs",), "init_from"),
        (("dist.reduction=ordered",), "dist.reduction=ordered"),
        (("env=cloud", "ppo=cloud"), "tasks of text"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_run_without_programs_is_a_sentence(tmp_path, arguments, words):
    config = composed([*SMALL[:1], *arguments])
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        write_programs(config, Layout.__new__(Layout), tmp_path / "programs", [])
    assert "there is only the picture" in str(raised.value)
    assert not (tmp_path / "programs").exists()


def test_a_folder_that_holds_other_files_is_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for out, words in ((tmp_path, "holds other files"), (tmp_path / "mine.txt", "is a file")):
        result = door(*SMALL, f"out={out}", module="ddppo.fragments", run_dir=tmp_path)
        assert result.code == 2
        assert words in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_picture_of_a_text_task_is_drawn():
    layout = fragments(composed(["env=cloud", "ppo=cloud"]))
    assert [role.name for role in layout.roles] == ["worker"]
