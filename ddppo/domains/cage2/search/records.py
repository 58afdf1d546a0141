"""The files of a search in the run folder, written by rank 0: training_log.csv, gp_sampling_log.csv and search.json."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.algorithms.task_sampler import SamplerRecords
from ddppo.domains.cage2.search.campaign import FEW, Campaign, preset_of
from ddppo.domains.cage2.search.orders import ORDERS, words
from ddppo.errors import StorageError
from ddppo.files import replacing, stored, write_json, write_text
from ddppo.search.ucb import COVERS

TRAINING_LOG, SAMPLING_LOG, FILE = "training_log.csv", "gp_sampling_log.csv", "search.json"
ORDERS_FILE = "orders.csv"
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
_ORDERS = ("rank", "order_id", "order", "ucb", "mean", "deviation", "low", "high", "trials", "trial_ids")
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
        self._news: list[str] = []  # lines about trials that have ended, until they are shown
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
        if trial.ended_by is not None:
            self._news.append(self._campaign.said_of_end(trial))
        if trial.ended_by is not None or trial.episodes == len(outcomes):
            self._write_others()

    def status(self) -> list[str]:
        return self._campaign.status()

    def news(self) -> list[str]:
        lines, self._news = self._news, []
        return lines

    def summary(self) -> dict[str, Any]:
        """Return the part `search` of summary.json. Its "said" holds sentences by label, printed when the run ends."""
        self._write_others()
        best = self._campaign.best()
        trials = [trial for trial in self._campaign.trials if trial.ended_by is not None]
        cut = [trial.trial for trial in trials if trial.ended_by == "budget"]
        said = {
            "search": f"{len(trials)} trials, {sum(trial.passed for trial in trials)} passed the gate"
            + (f", trial {cut[-1]} was cut off by the budget and is not scored" if cut else "")
        }
        if best is not None:
            name = "" if best["preset"] == "other" else f" ({best['preset']})"
            passed = "" if best["passed"] else ", though no trial passed its gate"
            said["best order"] = (
                f"{best['order']}{name}: {_result(best)} at compliance {best['compliance']:.2f}{passed}"
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
        write_text(self._run_dir / ORDERS_FILE, _as_csv([_ORDERS, *self._orders()]))
        write_json(self._run_dir / FILE, self._campaign.as_json())

    def _orders(self) -> list[Sequence[Any]]:
        """Return a row for each of the 120 orders, tried or not, by falling upper confidence bound."""
        campaign = self._campaign
        if not campaign.has_scores:
            return []
        mean, deviation = campaign.proposer.posterior()
        ucb = mean + campaign.settings.beta * deviation
        rows: list[Sequence[Any]] = []
        for rank, order in enumerate(np.argsort(-ucb, kind="stable").tolist(), start=1):
            trials = [t.trial for t in campaign.trials if t.order_id == order and t.score is not None]
            half = COVERS * deviation[order]
            numbers = (ucb[order], mean[order], deviation[order], mean[order] - half, mean[order] + half)
            named = (rank, order, words(ORDERS[order]))
            rows.append((*named, *(float(x) for x in numbers), len(trials), " ".join(map(str, trials))))
        return rows


def _result(best: dict[str, Any]) -> str:
    """Return what is known of the best order: its expected score with the interval, and its trial."""
    if "mean" not in best:
        return f"trial {best['trial']} was cut off at a return of {best['mean_return']:.2f}"
    half = COVERS * best["deviation"]
    spread = (
        f", 95 % interval {best['mean'] - half:.2f} to {best['mean'] + half:.2f}"
        if best["scores"] >= FEW
        else ""
    )
    return f"expected score {best['mean']:.2f}{spread}; its trial {best['trial']} scored {best['score']:.2f}"


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
