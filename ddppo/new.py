"""The command `python -m ddppo.new`: a project of a user's own, in the shape of the packages of ddppo.domains."""

import keyword
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from omegaconf import MISSING

import ddppo
from ddppo.config.compose import presets
from ddppo.config.fields import setting
from ddppo.errors import ConfigError
from ddppo.files import stored
from ddppo.options import door, parse
from ddppo.package import command, own_install_command

_USAGE = """python -m ddppo.new <name> [key=value ...]
python -m ddppo.new my_project
python -m ddppo.new my_project folder=../work/my_project"""

# What the templates call the project; their text and paths hold it nowhere else.
_STANDS_FOR_THE_NAME = "my_project"
# No index need have ddppo: the README of the project says what installs it, and pyproject.toml asks for its version.
_STANDS_FOR_DDPPO = {"INSTALL_DDPPO": own_install_command, "ddppo>=0": lambda: f"ddppo>={ddppo.__version__}"}
_TEMPLATES = Path(__file__).resolve().parent / "templates" / "project"


@dataclass(slots=True)
class NewConfig:
    name: str = setting(MISSING, "the project's name, which its Python package has too")
    folder: str | None = setting(None, "where it goes, a folder that is not there yet; ./<name> if null")


@door()
def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    options = parse(NewConfig, sys.argv[1:], path="name", usage=_USAGE)
    folder = Path(options.folder or options.name)
    for path in make_project(options.name, folder):
        print(path)
    print(
        f"\ncd {shlex.quote(str(folder))}\n"
        f"{command('pip', 'install', '--editable', '.', folder=folder)}\n"
        f"{command('ddppo.train', f'env={options.name}', 'dist.world_size=4', folder=folder)}\n"
        "and go on with its README.md"
    )


def make_project(name: str, folder: Path) -> list[Path]:
    """Write the project into `folder`, which must not be there or be empty, and return the paths of its files.

    Raises ConfigError for a name that no package can have or that another has, and for a folder that is taken;
    StorageError where it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"folder={folder}: is there already: name one that is not, or an empty one")
    _check_name(name)
    paths = []
    for template in sorted(p for p in _TEMPLATES.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        path = folder / str(template.relative_to(_TEMPLATES)).replace(_STANDS_FOR_THE_NAME, name)
        with stored(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = template.read_text(encoding="utf-8").replace(_STANDS_FOR_THE_NAME, name)
            for word, what in _STANDS_FOR_DDPPO.items():
                text = text.replace(word, what())
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _check_name(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"name={name}: a Python package is to have it: lower-case letters, digits and underscores, a letter first"
        )
    spec = find_spec(name)  # of a folder without __init__.py it has no origin
    if name in ("tests", "conf") or (spec is not None and spec.origin is not None):
        raise ConfigError(f"name={name}: something here has that name already, and would be imported instead")
    for group in sorted({path.parent.name for path in _TEMPLATES.glob("*/conf/*/*.yaml")}):
        if name in presets(group):
            raise ConfigError(
                f"name={name}: ddppo has a preset {group}={name}, which would be taken for the project's own"
            )


if __name__ == "__main__":
    main()
