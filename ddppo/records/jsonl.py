"""metrics.jsonl: one line per iteration and rank. It is appended to, and cut back when a run resumes from a checkpoint.

`JsonlWriter` writes it, `drop_after` cuts it back, `read_reports` reads it.
"""

import errno
import json
import math
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ddppo.errors import RunFolderError, StorageError
from ddppo.files import jsonable, replacing, stored
from ddppo.records.metrics import PER_RANK_NAMES, IterationReport

_LINE_KEYS = ("iteration", "rank", "env_steps", "wall_s")


class JsonlWriter:
    """Appends reports to metrics.jsonl: one line per rank, and in the line of rank 0 the global metrics too.

    A line has iteration, rank, env_steps, wall_s and flat metric names. The first line that a resumed run appends has
    resumed=true. `write` is unbuffered: the operating system has the lines when it returns, so that kill -9 loses at
    most the line being written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, str(path)
        with stored(path):
            self._file = path.open("ab", buffering=0)
            self._resumes = os.fstat(self._file.fileno()).st_size > 0

    def write(self, report: IterationReport, *, is_new: bool = True) -> None:
        """Append the report's lines; if the disk refuses a part of them, none.

        is_new: whether this start of the run did the iteration; only such an iteration is marked as resumed.

        Raises StorageError if the disk refuses, or if the file is no longer at its path: lines written to a deleted
        file would be lost without a word.
        """
        # Format one line per rank.
        lines = []
        for rank, metrics in enumerate(report.rank_metrics):
            position = (report.iteration, rank, report.env_steps, report.wall_s)
            line = dict(zip(_LINE_KEYS, position, strict=True)) | metrics
            if rank == 0:
                line |= report.global_metrics | ({"resumed": True} if self._resumes and is_new else {})
            lines.append(_as_json(line) + "\n")
        rest = memoryview("".join(lines).encode())
        # The open file must still be the one at the path.
        ours = os.fstat(self._file.fileno())
        try:
            if os.stat(self._name).st_ino != ours.st_ino:
                raise FileExistsError(errno.EEXIST, "another file has its place")
        except OSError as e:
            raise StorageError.of(self._path, e) from e
        try:
            while rest:  # a disk that fills up accepts a part before it refuses
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            os.ftruncate(self._file.fileno(), ours.st_size)
            raise StorageError.of(self._path, e) from e
        self._resumes = self._resumes and not is_new

    def close(self) -> None:
        self._file.close()


def _as_json(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False)
    except (
        ValueError
    ):  # NaN or infinity, which become null. Most iterations have none and need no search for them.
        return json.dumps(jsonable(line), allow_nan=False)


def drop_after(path: Path, iteration: int) -> int:
    """Cut metrics.jsonl back to the complete lines up to `iteration`; return the number of lines removed.

    A resumed run repeats the iterations after its checkpoint. Their old lines move to metrics.superseded.jsonl; only a
    fragment of a line, which a kill left at the end, is discarded. Raises RunFolderError for a line that ddppo did not
    write, and StorageError.
    """
    if not path.exists():
        return 0
    # Sort the lines into kept and dropped ones; a fragment at the end is in neither.
    kept: list[str] = []
    dropped: list[str] = []
    for text, line in _complete_lines(path):
        (kept if line["iteration"] <= iteration else dropped).append(text)
    if dropped:
        superseded = _superseded(path)
        before = superseded.read_text(encoding="utf-8") if superseded.exists() else ""
        moved = "".join(dropped)
        # If it ends with these lines, an earlier call was killed after moving them and before cutting the file.
        if not before.endswith(moved):
            with replacing(superseded) as file:
                file.write(before + moved)
    content = "".join(kept)
    if len(content.encode()) < path.stat().st_size:  # lines were dropped, or a fragment is at the end
        with replacing(path) as file:
            file.write(content)
    return len(dropped)


def last_superseded(path: Path) -> int:
    """Return the largest env_steps in metrics.superseded.jsonl; 0 if no iteration was repeated.

    Raises RunFolderError as `drop_after` does.
    """
    superseded = _superseded(path)
    lines = _complete_lines(superseded) if superseded.exists() else ()
    return max((line["env_steps"] for _, line in lines), default=0)


def _superseded(path: Path) -> Path:
    return path.with_name(f"{path.stem}.superseded{path.suffix}")


def read_reports(path: Path) -> Iterator[IterationReport]:
    """Yield the reports in metrics.jsonl, in order; null reads as NaN. Raises RunFolderError as `drop_after` does."""
    lines = (line for _, line in _complete_lines(path))
    # The lines of an iteration follow each other, rank 0 first.
    for iteration, group in groupby(lines, key=lambda line: line["iteration"]):
        ranks: list[dict[str, float]] = []
        global_metrics: dict[str, float] = {}
        resumed = False
        for line in group:
            resumed = bool(line.pop("resumed", False)) or resumed
            position = {key: line.pop(key) for key in _LINE_KEYS}
            values = {name: math.nan if value is None else value for name, value in line.items()}
            ranks.append({name: value for name, value in values.items() if name in PER_RANK_NAMES})
            global_metrics |= {name: value for name, value in values.items() if name not in PER_RANK_NAMES}
        yield IterationReport(
            iteration, position["env_steps"], position["wall_s"], tuple(ranks), global_metrics, resumed
        )


def _complete_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line that ends in a newline, as text and parsed."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            # A kill may have cut the last line.
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict) or not all(key in line for key in _LINE_KEYS):
                raise RunFolderError(
                    f"{path} line {number} was not written by ddppo: move the file away to go on without it"
                )
            yield text, line
