"""The core stands by itself: without domains, studies, clusters and servers it trains."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import CHECKOUT, PATIENCE_S, TINY, Finished, summary
from tests.unit.test_layers import COMMANDS_OF_OUTSIDE

WINGS = ("domains", "study", "cluster", "serve")  # folders of ddppo that the core does without
TESTS_OF_WINGS = ("tests/domains/", "tests/study/", "tests/cluster/", "tests/serve/", "tests/slurm/")
MOST_MODULES = 160  # of ddppo, that a run of CartPole imports
# Packages that only model=hf may import: they take seconds.
OF_LANGUAGE_MODELS = ("transformers", "peft", "accelerate", "tokenizers", "huggingface_hub", "safetensors")
COUNT = """
import json, sys
from ddppo.train import main
try:
    main()
except SystemExit as e:
    assert not e.code, e.code
print(json.dumps(sorted(sys.modules)))
"""


def files() -> list[str]:
    """Return the repository's files, those that are new included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("needs a checkout of the repository, and git, to know which files are its own")
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file()]


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A copy of the repository without the wings and their tests."""
    folder = tmp_path_factory.mktemp("core") / "repository"
    left_out = (*(f"ddppo/{wing}/" for wing in WINGS), *TESTS_OF_WINGS)
    for name in files():
        if not name.startswith(left_out):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name)
    return folder


def in_copy(core: Path, *arguments: str, **environ: str) -> Finished:
    """Run Python in the copy: a program of its own, for what this process imported is not the copy's."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=core, env=os.environ | {"PYTHONPATH": str(core)} | environ,
        capture_output=True, text=True, timeout=max(1800, 2 * PATIENCE_S),
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr, core)


def test_cartpole_is_trained_on_two_ranks_without_the_wings(core, tmp_path):
    arguments = ("env=cartpole", "dist.world_size=2", "ppo.total_steps=2048", "log.progress=none")
    result = in_copy(core, "-m", "ddppo.train", *arguments, f"hydra.run.dir={tmp_path / 'run'}")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["env_steps"] == 2048


def test_a_preset_of_a_wing_is_unknown_where_the_wing_is_not_there(core, tmp_path):
    result = in_copy(core, "-m", "ddppo.train", "env=cage2", f"hydra.run.dir={tmp_path / 'run'}")
    assert result.code == 2, result.stderr
    assert "cartpole" in result.stderr
    assert "Traceback" not in result.stderr


def is_declaration(name: list[str]) -> bool:
    """Whether a module of a wing, ["domains", "text", ...], says what the wing adds, or with which settings."""
    return name[-1] in ("settings", "resources") or (name[0] == "domains" and len(name) == 2)


def test_a_run_of_cartpole_imports_few_modules_and_nothing_of_a_wing_but_its_declaration(tmp_path):
    arguments = (*TINY, "env=cartpole", "env.backend=sync", "compile=off", "ppo.total_steps=1280")
    result = in_copy(CHECKOUT, "-c", COUNT, *arguments, f"hydra.run.dir={tmp_path / 'run'}")
    assert result.code == 0, result.stderr
    everything = json.loads(result.stdout.splitlines()[-1])
    assert not set(OF_LANGUAGE_MODELS) & set(everything)
    imported = [name for name in everything if name.partition(".")[0] == "ddppo"]
    of_wings = [
        name.split(".")[1:] for name in imported if name.split(".")[1:2] and name.split(".")[1] in WINGS
    ]
    packages = {tuple(name[:-1]) for name in of_wings} | {(wing,) for wing in WINGS}
    modules = [
        ".".join(name) for name in of_wings if tuple(name) not in packages and not is_declaration(name)
    ]
    assert modules == []
    assert len(imported) <= MOST_MODULES


def test_every_module_of_the_core_is_imported_without_the_wings(core):
    """With what test_layers.py says of imports in functions, the core calls nothing of them."""
    commands = {f"ddppo/{name}.py" for name in COMMANDS_OF_OUTSIDE}
    paths = [path.relative_to(core) for path in sorted((core / "ddppo").rglob("*.py"))]
    modules = [
        ".".join(path.with_suffix("").parts)
        for path in paths
        if str(path) not in commands and not {"templates", "_plugins", "__main__.py"} & set(path.parts)
    ]
    assert len(modules) > 150
    result = in_copy(
        core, "-c", "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)", *modules
    )
    assert result.code == 0, result.stderr
