"""Do searches of several seeds agree within the intervals that they state, and does the age of policies tell scores?

.venv/bin/python -m experiments.workflows.agreement run <run folder> ...    writes trials.csv, then the tables
.venv/bin/python -m experiments.workflows.agreement                         the tables from trials.csv

The posterior of each seed is computed from its trials. *left out*: each score is predicted from the others of its
seed, with the ages of policies as a covariate and without; a higher mean log density of the scores is better.
"""

import csv
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np

from ddppo.domains.cage2.search import orders
from ddppo.domains.cage2.search.orders import ORDERS, words
from ddppo.search.gp import Data, Posterior, sample
from ddppo.search.ucb import UCB

HERE = Path(__file__).resolve().parent
COLUMNS = (
    *(
        "seed",
        "trial",
        "order_id",
        "order",
        "inherited_from",
        "episodes",
        "age",
        "ended_by",
        "passed",
        "compliance",
    ),
    *("mean_return", "score"),
)
Row = dict[str, str]
LEAST = 6  # scores of a seed for leaving one out


def collect(folders: list[str]) -> None:
    rows = []
    for folder in map(Path, folders):
        seed = json.loads((folder / "summary.json").read_text())["config"]["seed"]
        for trial in json.loads((folder / "search.json").read_text())["trials"]:
            row = {name: trial.get(name, "") for name in COLUMNS} | {"seed": seed}
            rows.append({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    with (HERE / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def search_of(trials: list[Row]) -> UCB:
    search = UCB(orders.space())
    for trial in trials:
        covariate = math.log(float(trial["age"]))
        search.tell(ORDERS[int(trial["order_id"])], float(trial["score"]), covariate=covariate)
    return search


def best_of(search: UCB, trials: list[Row]) -> int:
    passed = [int(trial["order_id"]) for trial in trials if trial["passed"] == "True"]
    means = search.posterior()[0]
    return max(passed or [int(trial["order_id"]) for trial in trials], key=lambda order: means[order])


def left_out(trials: list[Row], *, with_age: bool) -> float:
    """Return the mean log density of each score, given the other trials."""
    codes = np.array([[float(trial["order_id"])] for trial in trials])
    distances = orders.space().distances(codes, codes)
    scores = np.array([float(trial["score"]) for trial in trials])
    ages = np.log([float(trial["age"]) for trial in trials])
    basis = ((ages - ages.mean()) / ages.std() if with_age else np.zeros(len(trials)))[:, None]
    found = []
    for i in range(len(trials)):
        rest = np.arange(len(trials)) != i
        shift, scale = scores[rest].mean(), scores[rest].std()
        data = Data(
            distances[:, rest][:, :, rest],
            (scores[rest] - shift) / scale,
            np.full(rest.sum(), np.nan),
            basis[rest],
            True,
        )
        samples = sample(data)
        expected, deviation = Posterior(data, samples).predict(
            distances[:, i : i + 1][:, :, rest], basis[i : i + 1]
        )
        variance = scale**2 * (deviation[0] ** 2 + mean(each.noise for each in samples))
        away = scores[i] - shift - scale * expected[0]
        found.append(-0.5 * (away**2 / variance + math.log(2 * math.pi * variance)))
    return mean(found)


def tables() -> None:
    of_seed: dict[str, list[Row]] = defaultdict(list)
    for row in csv.DictReader((HERE / "trials.csv").open()):
        if row["score"]:
            of_seed[row["seed"]].append(row)
    searches = {seed: search_of(trials) for seed, trials in of_seed.items()}
    bests = {seed: best_of(searches[seed], trials) for seed, trials in of_seed.items()}
    print(
        "| seed | scores | best order | expected by "
        + " | by ".join(f"seed {s}" for s in searches)
        + " | noise |"
    )
    print("|" + "---|" * (len(searches) + 4))
    for seed, best in bests.items():
        estimates = [search.estimate(ORDERS[best]) for search in searches.values()]
        cells = [f"{e.mean:.1f} ({e.interval[0]:.1f} to {e.interval[1]:.1f})" for e in estimates]
        noise = f"{searches[seed].noise_deviation():.2f}"
        count = str(len(of_seed[seed]))
        print(f"| {' | '.join([seed, count, words(ORDERS[best]), *cells, noise])} |")
    for seed, trials in of_seed.items():
        if len(trials) >= LEAST:
            scores = [left_out(trials, with_age=with_age) for with_age in (True, False)]
            print(
                f"seed {seed}: left out, {len(trials)} scores: {scores[0]:.2f} with ages, {scores[1]:.2f} without"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        collect(sys.argv[2:])
    tables()
