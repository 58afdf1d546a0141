"""Files of checkpoints: save, find, check and load them.

A checkpoint is whole on disk or not there at all, and it loads without unpickling code. Functions that only look for
files do not import torch, because every command that lists runs calls them.
"""

import io
import platform
import re
import zipfile
from pathlib import Path
from typing import Any

from ddppo.errors import RunFolderError
from ddppo.files import move_aside, replacing, stored
from ddppo.terminal import warn

FORMAT = "ddppo-checkpoint"
VERSION = (
    3  # version 1 lacks the states of most environments; 2 repeats what environments share for each of them
)
_NAME = re.compile(r"iteration_(\d{8})\.pt")
BEST = "best.pt"  # the policy of the best evaluation so far
PREVIOUS = (
    "best.previous.pt"  # the best policy that the newest checkpoint refers to, once a better one was found
)


# -- Save.


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, lists, dicts) to `path`, whole or not at all. Raises StorageError."""
    import torch

    # Serialize in memory: torch's own file writer hides the disk's error behind one of its own.
    content = io.BytesIO()
    torch.save({"format": FORMAT, "version": VERSION, "made_by": _makers(), **state}, content)
    with stored(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # `replacing` writes under a temporary name, syncs, and renames: the file appears whole.
    with replacing(path, "wb") as file:
        file.write(content.getbuffer())


def _makers() -> dict[str, str]:
    """Return the versions on which the bits of a run depend."""
    import torch

    return {"torch": str(torch.__version__), "Python": platform.python_version()}


def made_elsewhere(state: dict[str, Any]) -> str | None:
    """Return a sentence if other versions of torch or Python made the checkpoint; None if the versions are equal."""
    made_by, now = state.get("made_by", {}), _makers()
    other = {name: version for name, version in made_by.items() if version != now.get(name)}
    if not other:
        return None
    was, is_now = (" and ".join(f"{name} {of.get(name)}" for name in other) for of in (other, now))
    return (
        f"its checkpoint was made by {was}, and this is {is_now}: the run goes on, and its last bits may differ from "
        "those of a run that was not interrupted"
    )


def save_iteration(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Save the checkpoint of `iteration` and delete all but the `keep` newest ones."""
    path = folder / f"iteration_{iteration:08d}.pt"
    save(path, state)
    # Only now, with the new file on disk, delete old ones.
    for old in _all(folder)[:-keep]:
        with stored(old):
            old.unlink()
    return path


# -- Find.


def last(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder`, or None."""
    return next(reversed(_all(folder)), None)


def iteration_of(path: Path) -> int:
    """Return the iteration after which a checkpoint was saved, from its file name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1])


def last_whole(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest undamaged checkpoint, or None, and the damaged ones that are newer."""
    damaged: list[Path] = []
    for path in reversed(_all(folder)):
        if is_whole(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def set_damaged_aside(folder: Path) -> list[Path]:
    """Rename the damaged checkpoints that are newer than the last whole one, and best.pt if it is damaged.

    Returns their new names. Call it only while the folder is locked (run_folder.held).
    """
    _, damaged = last_whole(folder)
    best = folder / "best.pt"
    if best.is_file() and not is_whole(best):
        damaged.append(best)
    return [kept for path in damaged if (kept := move_aside(path, label=".damaged"))]


def is_whole(path: Path) -> bool:
    """Return whether the file can be read to its end and its checksums are right.

    torch.save writes a zip archive with checksums, but torch.load does not check them: it would load a flipped byte.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return False


def chosen(which: str, run_dir: Path) -> Path:
    """Return the checkpoint that a user chose as last, best, or by its path. Raises RunFolderError."""
    folder = run_dir / "checkpoints"
    if which == "last":
        whole, damaged = last_whole(folder)
        if whole is None:
            if damaged:
                raise RunFolderError(
                    f"{damaged[0]} is damaged, and {run_dir} has no older checkpoint that is whole"
                )
            raise RunFolderError(f"{run_dir} has no checkpoint yet")
        for newer in damaged:
            warn(f"{newer} is damaged: {whole.name} is taken")
        return whole
    # best, or a path.
    path = folder / "best.pt" if which == "best" else Path(which)
    if not path.is_file():
        raise RunFolderError(f"checkpoint={which}: {path} does not exist; use last, best or a file's path")
    return path


# -- Load.


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU. One of an earlier version is returned in the present version's form.

    Raises RunFolderError for a file that is damaged, not ddppo's, or of a newer version.
    """
    import torch

    if not path.is_file():
        raise RunFolderError(f"checkpoint {path} does not exist")
    damaged = RunFolderError(f"checkpoint {path} is damaged, or not a checkpoint")
    if not is_whole(path):
        raise damaged
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # torch raises many kinds of exceptions for files that it did not write
        raise damaged from e
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunFolderError(f"checkpoint {path} was not written by ddppo")
    # Bring an earlier version into the present form.
    if state.get("version") == 1:
        missing = "an earlier ddppo wrote it, without states of environments"
        return state | {"version": VERSION, "environments": {"missing": missing}}
    if state.get("version") not in (2, VERSION):
        raise RunFolderError(
            f"checkpoint {path} has version {state.get('version')}, this ddppo reads {VERSION}"
        )
    return state


def _all(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("iteration_*.pt") if _NAME.fullmatch(p.name))
