"""metrics.jsonl: a line for every iteration and rank, appended, and cut back where a run goes on from a checkpoint."""

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
    """Appends to metrics.jsonl: for each report one line per rank; that of rank 0 has the global metrics too.

    A line has iteration, rank, env_steps, wall_s and flat metric names; the first that is appended to others has
    resumed=true. It is in the hands of the operating system when `write` returns, so that kill -9 loses at most the
    line being written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, str(path)
        with stored(path):
            self._file = path.open("ab", buffering=0)
            self._resumes = os.fstat(self._file.fileno()).st_size > 0

    def write(self, report: IterationReport, *, is_new: bool = True) -> None:
        """Append the report's lines, all of them or, where the disk refuses, none. Raises StorageError.

        goes_on: whether a resumed run did this iteration; one that was done before the stop is not marked as resumed.

        Also where the file is not where it was, for the folder is gone: what is written to it then nobody finds.
        """
        lines = []
        for rank, metrics in enumerate(report.rank_metrics):
            position = (report.iteration, rank, report.env_steps, report.wall_s)
            line = dict(zip(_LINE_KEYS, position, strict=True)) | metrics
            if rank == 0:
                line |= report.global_metrics | ({"resumed": True} if self._resumes and is_new else {})
            lines.append(_as_json(line) + "\n")
        rest = memoryview("".join(lines).encode())
        ours = os.fstat(self._file.fileno())
        try:
            if os.stat(self._name).st_ino != ours.st_ino:
                raise FileExistsError(errno.EEXIST, "another file has its place")
        except OSError as e:
            raise StorageError.of(self._path, e) from e
        try:
            while rest:  # a disk that fills up takes a part first
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
    except ValueError:  # of NaN and infinity, which a walk over all would look for at every iteration
        return json.dumps(jsonable(line), allow_nan=False)


def drop_after(path: Path, iteration: int) -> int:
    """Leave in metrics.jsonl the complete lines up to `iteration`, and return how many others were dropped.

    The iterations after a checkpoint are done again on resume. Their old lines are moved, to
    metrics.superseded.jsonl; only the fragment of a line that a kill left at the end is discarded. Raises
    RunFolderError for a line that is not one of ours, StorageError.
    """
    if not path.exists():
        return 0
    kept: list[str] = []
    dropped: list[str] = []
    for text, line in _complete_lines(path):
        (kept if line["iteration"] <= iteration else dropped).append(text)
    if dropped:
        superseded = _superseded(path)
        before = superseded.read_text(encoding="utf-8") if superseded.exists() else ""
        moved = "".join(dropped)
        if not before.endswith(moved):  # else a kill came between the moving and the cutting
            with replacing(superseded) as file:
                file.write(before + moved)
    content = "".join(kept)
    if len(content.encode()) < path.stat().st_size:  # a fragment may be all that goes
        with replacing(path) as file:
            file.write(content)
    return len(dropped)


def last_superseded(path: Path) -> int:
    """Return the most environment steps of iterations that were done again since, or will be; 0 where there are none.

    Raises RunFolderError, as drop_after.
    """
    superseded = _superseded(path)
    lines = _complete_lines(superseded) if superseded.exists() else ()
    return max((line["env_steps"] for _, line in lines), default=0)


def _superseded(path: Path) -> Path:
    return path.with_name(f"{path.stem}.superseded{path.suffix}")


def read_reports(path: Path) -> Iterator[IterationReport]:
    """Yield what a JsonlWriter wrote, in order; null reads as NaN. Raises RunFolderError, as drop_after."""
    lines = (line for _, line in _complete_lines(path))
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
