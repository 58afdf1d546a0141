"""What TensorBoard shows of a run: scalars at the global env step, pages for time, topology and stability."""

import json
import os
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import Config
from ddppo.files import free_name, replacing
from ddppo.records.metrics import TASK_PREFIX, TOPOLOGY_METRICS, WAIT_NAMES, IterationReport
from ddppo.terminal import warn

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
        "held up by saving (s)": ["time/t_checkpoint$"],
        "waiting, by whom it is for (s, mean over ranks)": [f"{name}$" for name in WAIT_NAMES],
    },
    "topology": {
        "messages of a rank and iteration": ["dist/messages$"],
        "bytes that a rank hands over in them": ["dist/bytes$"],
        "environments answered by one forward": ["rollout/inference_batch$"],
        "lag (updates)": ["dist/lag_mean$", "dist/lag_max$"],
        "rollouts learned from, by their lag": [
            f"{m.name}$" for m in TOPOLOGY_METRICS if "lag_" in m.name and m.unit == "rollouts"
        ],
        "rollouts waiting and refused": ["dist/queue_depth$", "dist/refused$"],
        "processes started again, episodes lost with them": [
            "dist/restarts$",
            "rollout/env_restarts$",
            "dist/lost_episodes$",
        ],
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
_TASK_BY_WALL = "task_by_wall_ms/"
# What the HPARAMS tab compares, from the evaluation at the end.
FINAL_NAMES = ("return_mean", "return_median", "return_iqm", "return_std", "episodes")


class TensorBoardWriter:
    """Scalars at the global env step, pages for time, topology and stability, hyperparameters.

    In `folder`: the global metrics; those of ranks, but for rollout/local_*, as means over the ranks that have them;
    dist/rank<r>/t_rollout and t_sync if W > 1; eval_by_wall_ms/return_* and task_by_wall_ms/*, whose x-axis is wall_s
    in milliseconds; eval_final/* and the hyperparameters; what a task's journal shows, under task/. All of it is one
    run to TensorBoard.

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

        threading.excepthook = _without_tensorboard(threading.excepthook)
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
        scalars = report.scalars()
        if self._world_size > 1:
            for rank, metrics in enumerate(report.rank_metrics):
                for name in {"time/t_rollout", "time/t_sync"} & metrics.keys():
                    scalars[f"dist/rank{rank}/{name.removeprefix('time/')}"] = metrics[name]
        _add_scalars(self._writer, scalars, report.env_steps)
        by_wall = {}
        for name, value in report.global_metrics.items():
            if name.startswith("eval/return_"):
                by_wall[_BY_WALL + name.removeprefix("eval/")] = value
            elif name.startswith(TASK_PREFIX):
                by_wall[_TASK_BY_WALL + name.removeprefix(TASK_PREFIX)] = value
        if by_wall:
            _add_scalars(self._writer, by_wall, _ms(report.wall_s))
        self._env_steps = report.env_steps

    def show(self, pictures: Mapping[str, np.ndarray], env_steps: int) -> None:
        """Show pictures `[height, width, 3]` uint8 by name."""
        for name, picture in pictures.items():
            self._writer.add_image(TASK_PREFIX + name, picture, env_steps, dataformats="HWC")

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


def _without_tensorboard(hook: Callable[[threading.ExceptHookArgs], Any]) -> Callable[..., Any]:
    """Return a hook that does not show what ends TensorBoard's writing thread: the next write raises it."""

    def shown(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            hook(args)

    return shown


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _add_scalars(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    """Write many scalars as one event, cheaper by far than a call of add_scalar for each."""
    from torch.utils.tensorboard.summary import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    _add_summary(writer, Summary(value=values), step)


def _drop_events_after(path: Path, env_steps: int, wall_ms: int) -> None:
    """Leave in an event file the scalars up to a checkpoint; layout and hyperparameters are written anew.

    Of a damaged file what comes before the damage is kept, and the file itself under another name.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    from torch.utils.tensorboard.writer import Event

    damage = ""
    with path.open("rb") as file, replacing(path, "wb") as kept:
        # TFRecord: uint64 length, uint32 checksum of it, data, uint32 checksum. The last may be half-written.
        while len(header := file.read(12)) == 12:
            length, checksum = struct.unpack("<QI", header)
            if masked_crc32c(header[:8]) != checksum:
                damage = f"byte {file.tell() - 12} begins no record"
                break
            body = file.read(length + 4)
            if len(body) < length + 4:
                break
            try:
                event = Event.FromString(body[:length])
            except DecodeError:
                damage = f"the record before byte {file.tell()} cannot be read"
                break
            values = event.summary.value
            last = wall_ms if values and values[0].tag.startswith((_BY_WALL, _TASK_BY_WALL)) else env_steps
            described = any(value.HasField("metadata") for value in values)
            if event.step <= last and not described:
                kept.write(header + body)
        if damage:
            # TensorBoard reads every file with tfevents in its name.
            aside = free_name(path.with_name(path.name.replace("tfevents", "damaged")))
            os.link(path, aside)
    if damage:
        warn(f"{path} is damaged ({damage}): the curves of before are kept, and the file as {aside.name}")


def _add_summary(writer: Any, summary: Any, step: int | None = None) -> None:
    writer.file_writer.add_summary(summary, step)
