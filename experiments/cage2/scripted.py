"""Do games of ours come to what scripted defenders came to elsewhere? Writes statistics.csv and the table of README.md.

python -m experiments.cage2.scripted [--episodes 1000] [--seed 0]
"""

import argparse
import csv
import math
from pathlib import Path

import numpy as np

from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import NUM_ACTIONS

STEPS = (30, 50, 100)
MEASURED_EPISODES = 60
EVALUATED_EPISODES = 100  # that the challenge's own evaluation script plays of each row
# Mean returns after STEPS: published, and measured with CybORG in 60 episodes.
ROWS = {
    ("sleep", "b_line"): ((-218.65, -480.17, -1134.03), (-217.6, -479.6, -1134.6)),
    ("sleep", "meander"): ((-39.31, -267.6, -972.43), (-42.7, -273.6, -978.0)),
    ("sleep", "sleep"): ((0.0, 0.0, 0.0), None),
    ("random", "b_line"): ((-154.0, -347.0, -727.0), (-142.0, -324.0, -741.0)),
    ("random", "meander"): ((-33.0, -171.0, -566.0), (-33.0, -158.0, -565.0)),
    ("random", "sleep"): ((-2.8, -4.45, -8.94), (-2.75, -4.43, -9.13)),
}
_FOLDER = Path(__file__).parent


def returns(blue: str, red: str, episodes: int, seed: int) -> np.ndarray:
    """Play `episodes` games at once, with CybORG's quirk; return what each came to after STEPS, `[3, episodes]`."""
    rng = np.random.default_rng(seed)
    games = Games(episodes, red, faithful_ot_quirk=True)
    games.reset(np.arange(episodes), rng.integers(2**64, size=episodes, dtype=np.uint64))
    sums, found = np.zeros(episodes), []
    for step in range(1, max(STEPS) + 1):
        actions = (
            rng.integers(NUM_ACTIONS, size=episodes) if blue == "random" else np.zeros(episodes, np.int64)
        )
        sums += games.step(actions)
        if step in STEPS:
            found.append(sums.copy())
    return np.stack(found)


def in_errors(found: np.ndarray, mean: float, episodes: float) -> float:
    """Return how far a mean over `episodes` is from that of `found`, in standard errors of their difference."""
    difference, error = found.mean() - mean, found.std(ddof=1) * math.sqrt(1 / len(found) + 1 / episodes)
    return 0.0 if difference == 0 else difference / error


def table(episodes: int, seed: int) -> list[dict[str, object]]:
    rows = []
    for (blue, red), (published, measured) in ROWS.items():
        for found, steps in zip(returns(blue, red, episodes, seed), STEPS, strict=True):
            at = STEPS.index(steps)
            rows.append(
                {
                    "blue": blue,
                    "red": red,
                    "steps": steps,
                    "mean": round(found.mean(), 2),
                    "standard_error": round(found.std(ddof=1) / math.sqrt(episodes), 2),
                    "published": published[at],
                    "errors_to_published": round(in_errors(found, published[at], math.inf), 1),
                    "errors_if_of_100_episodes": round(
                        in_errors(found, published[at], EVALUATED_EPISODES), 1
                    ),
                    "measured": measured[at] if measured else "",
                    "errors_to_measured": round(in_errors(found, measured[at], MEASURED_EPISODES), 1)
                    if measured
                    else "",
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = table(given.episodes, given.seed)
    with (_FOLDER / "statistics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print("| " + " | ".join(rows[0]).replace("_", " ") + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")


if __name__ == "__main__":
    main()
