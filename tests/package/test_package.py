"""The package as others get it: what the wheel holds, that it works where no checkout is in sight, and how it is typed.

`make package` runs these. They fetch nothing: the new environment takes what ddppo stands on from this one.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra._internal.utils import get_args_parser

import ddppo
from ddppo import package
from ddppo.launch.arguments import let_hydra_parse
from tests.support import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # where C++ is compiled once
TASK = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

gym.register("Mine-v0", entry_point=CartPoleEnv, max_episode_steps=100)
"""
SMALL = (
    "env.num_envs=4",
    "ppo.total_steps=256",
    "ppo.rollout_steps=16",
    "ppo.num_minibatches=1",
    "log.progress=none",
)
VERSIONS = """
import importlib.metadata, sys
for command in importlib.metadata.distribution("ddppo").entry_points:
    sys.argv = [command.name, "--version"]
    try:
        command.load()()
    except SystemExit as e:
        assert not e.code
"""
DOWNSTREAM = """
from ddppo.api import train
from ddppo.errors import ConfigError

number: int = train
error: ConfigError = ValueError("not one of ours")
"""


def files_of_git(*folders):
    """Return the files that are kept, or are new and not ignored. Skips where there is no git or no repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs git, and a checkout of its making")
    return {name for name in done.stdout.split("\0") if (CHECKOUT / name).is_file()}


def builds(kind, source, folder, **environ):
    """Build a wheel or an sdist of `source` into `folder`, fetching nothing, and return its path."""
    pytest.importorskip(
        "hatchling", reason="builds the package: in requirements.lock since make installs ddppo"
    )
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    environment = os.environ | environ
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path, done.stdout + done.stderr


def files_of(wheel):
    """Return the files of a wheel by their names in the checkout, without what was compiled and what pip needs."""
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and name[-3:] != ".so"
    }
    return {name.removeprefix("ddppo/") if name.startswith("ddppo/conf/") else name for name in names}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return builds("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel in an environment of its own, and return how to run its commands in an empty folder."""
    folder = tmp_path_factory.mktemp("elsewhere") / "a folder with spaces"
    work = folder / "work"
    work.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    # Files of other environments' *.pth, as of an editable ddppo, are not read: only ours is.
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    inside = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=inside))
    (site / "dependencies.pth").write_text("\n".join(libraries))
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
    environment = {k: v for k, v in os.environ.items() if k in kept} | {"XDG_CACHE_HOME": CACHE}

    def run(program, *arguments, code=0, cwd=work):
        command = [str(programs / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def pip(*arguments, cwd=work):
        command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), *arguments]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    pip("install", "--no-deps", "--no-index", str(wheel))
    return SimpleNamespace(run=run, pip=pip, work=work, venv=folder / "venv", wheel=wheel)


def test_no_kept_file_is_one_that_git_ignores():
    names = "\0".join(sorted(files_of_git()))
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    done = subprocess.run(command, cwd=CHECKOUT, input=names, capture_output=True, text=True)
    assert done.stdout.split("\0")[:-1] == [], (
        "hatchling leaves these out of the wheel: anchor the pattern, as /dist/"
    )


def test_the_wheel_holds_every_file_of_the_package_and_all_presets(wheel):
    assert files_of(wheel) == files_of_git("ddppo", "conf")
    (licence,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("licenses/LICENSE"))
    assert b"MIT License" in zipfile.ZipFile(wheel).read(licence)


def test_without_a_compiler_the_sdist_builds_the_same_wheel_but_what_is_compiled(wheel, tmp_path):
    sdist, _ = builds("sdist", CHECKOUT, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("*/")
    without, said = builds("wheel", source, tmp_path, PATH=str(tmp_path), CC="nothing-of-this-name")
    assert files_of(without) == files_of(wheel)
    assert without.name.endswith("-none-any.whl")
    assert "ddppo.collectives is not compiled: CC=nothing-of-this-name is no program here" in said


@pytest.mark.slow
def test_every_console_command_knows_help_and_version_where_no_checkout_is_in_sight(installed):
    found = installed.run("python", "-c", "import ddppo; print(ddppo.__file__)")
    assert Path(found.strip()).is_relative_to(installed.venv)

    with ThreadPoolExecutor(2) as pool:
        usages = list(pool.map(lambda name: installed.run(name, "--help"), PROJECT["scripts"]))
    assert all("python -m ddppo." in usage for usage in usages)
    versions = installed.run(
        "python", "-c", VERSIONS
    ).splitlines()  # in one process, which saves half a minute
    assert versions.count(f"ddppo {PROJECT['version']}") == len(PROJECT["scripts"])


@pytest.mark.slow
def test_an_installed_package_trains_a_task_of_the_current_folder_at_w_2_and_reports(installed):
    (installed.work / "my_task.py").write_text(TASK)
    sweep = ("-m", "env=gym", "env.id=my_task:Mine-v0", *SMALL, "dist.world_size=1,2", "sweep=sweep")
    installed.run("ddppo-train", *sweep)
    assert "W=2" in installed.run("ddppo-report", "sweep", "out=page")
    (two,) = (p.parent for p in installed.work.glob("sweep/dist.world_size-2*/summary.json"))
    for program in (("ddppo-evaluate",), ("python", "-m", "ddppo.evaluate")):
        assert "my_task:Mine-v0" in installed.run(*program, two, "episodes=2")
    qasm = 'OPENQASM 2.0; include "qelib1.inc"; qreg q[2]; rz(pi/4) q[0]; rz(pi/4) q[0]; cx q[0],q[1];'
    (installed.work / "my.qasm").write_text(qasm)
    installed.run("ddppo-circuit", "merge", "my.qasm", "out=merged.qasm")
    assert "equal" in installed.run("ddppo-circuit", "verify", "my.qasm", "merged.qasm")


@pytest.mark.slow
def test_a_new_project_says_how_to_install_ddppo_and_installs_itself(installed, tmp_path):
    assert "pendula/.gitignore" in installed.run("ddppo-new", "pendula")
    project = installed.work / "pendula"
    assert f"pip install {installed.wheel}" in (project / "README.md").read_text()
    installed.pip(
        "install", "--no-index", "--no-build-isolation", "--editable", ".", cwd=project
    )  # ddppo is there
    assert "Reach" in installed.run(
        "python", "-c", "import pendula.envs; print(pendula.envs.Reach)", cwd=tmp_path
    )


@pytest.mark.slow
def test_a_type_checker_sees_the_types_of_an_installed_package(installed, tmp_path):
    pytest.importorskip("mypy", reason="needs the extra dev")
    (tmp_path / "downstream.py").write_text(DOWNSTREAM)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    interpreter = f"--python-executable={installed.venv}/bin/python"
    command = [sys.executable, "-m", "mypy", interpreter, "downstream.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert [line.rpartition("[")[2] for line in done.stdout.splitlines()[:-1]] == ["assignment]"] * 2, (
        done.stdout
    )


def other_environment(monkeypatch, interpreter, path):
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setenv("PATH", str(path))


@pytest.fixture
def two_environments(tmp_path):
    """Return two folders of programs, as those of two environments, whose interpreters are links to one file."""
    for name in ("one", "two"):
        programs = tmp_path / name / "bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(sys.executable)
        (programs / "tensorboard").write_text("#!/bin/sh\n")
        (programs / "tensorboard").chmod(0o755)
    return tmp_path / "one" / "bin", tmp_path / "two" / "bin"


def test_a_command_names_python_where_a_shell_finds_this_interpreter(two_environments, monkeypatch):
    one, _ = two_environments
    other_environment(monkeypatch, one / "python", one)
    assert (
        package.command("ddppo.train", "resume=runs/a b", "seed=1")
        == "python -m ddppo.train resume='runs/a b' seed=1"
    )
    assert package.program("tensorboard") == "tensorboard"


def test_a_command_names_the_interpreter_by_its_path_where_a_shell_finds_another_or_none(
    two_environments, monkeypatch, tmp_path
):
    one, two = two_environments
    for path in (two, tmp_path):
        other_environment(monkeypatch, one / "python", path)
        monkeypatch.chdir(tmp_path)
        assert package.command("ddppo.train") == "one/bin/python -m ddppo.train"
        assert package.program("tensorboard") == "one/bin/python -m tensorboard.main"
        assert package.install_command("tune").startswith("one/bin/python -m pip install ")
        assert package.command("ddppo.train", folder=tmp_path / "x") == f"{one}/python -m ddppo.train"
        monkeypatch.chdir(two)
        assert package.command("ddppo.train") == f"{one}/python -m ddppo.train"
        monkeypatch.chdir(one)
        assert package.command("ddppo.train") == f"{one}/python -m ddppo.train"


def test_a_command_that_is_pasted_is_the_command_that_is_meant(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "says.py"
    module.write_text("import sys; print(sys.argv[1:])")
    words = ["resume=it's a $HOME;", "x y", "a[0]=1", "plain=1,2"]
    done = subprocess.run(["/bin/sh", "-c", package.command("says", *words)], capture_output=True, text=True)
    assert done.stdout.strip() == str(words), done.stderr


@pytest.mark.parametrize("name", ["/env/bin/ddppo-train", "/env/bin/pytest"])
def test_console_commands_import_from_the_current_folder_and_other_programs_as_they_did(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setattr(sys, "path", ["/env/bin", *sys.path])
    package.see_current_folder()
    assert (sys.path[0] == str(tmp_path)) == name.endswith("ddppo-train")


def test_hydra_s_options_pass_the_look_at_help_texts_that_python_has_had_since_3_14(monkeypatch):
    def check(parser, action):
        if action.help is not None and "%" in action.help % {}:
            raise ValueError("badly formed help string")

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check, raising=False)
    let_hydra_parse()
    let_hydra_parse()
    parser = get_args_parser()
    for action in parser._actions:
        parser._check_help(action)
    with pytest.raises(ValueError, match="badly formed"):
        parser._check_help(argparse.Action([], "wrong", help="100 %% of %%"))


def test_no_script_of_a_study_hides_a_module_of_python_s():
    scripts = (CHECKOUT / "experiments").rglob("*.py")  # whose folder comes first in Python's path
    assert [path for path in scripts if path.stem in sys.stdlib_module_names] == []


def test_versions_are_one():
    assert ddppo.__version__ == PROJECT["version"]
    assert f"version: {PROJECT['version']}\n" in (CHECKOUT / "CITATION.cff").read_text()
    assert f"## {PROJECT['version']}" in (CHECKOUT / "CHANGELOG.md").read_text()
