"""Which curves do TensorBoard's event files hold? Those of any program: CleanRL, Stable-Baselines3, rsl_rl, RLlib.

TensorBoard's own EventAccumulator reads them. A folder with event files is one run. The time of a point is the time
since the first point of any of its curves.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddppo.errors import RunFolderError

_MARK = "tfevents"  # in the name of an event file
_HYPERPARAMETERS = "hyperparameters/text_summary"  # CleanRL's table of arguments
_ROW = re.compile(r"^\|([^|\n]+)\|(.*)\|\s*$", re.MULTILINE)


class EventCurve(NamedTuple):
    """One tag of a run, in the order of its steps."""

    steps: np.ndarray  # [points]
    seconds: np.ndarray  # [points], since the run's first event
    values: np.ndarray  # [points]


class EventFolder:
    """The event files of one folder."""

    def __init__(self, path: Path) -> None:
        """Read the files. Raises RunFolderError if they cannot be read."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of restarts, which are no mistake
        # 0 keeps all points; of texts the first is enough.
        self._events = EventAccumulator(str(path), {"scalars": 0, "tensors": 0})
        try:
            self._events.Reload()
        except Exception as e:  # a damaged file raises whatever its parser meets
            raise RunFolderError(f"{path}: its event files cannot be read: {type(e).__name__}: {e}") from e
        self.path = path

    @property
    def tags(self) -> list[str]:
        """Names of all curves; tags that hold texts or pictures are none."""
        tensors = [tag for tag in self._events.Tags()["tensors"] if self._is_scalar(tag)]
        return sorted({*self._events.Tags()["scalars"], *tensors})

    def curve(self, tag: str) -> EventCurve:
        """Return the curve of a tag. Points at the same step, such as episodes that ended at it, become their mean."""
        if tag in self._events.Tags()["scalars"]:
            points = [(e.step, e.wall_time, e.value) for e in self._events.Scalars(tag)]
        else:
            points = [(e.step, e.wall_time, _number(e.tensor_proto)) for e in self._events.Tensors(tag)]
        found = np.array(sorted(p for p in points if np.isfinite(p[2])), dtype=np.float64).reshape(-1, 3)
        steps, first = np.unique(found[:, 0], return_index=True)
        if not len(steps):
            return EventCurve(*(np.zeros(0) for _ in range(3)))
        counts = np.diff(np.append(first, len(found)))
        times, values = (np.add.reduceat(found[:, i], first) / counts for i in (1, 2))
        return EventCurve(steps, times - self._events.FirstEventTimestamp(), values)

    def settings(self) -> Mapping[str, str]:
        """Return the arguments that CleanRL writes as a table in a text; none of other programs."""
        if _HYPERPARAMETERS not in self._events.Tags()["tensors"]:
            return {}
        text = self._events.Tensors(_HYPERPARAMETERS)[0].tensor_proto.string_val
        rows = _ROW.findall(text[0].decode("utf-8", "replace")) if text else []
        return {name.strip(): value.strip() for name, value in rows if name.strip() not in ("param", "-")}

    def _is_scalar(self, tag: str) -> bool:
        # tf.summary.scalar writes tensors of the plugin "scalars".
        return bool(self._events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars")


def event_folders(folder: Path, without: Mapping[Path, Any]) -> Iterator[Path]:
    """Yield the folders at or below `folder` that hold event files; not those in `without`, nor in reports."""
    for here, subfolders, names in os.walk(folder):
        path = Path(here)
        if path in without or _is_report(path):
            subfolders.clear()
            continue
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if any(_MARK in name for name in names):
            yield path


def _is_report(folder: Path) -> bool:
    """Return whether ddppo.report wrote the folder: its own event files are scores over W, not a run."""
    try:
        return "kind" in json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _number(tensor: Any) -> float:
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(tensor))
