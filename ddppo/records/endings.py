"""Why a run is complete before total_steps: it reached its target, stopped improving, or a callback ended it.

An ending is a dict of plain values, {"by": ..., "why": ...}, and {} while there is none. Checkpoints and summary.json
keep it, so that a resumed run does not train on. It holds as long as the settings that caused it: resume= with others
goes on. Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from ddppo.config.settings import Config

Ending = dict[str, Any]
ENDINGS = ("target", "patience", "callback")  # by a rule of the run; max_minutes only interrupts it


def by_evaluation(config: Config, mean_return: float, evals_without_best: int) -> Ending:
    """Return the ending that an evaluation causes; {} if it causes none. All ranks know the same numbers."""
    run, target = config.run, config.target_return
    if run.stop_at_target and target is not None and mean_return >= target:
        why = f"the evaluation return {mean_return:.2f} has reached target_return={target:g}"
        return {"by": "target", "target": target, "why": why}
    if run.patience is not None and evals_without_best >= run.patience:
        why = f"{evals_without_best} evaluations in a row brought no new best mean return (run.patience={run.patience})"
        return {"by": "patience", "evals": evals_without_best, "why": why}
    return {}


def by_callback(why: str) -> Ending:
    return {"by": "callback", "why": f"a callback ended it{': ' + why if why else ''}"}


def holds(config: Config, ending: Ending) -> bool:
    """Return whether the settings of a resumed run still ask for the ending of before."""
    run = config.run
    match ending.get("by"):
        case "target":
            target = config.target_return
            return run.stop_at_target and target is not None and target <= ending["target"]
        case "patience":
            return run.patience is not None and run.patience <= ending["evals"]
        case "callback":
            return run.has_callbacks
    return False


def completed_by(summary: Mapping[str, Any] | None) -> Ending:
    """Return the ending in the summary of a complete run; {} if it trained to total_steps, or is not complete."""
    if summary is None or summary.get("status") != "completed":
        return {}
    return dict(summary.get("ended") or {})


def how_to_go_on(ending: Ending) -> str:
    """Return the settings with which resume= trains on."""
    return {
        "target": "run.stop_at_target=false, or a higher target_return",
        "patience": "run.patience=null, or a larger one",
        "callback": "run.callbacks=[]",
    }[ending["by"]]
