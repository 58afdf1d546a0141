"""Where the iterations' numbers go: metrics.jsonl, TensorBoard, and whole JSON files.

Only rank 0 writes; the other ranks hold `Writers()`, which writes nothing.
"""

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import IO, Any, Protocol

from ddppo.config import Config
from ddppo.errors import RunFolderError
from ddppo.run.metrics import PER_RANK_NAMES, IterationReport

_LINE_KEYS = ("iteration", "rank", "env_steps", "wall_s")


class RunWriter(Protocol):
    """What the worker loop hands its reports to."""

    def write(self, report: IterationReport) -> None: ...

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        """Release the files. `completed` is false after a fault or Ctrl-C."""
        ...


class Writers:
    """Hands every report to each of its writers; with none, writes nothing."""

    def __init__(self, *writers: RunWriter) -> None:
        self._writers = writers

    def write(self, report: IterationReport) -> None:
        for writer in self._writers:
            writer.write(report)

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        with ExitStack() as stack:  # one that fails does not leave the others open
            for writer in self._writers:
                stack.callback(writer.close, final_eval, completed=completed)


def jsonable(value: Any) -> Any:
    """Return `value` in JSON's types: NaN and infinity as null, NumPy scalars as numbers, paths as text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and callable(value.item):  # NumPy scalars
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON so that `path` is whole at every moment: old, new, or not there."""
    with _replacing(path) as file:
        json.dump(jsonable(value), file, indent=2, allow_nan=False)
        file.write("\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that `path` is whole at every moment."""
    with _replacing(path) as file:
        file.write(text)


def keep_earlier(path: Path) -> None:
    """Move a file that is about to be written anew to the first free numbered name beside it."""
    if path.exists():
        number = 1
        while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
            number += 1
        path.rename(kept)


class JsonlWriter:
    """Appends to metrics.jsonl: for each report one line per rank; that of rank 0 has the global metrics too.

    A line has iteration, rank, env_steps, wall_s and flat metric names. It is in the hands of the operating
    system when `write` returns, so that kill -9 loses at most the line being written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, report: IterationReport) -> None:
        lines = []
        for rank, metrics in enumerate(report.rank_metrics):
            position = (report.iteration, rank, report.env_steps, report.wall_s)
            line = dict(zip(_LINE_KEYS, position, strict=True)) | metrics
            if rank == 0:
                line |= report.global_metrics
            lines.append(json.dumps(jsonable(line), allow_nan=False) + "\n")
        self._file.write("".join(lines))
        self._file.flush()

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        self._file.close()


def drop_after(path: Path, iteration: int) -> int:
    """Leave in metrics.jsonl the complete lines up to `iteration`, and return how many others were dropped.

    The iterations after a checkpoint are done again on resume. Their old lines are moved, to
    metrics.superseded.jsonl; only the fragment of a line that a kill left at the end is discarded. Raises
    RunFolderError for a line that is not one of ours.
    """
    if not path.exists():
        return 0
    dropped = []
    with _replacing(path) as kept:
        for text, line in _complete_lines(path):
            if line["iteration"] <= iteration:
                kept.write(text)
            else:
                dropped.append(text)
        if dropped:
            with path.with_name(f"{path.stem}.superseded{path.suffix}").open(
                "a", encoding="utf-8"
            ) as superseded:
                superseded.writelines(dropped)
                superseded.flush()
                os.fsync(superseded.fileno())
    return len(dropped)


def read_reports(path: Path) -> Iterator[IterationReport]:
    """Yield what a JsonlWriter wrote, in order; null reads as NaN. Raises RunFolderError, as drop_after."""
    lines = (line for _, line in _complete_lines(path))
    for iteration, group in groupby(lines, key=lambda line: line["iteration"]):
        ranks: list[dict[str, float]] = []
        global_metrics: dict[str, float] = {}
        for line in group:
            position = {key: line.pop(key) for key in _LINE_KEYS}
            values = {name: math.nan if value is None else value for name, value in line.items()}
            ranks.append({name: value for name, value in values.items() if name in PER_RANK_NAMES})
            global_metrics |= {name: value for name, value in values.items() if name not in PER_RANK_NAMES}
        yield IterationReport(
            iteration, position["env_steps"], position["wall_s"], tuple(ranks), global_metrics
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


@contextmanager
def _replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Give a temporary file beside `path` that takes its place, synced, if the block succeeds."""
    temporary = path.with_name(f".{os.getpid()}.tmp")
    try:
        with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# Page -> chart -> tags. TensorBoard reads the tags as regular expressions that match from the start.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "time breakdown": {
        "parts of an iteration (s, mean over ranks)": [
            "time/t_iter$",
            "time/t_rollout$",
            "time/t_learn$",
            "time/t_sync$",
            "time/t_comm$",
            "time/t_other$",
        ],
        "shares of an iteration": ["dist/rho_comm$", "dist/rho_sync$"],
        "communication: exposed and total (s)": ["time/t_comm$", "time/t_comm_total$"],
        "t_rollout of each rank (s)": [r"dist/rank\d+/t_rollout$"],
        "t_sync of each rank (s)": [r"dist/rank\d+/t_sync$"],
        "steps per second": ["rollout/fps$"],
    },
    "stability": {
        "approximate KL (nats)": ["train/approx_kl$"],
        "clipped and outlying ratios": ["train/clip_fraction$", "train/ratio_outliers$"],
        "entropy (nats)": ["train/entropy$"],
        "policy loss": ["train/policy_loss$"],
        "value loss": ["train/value_loss$"],
        "explained variance": ["train/explained_variance$"],
        "gradient norm before clipping": ["train/grad_norm$"],
        "learning rate": ["train/learning_rate$"],
        "epochs completed": ["train/epochs$"],
    },
}
_BY_WALL = "eval_by_wall_ms/"
# What the HPARAMS tab compares, from the evaluation at the end.
FINAL_NAMES = ("return_mean", "return_median", "return_iqm", "return_std", "episodes")


class TensorBoardWriter:
    """Scalars at the global env step, a page for the time and one for stability, hyperparameters.

    In `folder`: the global metrics; time/* and dist/* as means over ranks; dist/rank<r>/t_rollout and t_sync
    if W > 1; eval_by_wall_ms/return_*, whose x-axis is wall_s in milliseconds; eval_final/* and the
    hyperparameters. All of it is one run to TensorBoard.

    On resume give env_steps and wall_s of the checkpoint: what was written after it is removed from `folder`
    (drop_after keeps the numbers). SummaryWriter's purge_step is no substitute: TensorBoard 2.21 goes on
    showing purged points whose steps are not written again.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        world_size: int,
        *,
        resumed_at_steps: int | None = None,
        resumed_at_wall_s: float = 0.0,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if resumed_at_steps is not None:
            for path in sorted(folder.glob("*tfevents*")):
                _drop_events_after(path, resumed_at_steps, _ms(resumed_at_wall_s))
        # What is not flushed when a process is killed leaves a gap in the curves after resume.
        self._writer = SummaryWriter(str(folder), flush_secs=1, max_queue=100)
        self._world_size = world_size
        self._env_steps = resumed_at_steps or 0
        pages = {
            page: {name: ["Multiline", tags] for name, tags in charts.items()}
            for page, charts in LAYOUT.items()
        }
        self._writer.add_custom_scalars(pages)
        # add_hparams would open a folder of its own, and with it a second run of one point.
        metrics = dict.fromkeys((f"eval_final/{name}" for name in FINAL_NAMES), 0.0)
        experiment, start, self._session_end = hparams(hyperparameters(config), metrics)
        _add_summary(self._writer, experiment)
        _add_summary(self._writer, start)

    def write(self, report: IterationReport) -> None:
        scalars = dict(report.global_metrics)
        for name in report.rank_metrics[0]:
            mean = report.rank_mean(name)
            if name.startswith(("time/", "dist/")) and mean is not None:
                scalars[name] = mean
        if self._world_size > 1:
            for rank, metrics in enumerate(report.rank_metrics):
                for name in {"time/t_rollout", "time/t_sync"} & metrics.keys():
                    scalars[f"dist/rank{rank}/{name.removeprefix('time/')}"] = metrics[name]
        _add_scalars(self._writer, scalars, report.env_steps)
        returns = {k: v for k, v in report.global_metrics.items() if k.startswith("eval/return_")}
        if returns:
            by_wall = {_BY_WALL + k.removeprefix("eval/"): v for k, v in returns.items()}
            _add_scalars(self._writer, by_wall, _ms(report.wall_s))
        self._env_steps = report.env_steps

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        if final_eval is not None:
            final = {f"eval_final/{name.removeprefix('eval/')}": value for name, value in final_eval.items()}
            _add_scalars(self._writer, final, self._env_steps)
        if completed:
            _add_summary(self._writer, self._session_end)
        self._writer.close()


def hyperparameters(config: Config) -> dict[str, str | float]:
    """Return the settings that may explain a result, flat ("ppo.gamma"), for TensorBoard's HPARAMS tab."""
    explain = ("env", "model", "ppo", "dist", "scaling", "seed", "device", "dtype")
    flat: dict[str, Any] = {}
    for key, value in asdict(config).items():
        if key in explain:
            flat |= (
                {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
            )
    # The tab knows numbers and strings; torch would write a bool as a number.
    number_or_text = {key: v for key, v in flat.items() if type(v) in (int, float, str)}
    return number_or_text | {
        k: json.dumps(v) for k, v in flat.items() if k not in number_or_text and v is not None
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _add_scalars(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    """Write many scalars as one event, cheaper by far than a call of add_scalar for each."""
    from torch.utils.tensorboard.summary import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    _add_summary(writer, Summary(value=values), step)


def _drop_events_after(path: Path, env_steps: int, wall_ms: int) -> None:
    """Leave in an event file the scalars up to a checkpoint; layout and hyperparameters are written anew."""
    from torch.utils.tensorboard.writer import Event

    with path.open("rb") as file, _replacing(path, "wb") as kept:
        # TFRecord: uint64 length, uint32 checksum of it, data, uint32 checksum. The last may be half-written.
        while len(header := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", header[:8])
            body = file.read(length + 4)
            if len(body) < length + 4:
                return
            event = Event.FromString(body[:length])
            values = event.summary.value
            last = wall_ms if values and values[0].tag.startswith(_BY_WALL) else env_steps
            described = any(value.HasField("metadata") for value in values)
            if event.step <= last and not described:
                kept.write(header + body)


def _add_summary(writer: Any, summary: Any, step: int | None = None) -> None:
    writer.file_writer.add_summary(summary, step)
