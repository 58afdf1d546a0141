"""The command `python -m ddppo.new`: write a project of your own, shaped like the packages of ddppo.domains."""

import keyword
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from omegaconf import MISSING

import ddppo
from ddppo.config.fields import setting
from ddppo.config.presets import presets
from ddppo.errors import ConfigError
from ddppo.files import stored
from ddppo.options import door, parse
from ddppo.package import command, own_install_command

_USAGE = """python -m ddppo.new <name> [key=value ...]
python -m ddppo.new my_project
python -m ddppo.new my_project folder=../work/my_project"""

# The project's name in the templates' texts and paths.
_PLACEHOLDER = "my_project"
# A package index may lack ddppo: the project's README has the command that installs it, and pyproject.toml its version.
_OTHER_PLACEHOLDERS = {
    "INSTALL_DDPPO": own_install_command,
    "ddppo>=0": lambda: f"ddppo>={ddppo.__version__}",
}
_TEMPLATES = Path(__file__).resolve().parent / "templates" / "project"


@dataclass(slots=True)
class NewConfig:
    name: str = setting(MISSING, "the name of the project and of its Python package")
    folder: str | None = setting(None, "the new folder to write it into; null is ./<name>")


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
    """Write the project into `folder`, which must be new or empty, and return the paths of its files.

    Raises ConfigError if no package can have the name, if another package has it, or if the folder is not empty;
    StorageError if it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"folder={folder}: exists already: name a new folder, or an empty one")
    # Check everything before the first file is written.
    _check_name(name)
    paths = []
    for template in sorted(p for p in _TEMPLATES.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        path = folder / str(template.relative_to(_TEMPLATES)).replace(_PLACEHOLDER, name)
        with stored(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = template.read_text(encoding="utf-8").replace(_PLACEHOLDER, name)
            for word, value in _OTHER_PLACEHOLDERS.items():
                text = text.replace(word, value())
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _check_name(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"name={name}: is no name of a Python package: lower-case letters, digits and underscores, a letter first"
        )
    spec = find_spec(name)  # without an origin, it is a folder without __init__.py, and not a package
    if name in ("tests", "conf") or (spec is not None and spec.origin is not None):
        raise ConfigError(f"name={name}: another package here has that name, and would be imported instead")
    # Hydra would find two presets of one name.
    for group in sorted({path.parent.name for path in _TEMPLATES.glob("*/conf/*/*.yaml")}):
        if name in presets(group):
            raise ConfigError(
                f"name={name}: ddppo has a preset {group}={name}, and the project's own would have the same name"
            )


if __name__ == "__main__":
    main()
