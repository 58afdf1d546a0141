"""Whose code is measured: this one, another checkout, or a commit in a worktree of its own. Imports no torch."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ddppo
from ddppo.errors import ConfigError

HERE = "this"


@dataclass(frozen=True, slots=True)
class Code:
    """A folder that holds the package `ddppo`, what it is called in results, and its commit if there is one."""

    name: str
    root: Path
    commit: str | None = None
    dirty: bool | None = None

    def environ(self) -> dict[str, str]:
        """Return the environment in which `python -m ddppo.train` is this code's, wherever it is called."""
        paths = [
            str(self.root),
            os.getcwd(),
            os.environ.get("PYTHONPATH", ""),
        ]  # tasks may be where the user is
        return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def this_code() -> Code:
    """Return the code that this process runs."""
    return _code(HERE, Path(ddppo.__file__).resolve().parents[1])


@contextmanager
def other_code(against: str) -> Iterator[Code]:
    """Give the code of a folder or of a commit of this checkout, which is in a temporary worktree for the block.

    Raises ConfigError where there is no such code.
    """
    folder = Path(against)
    if folder.is_dir():
        if not (folder / "ddppo" / "train.py").is_file():
            raise ConfigError(
                f"against={against} is a folder without ddppo/train.py: give a checkout or a commit"
            )
        yield _code(against, folder.resolve())
        return
    root = this_code().root
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    if commit is None:
        raise ConfigError(f"against={against} is neither a folder nor a commit of {root}")
    with tempfile.TemporaryDirectory(prefix="ddppo-against-") as parent:
        worktree = Path(parent) / "worktree"
        if _git(root, "worktree", "add", "--detach", "--quiet", str(worktree), commit) is None:
            raise ConfigError(f"against={against}: git cannot check it out into {worktree}")
        try:
            yield _code(against, worktree)
        finally:
            _git(root, "worktree", "remove", "--force", str(worktree))


def _code(name: str, root: Path) -> Code:
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    dirty = bool(_git(root, "status", "--porcelain")) if commit else None
    return Code(name, root, commit, dirty)


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git says, or None where it refuses or is not there."""
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
