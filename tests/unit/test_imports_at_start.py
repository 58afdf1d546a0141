"""What `python -m ddppo.train` imports before it answers: counted, since seconds depend on the machine."""

import os
import subprocess
import sys

import pytest

from tests.support import CHECKOUT

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
    ("arguments", "answer"),
    [
        (["foo.bar=1"], "error: there is no setting foo.bar"),
        (["env.num_envs=x"], "error: env.num_envs=x: x is not a whole number"),
        (["env=cartpole", "ppo.clip_coef=-1.0"], "error: ppo.clip_coef=-1.0: must be greater than 0"),
        (["--help"], ""),
    ],
    ids=["name", "value", "rule", "help"],
)
def test_help_and_mistakes_are_answered_without_any_large_package(arguments, answer):
    modules, said = imported_by(*arguments)
    assert said.startswith(answer)
    assert "ddppo.config.settings" in modules
    assert not LARGE & modules
