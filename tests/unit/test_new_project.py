"""`python -m ddppo.new`, and the guide: what they write and say runs as it stands."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from ddppo.errors import ConfigError
from ddppo.new import make_project
from tests.support import CHECKOUT, PATIENCE_S

GUIDE = CHECKOUT / "docs" / "guide"
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # where C++ is compiled once


def typed(command, folder):
    """Run a command of a page in `folder`, as a user who has installed ddppo would."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["python", "-m"], command
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


def test_a_project_is_named_throughout(tmp_path):
    paths = make_project("pendula", tmp_path / "new")
    assert tmp_path / "new" / "pendula" / "envs.py" in paths
    assert tmp_path / "new" / "conf" / "ppo" / "pendula.yaml" in paths
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
    with pytest.raises(ConfigError, match="is there already"):
        make_project("pendula", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.slow
def test_a_new_project_passes_its_own_tests_and_trains(tmp_path):
    typed("python -m ddppo.new pendula", tmp_path)
    typed("python -m pytest -p no:cacheprovider", tmp_path / "pendula")
    typed("python -m ddppo.train --config-dir conf env=pendula ppo.total_steps=4096", tmp_path / "pendula")


@pytest.mark.slow
@pytest.mark.parametrize("page", [p.stem for p in sorted(GUIDE.glob("*.md")) if p.stem != "README"])
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
