"""TensorBoard: scalars over env_steps, chart pages for time, topology and stability, and hyperparameters.

`LAYOUT` lists the chart pages; `TensorBoardWriter` writes the event files; the end of the file cuts them back when a
run resumes.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.settings import Config
from ddppo.config.stored import in_effect, to_yaml
from ddppo.files import free_name, replacing
from ddppo.records.event_file import (
    DamagedRecord,
    EventFile,
    chart_pages,
    hparams,
    picture,
    read_events,
    scalars,
    text,
)
from ddppo.records.metrics import TASK_PREFIX, TOPOLOGY_METRICS, WAIT_NAMES, IterationReport
from ddppo.terminal import warn

# Page -> chart -> tags. A tag is a regular expression that TensorBoard matches from the start of a name.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "returns": {
        # Two charts: in one, TensorBoard takes the few evaluations for outliers and cuts them off.
        "return of training episodes": ["rollout/return_mean$"],
        "return of evaluations": ["eval/return_mean$"],
        "length of training episodes (steps)": ["rollout/length_mean$"],
        "steps per second of each rank": [r"dist/rank\d+/fps$"],
        # Empty for tasks without such infos, and therefore last.
        "success rate: training episodes, evaluations": ["rollout/success_rate$", "eval/success_rate$"],
        "numbers of the task's infos": ["env/.*", "eval/env/.*"],
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
        # Remove points after the checkpoint; metrics.superseded.jsonl keeps their numbers. SummaryWriter's purge_step
        # does not do it: TensorBoard 2.21 still shows a purged point if its step is not written again.
        if resumed_at_steps is not None:
            for path in sorted(folder.glob("*tfevents*")):
                _drop_events_after(path, resumed_at_steps, _ms(resumed_at_wall_s))
        self._file = EventFile(folder)
        self._world_size = world_size
        self._env_steps = resumed_at_steps or 0
        self._file.add(chart_pages(LAYOUT))
        self._file.add(text("config", "```yaml\n" + to_yaml(config) + "```"))
        # In the run's own folder: another one would be a second run to TensorBoard.
        final = [f"eval_final/{name}" for name in FINAL_NAMES]
        columns, start, self._session_end = hparams(hyperparameters(config), final, _compared(config))
        self._file.add(columns)
        self._file.add(start)

    def write(self, report: IterationReport) -> None:
        """Write the scalars of an iteration."""
        values = report.scalars()
        if self._world_size > 1:
            for rank, metrics in enumerate(report.rank_metrics):
                for name in _OF_RANKS.keys() & metrics.keys():
                    values[f"dist/rank{rank}/{_OF_RANKS[name]}"] = metrics[name]
        values |= {chart: values[name] for name, chart in _CHARTS.items() if name in values}
        self._file.add(scalars(values), report.env_steps)
        # Scores once more, over training time.
        by_wall = {}
        for name, value in report.global_metrics.items():
            if name.startswith("eval/return_"):
                by_wall[_BY_WALL + name.removeprefix("eval/")] = value
            elif name.startswith(TASK_PREFIX):
                by_wall[_TASK_BY_WALL + name.removeprefix(TASK_PREFIX)] = value
        if by_wall:
            self._file.add(scalars(by_wall), _ms(report.wall_s))
        self._env_steps = report.env_steps

    def show(self, pictures: Mapping[str, np.ndarray], env_steps: int) -> None:
        """Write pictures, uint8 `[height, width, 3]`, by name."""
        for name, pixels in pictures.items():
            self._file.add(picture(TASK_PREFIX + name, pixels), env_steps)

    def abandon(self) -> None:
        """Close the file as it is, after a failure."""
        self._file.close()

    def close(self, final_eval: Mapping[str, float] | None = None, *, completed: bool = True) -> None:
        """Write the scores of the final evaluation, end the HPARAMS session if the run completed, and close."""
        if final_eval is not None:
            final = {f"eval_final/{name.removeprefix('eval/')}": value for name, value in final_eval.items()}
            self._file.add(scalars(final), self._env_steps)
        if completed:
            self._file.add(self._session_end)
        self._file.close()


def _compared(config: Config) -> tuple[str, ...]:
    """Return the settings that most studies vary: the first columns of the HPARAMS tab, which shows five at first."""
    rate = f"{config.training.section}.learning_rate"
    return ("dist.world_size", "env.id", "model.name", rate, "seed")


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


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _drop_events_after(path: Path, env_steps: int, wall_ms: int) -> None:
    """Cut an event file back to its scalars up to a checkpoint.

    Layout and hyperparameters are removed too, since the resumed run writes them anew. A damaged file is cut before the
    damage, and kept whole under another name.
    """
    damage = ""
    with path.open("rb") as file, replacing(path, "wb") as kept:
        try:
            for event, record in read_events(file):
                # Scores over training time have milliseconds as their step, all others env_steps.
                values = event.summary.value
                is_by_wall = bool(values) and values[0].tag.startswith((_BY_WALL, _TASK_BY_WALL))
                is_layout = any(value.HasField("metadata") for value in values)
                if event.step <= (wall_ms if is_by_wall else env_steps) and not is_layout:
                    kept.write(record)
        except DamagedRecord as e:
            damage = str(e)
        if damage:
            # The new name must not contain "tfevents": TensorBoard reads every such file.
            aside = free_name(path.with_name(path.name.replace("tfevents", "damaged")))
            os.link(path, aside)
    if damage:
        warn(f"{path} is damaged ({damage}): the curves of before are kept, and the file as {aside.name}")
