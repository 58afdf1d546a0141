"""The files of a search in the run folder, written by rank 0: training_log.csv, gp_sampling_log.csv and search.json."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddppo.algorithms.task_sampler import SamplerRecords
from ddppo.domains.cage2.search.campaign import Campaign, preset_of
from ddppo.domains.cage2.search.orders import ORDERS, words
from ddppo.errors import StorageError
from ddppo.files import replacing, stored, write_json, write_text

TRAINING_LOG, SAMPLING_LOG, FILE = "training_log.csv", "gp_sampling_log.csv", "search.json"
_TRAINING = (
    *(
        "trial",
        "order_id",
        "order",
        "kind",
        "episode",
        "environment",
        "reward_environment",
        "reward_alignment",
    ),
    *("reward_total", "compliance", "repairs", "success", "evaluation"),
)
_SAMPLING = ("trial", "rank", "order_id", "order", "ucb", "mean", "deviation", "chosen")


class SearchRecords(SamplerRecords):
    """Writes the files of a campaign.

    training_log.csv has one line for every episode that the campaign has counted. When a run resumes from a checkpoint,
    lines behind the checkpoint are dropped.
    """

    def __init__(self, campaign: Campaign, run_dir: Path) -> None:
        self._campaign = campaign
        self._run_dir = run_dir
        self._path = run_dir / TRAINING_LOG
        # One line of head, and one for each episode up to the checkpoint.
        self._num_written = campaign.num_episodes
        _keep_lines(self._path, 1 + self._num_written, ",".join(_TRAINING))
        self._write_others()

    def note(self) -> None:
        """Append the episodes of the last iteration. Write the other files again if a trial began or ended."""
        # 1. A line for each episode.
        number, outcomes = self._campaign.last_iteration
        trial = self._campaign.trials[number]
        gate, order = self._campaign.settings.gate_compliance, words(trial.order)
        rows: list[Sequence[Any]] = []
        for outcome in outcomes:
            self._num_written += 1
            # An episode passes if it has repairs, and enough of them comply with the order.
            total, succeeds = (
                outcome.reward + outcome.alignment,
                outcome.repairs > 0 and outcome.compliance >= gate,
            )
            rows.append(
                (
                    *(
                        number,
                        trial.order_id,
                        order,
                        preset_of(trial.order),
                        self._num_written,
                        outcome.environment,
                    ),
                    *(outcome.reward, outcome.alignment, total, outcome.compliance, outcome.repairs),
                    *(int(succeeds), "train"),
                )
            )
        # 2. Append them.
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(_as_csv(rows))
        except OSError as e:
            raise StorageError.of(self._path, e) from e
        # 3. The other files change only when a trial begins or ends.
        if trial.ended_by is not None or trial.episodes == len(outcomes):
            self._write_others()

    def summary(self) -> dict[str, Any]:
        """Return the part `search` of summary.json. Its "said" holds sentences by label, printed when the run ends."""
        self._write_others()
        best = self._campaign.best()
        trials = [trial for trial in self._campaign.trials if trial.ended_by is not None]
        said = {"search": f"{len(trials)} trials, {sum(trial.passed for trial in trials)} passed the gate"}
        if best is not None:
            name = "" if best["preset"] == "other" else f" ({best['preset']})"
            passed = "" if best["passed"] else ", though no trial passed its gate"
            said["best order"] = (
                f"{best['order']}{name}: mean {best['mean']:.2f} +- {best['deviation']:.2f}, its trial {best['trial']} "
                f"{best['score']:.2f} at compliance {best['compliance']:.2f}{passed}"
            )
        doubled = f"search.budget_episodes={2 * self._campaign.settings.budget_episodes}"
        return {"search": {"said": said, "trials": len(trials), "best": best, "go_on": [doubled]}}

    def _write_others(self) -> None:
        rows = [
            (
                number,
                rank,
                e["order_id"],
                words(ORDERS[e["order_id"]]),
                e["ucb"],
                e["mean"],
                e["deviation"],
                e["chosen"],
            )
            for number, candidates in enumerate(self._campaign.candidates)
            for rank, e in enumerate(candidates, start=1)
        ]
        write_text(self._run_dir / SAMPLING_LOG, _as_csv([_SAMPLING, *rows]))
        write_json(self._run_dir / FILE, self._campaign.as_json())


def _as_csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _keep_lines(path: Path, num_lines: int, header: str) -> None:
    """Cut a file to its first lines; write the header alone if there is no file."""
    with stored(path):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    # Nothing to cut, and the last line is complete: leave the file as it is.
    if lines and len(lines) <= num_lines and lines[-1].endswith("\n"):
        return
    with replacing(path) as file:
        file.writelines(lines[:num_lines] or [header + "\n"])
