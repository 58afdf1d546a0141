"""This package in messages: its version, the pip commands of its extras, and its commands as one can type them.

Imports no torch.
"""

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import ddppo

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def versions() -> str:
    """Return the text of `--version`: the versions of ddppo, torch and Hydra."""
    return "\n".join(
        [f"ddppo {ddppo.__version__}", f"torch {_installed('torch')}", f"hydra {_installed('hydra-core')}"]
    )


def install_command(extra: str) -> str:
    """Return the pip command for the packages of one of our extras.

    It names the packages: `pip install 'ddppo[...]'` works only if an index has ddppo, and `pip install '.[...]'` only
    in a checkout.
    """
    return f"{program('pip')} install {' '.join(shlex.quote(each) for each in _requirements(extra))}"


def own_install_command() -> str:
    """Return the pip command that installs this ddppo elsewhere: from the checkout, or from pip's source of it."""
    if _PROJECT.is_file():
        return f"pip install -e {shlex.quote(str(_PROJECT.parent))}"
    # pip notes the folder or address from which it installed a package.
    origin = ""
    with suppress(PackageNotFoundError, ValueError):
        origin = json.loads(distribution("ddppo").read_text("direct_url.json") or "{}").get("url", "")
    if origin.startswith("file:"):
        origin = unquote(urlsplit(origin).path)
    return f"pip install {shlex.quote(origin or f'ddppo=={ddppo.__version__}')}"


def command(module: str, *words: str, folder: Path | None = None) -> str:
    """Return `python -m <module> <words>` as it can be pasted into this shell or a new one.

    folder: the folder in which it is typed; None is the current one.
    """
    return " ".join([_interpreter(folder), "-m", module, *map(_quoted, words)])


def program(name: str) -> str:
    """Return how to type a program of this environment: its name if a shell finds it, else `python -m`."""
    return name if _is_ours(name) else f"{_interpreter()} -m {_MODULE_OF.get(name, name)}"


def see_current_folder() -> None:
    """Let a console command (ddppo-train) import modules of the current folder, as `python -m ddppo.train` does.

    Python puts the folder of the script first in sys.path instead. With `python -P` or PYTHONSAFEPATH, neither command
    imports from the current folder.
    """
    if Path(sys.argv[0]).name.startswith("ddppo-") and not sys.flags.safe_path:
        with suppress(FileNotFoundError):  # the current folder was removed
            if sys.path[:1] != [os.getcwd()]:
                sys.path.insert(0, os.getcwd())


_MODULE_OF = {"tensorboard": "tensorboard.main"}


def _interpreter(folder: Path | None = None) -> str:
    """Return `python` if that is this interpreter, else its path, relative to `folder` if it is below."""
    # A user types `python` if the environment is active in the shell.
    if not sys.executable or _is_ours("python"):
        return "python"
    path, here = Path(sys.executable), (folder or Path()).absolute()
    return shlex.quote(
        str(path.relative_to(here) if path.parent != here and path.is_relative_to(here) else path)
    )


def _is_ours(name: str) -> bool:
    """Return whether the program that a shell finds by this name is this environment's.

    By its folder: the interpreters of several environments may be links to the same file.
    """
    found = shutil.which(name)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()


def _quoted(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{key}={shlex.quote(value)}" if equals and shlex.quote(key) == key else shlex.quote(word)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _requirements(extra: str) -> list[str]:
    # A checkout need not be installed, and another version may be.
    if _PROJECT.is_file():
        return tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"][extra]
    # The metadata lists each requirement of an extra with a marker behind it.
    marked = re.compile(rf"""^(.*?)\s*;\s*extra\s*==\s*['"]{extra}['"]$""")
    found = [match[1] for match in map(marked.match, requires("ddppo") or []) if match]
    assert found, f"the metadata of ddppo lists nothing for its extra {extra}"
    return found
