"""The files of an episode: what `file://`, `--body`, outfiles and local paths of `aws s3` read and write.

The folder is held in memory, so no path leads out of it, nothing is left behind when a process is killed, and a fork
has a copy of its own. It is emptied at every reset; a task may bring files. Folders exist as long as they hold a file.
"""

import posixpath
from collections.abc import Iterator, Mapping

MOST_BYTES = 1 << 20  # of all files together
MOST_FILES = 256
WRITTEN = 1767225600.0  # 2026-01-01 UTC: when the files were written that a task brings


class CommandError(Exception):
    """A command that failed: its output, and its exit status as in version 2 of the AWS CLI.

    252: the line could not be parsed. 254: the service refused. 255: any other error.
    (https://docs.aws.amazon.com/cli/latest/userguide/cli-usage-returncodes.html)
    """

    def __init__(self, output: str, status: int = 252, code: str = "") -> None:
        super().__init__(output)
        self.output, self.status, self.code = output, status, code
        self.broke = False  # the simulator failed, and may have done half of a call's work


class Folder:
    """Files by their paths relative to the folder, `site/index.html`."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}
        self.fill(files or {})

    def fill(self, files: Mapping[str, bytes]) -> None:
        """Hold these files, and no others."""
        self._files = {name: (content, WRITTEN) for name, content in files.items()}

    def held(self) -> dict[str, bytes]:
        return {name: content for name, (content, _) in self._files.items()}

    def is_file(self, path: str) -> bool:
        return not path.endswith("/") and inside(path) in self._files

    def is_folder(self, path: str) -> bool:
        within = inside(path)
        return within == "" or any(name.startswith(f"{within}/") for name in self._files)

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError or IsADirectoryError, worded as by Python."""
        within = inside(path)
        if within in self._files and not path.endswith("/"):
            return self._files[within][0]
        if self.is_folder(path):
            raise IsADirectoryError(f"[Errno 21] Is a directory: {path!r}")
        raise FileNotFoundError(f"[Errno 2] No such file or directory: {path!r}")

    def write(self, path: str, content: bytes, time: float = WRITTEN) -> None:
        """Write a file, and the folders above it. Raises OSError if the folder is full, or the path is taken."""
        within = inside(path)
        if path.endswith("/") or self.is_folder(path):
            raise IsADirectoryError(f"[Errno 21] Is a directory: {path!r}")
        above = within.split("/")[:-1]
        if any("/".join(above[: at + 1]) in self._files for at in range(len(above))):
            raise NotADirectoryError(f"[Errno 20] Not a directory: {path!r}")
        others = [held for name, (held, _) in self._files.items() if name != within]
        if len(others) >= MOST_FILES or sum(map(len, others)) + len(content) > MOST_BYTES:
            raise OSError(f"[Errno 28] No space left on device: {path!r}")
        self._files[within] = (content, time)

    def remove(self, path: str) -> None:
        del self._files[inside(path)]

    def time_of(self, path: str) -> float:
        return self._files[inside(path)][1]

    def under(self, path: str) -> Iterator[str]:
        """Yield the files in a folder and below it, in the order of S3: a folder sorts as its name with a slash."""
        within = inside(path)
        for name in sorted(self._files):
            if not within or name.startswith(f"{within}/"):
                yield name


def inside(path: str) -> str:
    """Return a path relative to the folder, "" for the folder itself. Raises CommandError for one that leads out."""
    plain = posixpath.normpath(path) if path else ""
    if path.startswith(("/", "~")) or "$" in path or plain == ".." or plain.startswith("../") or "\0" in path:
        raise CommandError(
            f"{path!r} leads out of the folder, which is not allowed: name a file in it, without /, ~, $ or ..",
            255,
        )
    return "" if plain == "." else plain
