"""What rank 0 tells of games that are given orders: how their episodes kept to them."""

from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config import EnvConfig
from ddppo.domains.cage2.search.outcomes import read

METRICS = {
    "compliance": (
        "fraction",
        "of repairs that kept to the order, mean over episodes; 1/2 of one without a repair",
    ),
    "repairs": ("repairs", "of an episode, mean"),
    "without_repairs": ("fraction", "of the episodes: those without a repair"),
    "return": ("reward", "of an episode by the game alone, mean"),
    "alignment": ("reward", "of an episode for keeping to the order, mean"),
}


class OrdersJournal:
    """Means over the episodes that ended in an iteration; it keeps no file."""

    metrics = METRICS

    def __init__(self, env: EnvConfig, folder: Path) -> None:
        pass

    def note(self, news: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        outcomes = read(news)
        if not outcomes:
            return {}
        columns: dict[str, list[float]] = {
            "compliance": [outcome.compliance for outcome in outcomes],
            "repairs": [outcome.repairs for outcome in outcomes],
            "without_repairs": [outcome.repairs == 0 for outcome in outcomes],
            "return": [outcome.reward for outcome in outcomes],
            "alignment": [outcome.alignment for outcome in outcomes],
        }
        return {name: float(np.mean(column)) for name, column in columns.items()}

    def pictures(self) -> dict[str, np.ndarray]:
        return {}

    def before(self) -> list[bytes]:
        return []

    def summary(self) -> dict[str, Any]:
        return {}
