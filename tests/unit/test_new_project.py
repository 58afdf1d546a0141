"""`python -m ddppo.new`, and the guide: what they write and say runs as it stands."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddppo.errors import ConfigError
from ddppo.new import make_project
from tests.support import CHECKOUT, PATIENCE_S

GUIDE = CHECKOUT / "docs" / "guide"
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # where C++ is compiled once


def typed(command, folder):
    """Run a command of a page in `folder`, as a user who has installed ddppo would, for a tenth of its steps."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["python", "-m"], command
    steps = dict(re.findall(r"(\S*total_steps)=(\d+)", command)) or {"ppo.total_steps": "40000"}
    if words[2] == "ddppo.train":
        words += [f"{name}={max(4096, int(number) // 10)}" for name, number in steps.items()]
    environment = {"PYTHONPATH": f"{folder}:{CHECKOUT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    environment["XDG_CACHE_HOME"] = CACHE
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A new project, installed as its README says in an environment that sees ours, and how to run programs there."""
    pytest.importorskip("hatchling", reason="builds the project: in requirements.lock")
    folder = tmp_path_factory.mktemp("installed")
    make_project("pendula", folder / "pendula")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    inside = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=inside))
    (site / "ours.pth").write_text(f"{CHECKOUT}\n{sysconfig.get_path('purelib')}\n")
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder), "XDG_CACHE_HOME": CACHE}
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "-e", folder / "pendula"], check=True, timeout=PATIENCE_S)

    def run(*arguments, code=0, **environ):
        done = subprocess.run(
            [str(python), "-m", *map(str, arguments)],
            cwd=folder, env=environment | environ, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return SimpleNamespace(run=run, folder=folder)


def test_an_installed_project_trains_on_two_workers_from_any_folder_and_its_command_plays(installed):
    run_dir = installed.folder / "trained"
    settings = (
        "env=pendula",
        "model=pendula",
        "model.policy_scale=0.02",
        "env.max_push=0.06",
        "ppo.total_steps=4096",
        "dist.world_size=2",
    )
    installed.run("ddppo.train", *settings, "log.progress=none", f"hydra.run.dir={run_dir}")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["derived"]["W"]) == ("completed", 2)
    assert len(installed.run("pendula", run_dir).splitlines()) == 50


def test_an_algorithm_of_a_project_trains_on_two_workers_and_its_command_plays(installed):
    run_dir = installed.folder / "own"
    settings = ("env=pendula", "algorithm=pendula", "algorithm.total_steps=1600", "dist.world_size=2")
    installed.run("ddppo.train", *settings, "log.progress=none", f"hydra.run.dir={run_dir}")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["derived"]["W"]) == ("completed", 2)
    assert len(installed.run("pendula", run_dir).splitlines()) == 50


def test_presets_and_models_of_a_project_are_in_help_completion_and_messages(installed):
    shown = installed.run("ddppo.train", "--help", "all")
    # env, model, algorithm, ppo, experiment
    assert len(re.findall(r"^    pendula  ", shown, re.MULTILINE)) == 5
    line = {"COMP_LINE": "ddppo-train model=pen", "COMP_POINT": "99", "HYDRA_FULL_ERROR": "1"}
    assert installed.run("ddppo.train", "-sc", "query=bash", **line).split() == ["model=pendula"]
    for wrong, said in {
        ("env=pendla",): "did you mean pendula",
        ("env=pendula", "env.max_psh=1"): "did you mean env.max_push",
        ("env=pendula", "model=pendula", "model.polcy_scale=1"): "did you mean model.policy_scale",
        ("env=pendula", "algorithm=pendula", "algorithm.gama=1"): "did you mean algorithm.gamma",
    }.items():
        assert said in installed.run("ddppo.train", *wrong, code=2)


def test_a_project_is_named_throughout(tmp_path):
    paths = make_project("pendula", tmp_path / "new")
    assert tmp_path / "new" / "pendula" / "envs.py" in paths
    assert tmp_path / "new" / "pendula" / "conf" / "ppo" / "pendula.yaml" in paths
    for path in paths:
        assert "my_project" not in f"{path.relative_to(tmp_path)}{path.read_text()}"


@pytest.mark.parametrize("name", ["3x", "Large", "a-b", "class", "torch", "tests", "sys", ""])
def test_a_name_that_no_package_can_have_or_that_another_has_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=f"name={name}: "):
        make_project(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["cartpole", "lstm", "default"])
def test_a_name_of_a_preset_of_ours_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=f"name={name}: ddppo has a preset"):
        make_project(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_there_already_stays(tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        make_project("pendula", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.slow
def test_a_new_project_passes_its_own_tests(installed):
    installed.run("pytest", "-p", "no:cacheprovider", installed.folder / "pendula")


def test_the_page_about_packages_shows_what_is_written():
    text = (GUIDE / "domain.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code in (CHECKOUT / "ddppo" / "templates" / "project" / "my_project" / "__init__.py").read_text()


@pytest.mark.slow
def test_the_commands_of_the_page_about_packages_run_as_they_stand(installed):
    text = (GUIDE / "domain.md").read_text().replace("my_project", "pendula")
    (block,) = re.findall(r"```\n(python -m .*?)```", text, re.DOTALL)
    new, folder, install, *rest = block.splitlines()
    assert (new, folder, install) == ("python -m ddppo.new pendula", "cd pendula", "pip install -e .")
    for command in rest:
        installed.run(*shlex.split(command)[2:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p.stem for p in sorted(GUIDE.glob("*.md")) if p.stem not in ("README", "domain")]
)
def test_the_examples_of_the_guide_run_as_they_stand(page, tmp_path):
    text = (GUIDE / f"{page}.md").read_text()
    if page == "model":  # belongs to the task of that page
        text = (GUIDE / "environment.md").read_text().split("```\npython")[0] + text
    for name, code in re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(code)
    commands = [
        line
        for block in re.findall(r"```\n(python -m .*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert commands
    said = "".join(typed(command, tmp_path) for command in commands)
    if page == "topology":
        assert "parameters: worker -> worker, sum, once an iteration" in said
