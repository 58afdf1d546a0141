"""How often the stated intervals hold the value of the best order, in planted searches over the 120 orders.

PYTHONPATH=. .venv/bin/python experiments/search/coverage.py measure    # writes coverage.csv, 10 minutes on one core
PYTHONPATH=. .venv/bin/python experiments/search/coverage.py tables     # the tables of README.md from it

A row is a search of 30 trials over planted values (search.py has the functions) with normal noise on every trial. At
its end the search names a best order, and states a mean and a deviation for it. *away*: distance of its true value from
the mean, in these deviations. *youth*: a trial loses GROWTH for each factor e by which its policy is younger than the
oldest; the search is told the ages (`told`) or not (`untold`).
"""

import csv
import math
import sys
from pathlib import Path
from statistics import mean

import numpy as np

from ddppo.domains.cage2.search import orders
from ddppo.search.ucb import COVERS, UCB
from experiments.search.search import FUNCTIONS, ORDER_EVALUATIONS

HERE = Path(__file__).resolve().parent
SEEDS, NOISES, GROWTH = 75, (0.5, 1.0, 2.0), 3.0


def searched(function: str, noise: float, youth: str, seed: int) -> dict[str, object]:
    """Return the row of one search."""
    rng = np.random.default_rng((7, seed))
    values = FUNCTIONS[function](rng)
    search, tried, gains = UCB(orders.space(), seed=seed), [], []
    for trial in range(ORDER_EVALUATIONS):
        (order,) = search.ask()
        tried.append(orders.order_id(order))
        # Ages grow with the trials, as where each inherits from one before it.
        age = math.log((trial + 1) / ORDER_EVALUATIONS)
        gains.append(GROWTH * age if youth != "none" else 0.0)
        value = values[tried[-1]] + noise * rng.standard_normal() + gains[-1]
        search.tell(order, value, covariate=age if youth == "told" else 0.0)
    best = search.incumbent()
    named, top = orders.order_id(best.point), int(values.argmax())
    true_value = float(values[named] + mean(gains))  # as of the mean age
    return {
        "function": function,
        "noise": noise,
        "youth": youth,
        "seed": seed,
        "value": round(true_value, 3),
        "mean": round(best.mean, 3),
        "deviation": round(best.deviation, 3),
        "away": round((true_value - best.mean) / best.deviation, 3),
        "noise_estimate": round(search.noise_deviation(), 3),
        "found": int(top in tried),
        "named": int(named == top),
    }


def measure() -> None:
    cells = [(function, noise, "none") for function in FUNCTIONS for noise in NOISES]
    cells += [("rough", 1.0, "told"), ("rough", 1.0, "untold")]
    rows: list[dict[str, object]] = []
    for cell in cells:
        rows += [searched(*cell, seed) for seed in range(SEEDS)]
        with (HERE / "coverage.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(*cell, flush=True)


def held(rows: list[dict[str, str]], covers: float = COVERS) -> float:
    return 100 * mean(abs(float(row["away"])) <= covers for row in rows)


def tables() -> None:
    rows = list(csv.DictReader((HERE / "coverage.csv").open()))
    print(
        "| values | noise | youth | interval holds | 1.96 deviations hold | noise as estimated | found | named |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for cell in dict.fromkeys((row["function"], row["noise"], row["youth"]) for row in rows):
        of = [row for row in rows if (row["function"], row["noise"], row["youth"]) == cell]
        noise = f"{mean(float(row['noise_estimate']) for row in of):.2f}"
        found, named = (f"{100 * mean(float(row[name]) for row in of):.0f} %" for name in ("found", "named"))
        holds = f"{held(of):.0f} % | {held(of, 1.96):.0f} %"
        print(f"| {' | '.join(cell)} | {holds} | {noise} | {found} | {named} |")
    known = [row for row in rows if row["youth"] != "untold"]
    print(
        f"{len(known)} searches, without untold: {COVERS} deviations hold {held(known):.1f} %, 1.96 hold "
        f"{held(known, 1.96):.1f} %"
    )


if __name__ == "__main__":
    {"measure": measure, "tables": tables}[sys.argv[1]]()
