"""TensorBoard: scalars over env_steps, chart pages for time, topology and stability, and hyperparameters.

`LAYOUT` lists the chart pages; `TensorBoardWriter` writes the event files; the end of the file cuts them back when a
run resumes.
"""

import json
import os
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import Config
from ddppo.config.stored import in_effect, to_yaml
from ddppo.files import free_name, replacing
from ddppo.records.metrics import TASK_PREFIX, TOPOLOGY_METRICS, WAIT_NAMES, IterationReport
from ddppo.terminal import warn

# Page -> chart -> tags. A tag is a regular expression that TensorBoard matches from the start of a name.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "returns": {
        "return: training episodes, evaluations": ["rollout/return_mean$", "eval/return_mean$"],
        "success rate: training episodes, evaluations": ["rollout/success_rate$", "eval/success_rate$"],
        "numbers of the task's infos": ["env/.*"],
        "steps per second of each rank": [r"dist/rank\d+/fps$"],
    },
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
        "t_learn of each rank (s)": [r"dist/rank\d+/t_learn$"],
        "t_sync of each rank (s)": [r"dist/rank\d+/t_sync$"],
        "t_comm of each rank (s)": [r"dist/rank\d+/t_comm$"],
        "rho_comm of each rank": [r"dist/rank\d+/rho_comm$"],
        "rho_sync of each rank": [r"dist/rank\d+/rho_sync$"],
        "steps per second": ["rollout/fps$"],
        "saving checkpoints (s)": ["time/t_checkpoint$"],
        "waiting, by the role waited for (s, mean over ranks)": [f"{name}$" for name in WAIT_NAMES],
    },
    "topology": {
        "messages of a rank in an iteration": ["dist/messages$"],
        "bytes in these messages": ["dist/bytes$"],
        "environments in one forward pass": ["rollout/inference_batch$"],
        "lag (updates)": ["dist/lag_mean$", "dist/lag_max$"],
        "rollouts in the update, by their lag": [
            f"{m.name}$" for m in TOPOLOGY_METRICS if "lag_" in m.name and m.unit == "rollouts"
        ],
        "rollouts in the queue, and left out": ["dist/queue_depth$", "dist/refused$"],
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
# Curves that TensorBoard shows first, for it sorts groups by name: the same numbers once more.
_CHARTS = {
    "rollout/return_mean": "charts/return_mean",
    "eval/return_mean": "charts/eval_return_mean",
    "rollout/success_rate": "charts/success_rate",
    "rollout/length_mean": "charts/length_mean",
    "rollout/fps": "charts/fps",
}
# Of each rank, by their names there.
_OF_RANKS = {
    "rollout/local_fps": "fps",
    **{f"time/{part}": part for part in ("t_rollout", "t_learn", "t_comm", "t_sync")},
    **{f"dist/{share}": share for share in ("rho_comm", "rho_sync")},
}
_BY_WALL = "eval_by_wall_ms/"
_TASK_BY_WALL = "task_by_wall_ms/"
# Scores of the final evaluation, which the HPARAMS tab compares.
FINAL_NAMES = ("return_mean", "return_median", "return_iqm", "return_std", "episodes")


class TensorBoardWriter:
    """Writes the event files in `folder`, which are one run to TensorBoard.

    Names and x-axes:
        as in docs/metrics.md           over env_steps; per-rank metrics as means over the ranks that have them,
                                        without rollout/local_*
        charts/*                        over env_steps: returns and steps per second, which TensorBoard shows first
        dist/rank<r>/*                  over env_steps, if W > 1: fps, t_rollout, t_learn, t_comm, t_sync, rho_*
        eval_by_wall_ms/return_*        over wall_s in milliseconds
        task_by_wall_ms/*               over wall_s in milliseconds
        eval_final/*                    one point, with the hyperparameters
        config                          all settings, as text
        task/*                          pictures of the task's journal
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        world_size: int,
        *,
        resumed_at_steps: int | None = None,  # env_steps of the checkpoint; None for a new run
        resumed_at_wall_s: float = 0.0,  # wall_s of the checkpoint
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        threading.excepthook = _without_tensorboard(threading.excepthook)
        # Remove points after the checkpoint; metrics.superseded.jsonl keeps their numbers. SummaryWriter's purge_step
        # does not do it: TensorBoard 2.21 still shows a purged point if its step is not written again.
        if resumed_at_steps is not None:
            for path in sorted(folder.glob("*tfevents*")):
                _drop_events_after(path, resumed_at_steps, _ms(resumed_at_wall_s))
        # Flush every second: points lost with a killed process would be a gap in the curves after a resume.
        self._writer = SummaryWriter(str(folder), flush_secs=1, max_queue=100)
        self._world_size = world_size
        self._env_steps = resumed_at_steps or 0
        # Custom scalars: pages of charts.
        pages = {
            page: {name: ["Multiline", tags] for name, tags in charts.items()}
            for page, charts in LAYOUT.items()
        }
        self._writer.add_custom_scalars(pages)
        self._writer.add_text("config", "```yaml\n" + to_yaml(config) + "```")
        # Not SummaryWriter.add_hparams: it opens another folder, which TensorBoard shows as a second run.
        metrics = dict.fromkeys((f"eval_final/{name}" for name in FINAL_NAMES), 0.0)
        experiment, start, self._session_end = hparams(hyperparameters(config), metrics)
        _add_summary(self._writer, experiment)
        _add_summary(self._writer, start)

    def write(self, report: IterationReport) -> None:
        """Write the scalars of an iteration."""
        scalars = report.scalars()
        if self._world_size > 1:
            for rank, metrics in enumerate(report.rank_metrics):
                for name in _OF_RANKS.keys() & metrics.keys():
                    scalars[f"dist/rank{rank}/{_OF_RANKS[name]}"] = metrics[name]
        scalars |= {chart: scalars[name] for name, chart in _CHARTS.items() if name in scalars}
        _add_scalars(self._writer, scalars, report.env_steps)
        # Scores once more, over training time.
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
        """Write pictures, uint8 `[height, width, 3]`, by name."""
        for name, picture in pictures.items():
            self._writer.add_image(TASK_PREFIX + name, picture, env_steps, dataformats="HWC")

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        """Write the scores of the final evaluation, end the HPARAMS session if the run completed, and close."""
        if final_eval is not None:
            final = {f"eval_final/{name.removeprefix('eval/')}": value for name, value in final_eval.items()}
            _add_scalars(self._writer, final, self._env_steps)
        if completed:
            _add_summary(self._writer, self._session_end)
        self._writer.close()


def hyperparameters(config: Config) -> dict[str, str | float]:
    """Return the settings that may explain a result, flat ("ppo.gamma"), for TensorBoard's HPARAMS tab."""
    # Sections that may explain a result; the rest is about records and places.
    explain = ("env", "model", "algorithm", "ppo", "dist", "scaling", "seed", "device", "dtype")
    flat: dict[str, Any] = {}
    for key, value in in_effect(config).items():
        if key in explain:
            flat |= (
                {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
            )
    # The tab has numbers and strings only; torch would write a bool as a number.
    number_or_text = {key: v for key, v in flat.items() if type(v) in (int, float, str)}
    return number_or_text | {
        k: json.dumps(v) for k, v in flat.items() if k not in number_or_text and v is not None
    }


def _without_tensorboard(hook: Callable[[threading.ExceptHookArgs], Any]) -> Callable[..., Any]:
    """Return an excepthook that is silent about TensorBoard's writer thread: the next write raises its error."""

    def shown(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("tensorboard."):
            hook(args)

    return shown


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _add_scalars(writer: Any, scalars: Mapping[str, float], step: int) -> None:
    """Write scalars as one event, which is far cheaper than SummaryWriter.add_scalar for each."""
    from torch.utils.tensorboard.summary import Summary

    # One protocol-buffer message for all scalars of a step.
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    _add_summary(writer, Summary(value=values), step)


def _drop_events_after(path: Path, env_steps: int, wall_ms: int) -> None:
    """Cut an event file back to its scalars up to a checkpoint.

    Layout and hyperparameters are removed too, since the resumed run writes them anew. A damaged file is cut before the
    damage, and kept whole under another name.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    from torch.utils.tensorboard.writer import Event

    damage = ""
    with path.open("rb") as file, replacing(path, "wb") as kept:
        # A TFRecord is: uint64 length, uint32 checksum of the length, data, uint32 checksum of the data.
        # The last one may be half-written.
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
            # Scores over training time have milliseconds as their step, all others env_steps.
            values = event.summary.value
            last = wall_ms if values and values[0].tag.startswith((_BY_WALL, _TASK_BY_WALL)) else env_steps
            is_layout = any(value.HasField("metadata") for value in values)
            if event.step <= last and not is_layout:
                kept.write(header + body)
        if damage:
            # The new name must not contain "tfevents": TensorBoard reads every such file.
            aside = free_name(path.with_name(path.name.replace("tfevents", "damaged")))
            os.link(path, aside)
    if damage:
        warn(f"{path} is damaged ({damage}): the curves of before are kept, and the file as {aside.name}")


def _add_summary(writer: Any, summary: Any, step: int | None = None) -> None:
    writer.file_writer.add_summary(summary, step)
