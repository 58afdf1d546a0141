"""The one table of metrics, and what it says about names."""

import difflib
import functools
from collections.abc import Iterable

from ddppo.plugins import added, imported
from ddppo.run.records.metrics.evaluation import OF_EVALUATION
from ddppo.run.records.metrics.learning import OF_LEARNING
from ddppo.run.records.metrics.metric import (
    OF_LOSSES,
    OF_TASK,
    OF_USER,
    PER_RANK,
    SUCCESS_OF,
    Metric,
)
from ddppo.run.records.metrics.timing import OF_TIME

METRICS: tuple[Metric, ...] = (*OF_LEARNING, *OF_TIME, *OF_EVALUATION)

PER_RANK_NAMES = frozenset(m.name for m in METRICS if m.reduction == PER_RANK)
GLOBAL_NAMES = frozenset(m.name for m in METRICS if m.reduction != PER_RANK)
_OF_OTHERS = (OF_TASK, OF_LOSSES, OF_USER, SUCCESS_OF)  # who name what follows


@functools.cache
def of_plugins() -> tuple[Metric, ...]:
    """Return the rows that plugins bring, all of them global."""
    return tuple(row for path in added("metrics").values() for row in imported(path))


def check_names(names: Iterable[str], *, per_rank: bool) -> None:
    """Raise KeyError, with near matches, for a name that is not in the table as per rank, or as global."""
    listed = PER_RANK_NAMES if per_rank else GLOBAL_NAMES
    for name in names:
        if name in listed or (name.startswith(_OF_OTHERS) and not per_rank):
            continue
        if not per_rank and any(_is_of(row, name) for row in of_plugins()):
            continue
        kind, other = ("per rank", "global") if per_rank else ("global", "per rank")
        if name in PER_RANK_NAMES | GLOBAL_NAMES:
            raise KeyError(f"metric {name} is {other} in the table of ddppo/run/records/metrics, not {kind}")
        near = difflib.get_close_matches(name, sorted(listed), n=3, cutoff=0.6)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise KeyError(f"{kind} metric {name} is not listed in ddppo/run/records/metrics: add it there{hint}")


def _is_of(row: Metric, name: str) -> bool:
    """Return whether a row is of this name: loss/<name> is of all that begin with loss/."""
    start, placeholder, _ = row.name.partition("<")
    return name.startswith(start) if placeholder else name == start


def markdown() -> str:
    """Return METRICS and those of plugins as the table of docs/metrics.md."""
    lines = ["| name | unit | reduction over ranks | meaning | source |", "|---|---|---|---|---|"]
    for m in (*METRICS, *of_plugins()):
        # A bare | would end the cell.
        cells = [f"`{m.name}`", m.unit, m.reduction, m.meaning, m.source]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
