"""What this package says of itself: its version, those it stands on, and what its extras need. Imports no torch."""

import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import ddppo

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def versions() -> str:
    """Return the text of `--version`: ours, torch's and Hydra's."""
    return "\n".join(
        [f"ddppo {ddppo.__version__}", f"torch {_installed('torch')}", f"hydra {_installed('hydra-core')}"]
    )


def install_command(extra: str) -> str:
    """Return the pip command for the packages of one of our extras.

    It names them themselves: `pip install 'ddppo[...]'` works only where an index has ddppo, and `pip install '.[...]'`
    only in a checkout.
    """
    return f"pip install {' '.join(shlex.quote(each) for each in _requirements(extra))}"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _requirements(extra: str) -> list[str]:
    if (
        _PROJECT.is_file()
    ):  # a checkout, which need not be installed, or may be at another version than what is
        return tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"][extra]
    marked = re.compile(rf"""^(.*?)\s*;\s*extra\s*==\s*['"]{extra}['"]$""")
    found = [match[1] for match in map(marked.match, requires("ddppo") or []) if match]
    assert found, f"the metadata of ddppo lists nothing for its extra {extra}"
    return found
