"""How soon a search by upper confidence bounds finds what is best, beside chance and Optuna's TPE.

PYTHONPATH=. .venv/bin/python experiments/search/search.py measure    # writes search.json, 2 minutes on one core
PYTHONPATH=. .venv/bin/python experiments/search/search.py draw       # the figure and the tables from it

Orders: among the 120, one is best; the search sees values with noise, whose variance it is not told.
Boxes: three functions of two numbers, without noise, to be minimised. TPE is Optuna's (extra tune) with its defaults.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ddppo.domains.cage2.search import orders
from ddppo.files import write_json
from ddppo.records.summary import machine
from ddppo.search.spaces import Interval, Space
from ddppo.search.ucb import UCB
from ddppo.study.page.chart import Axis, Chart

HERE = Path(__file__).resolve().parent
ORDER_SEEDS, ORDER_EVALUATIONS, NOISES = 50, 30, (0.0, 1.0, 2.0)
BOX_SEEDS, BOX_EVALUATIONS = 20, 40


# -- orders ---------------------------------------------------------------------------------------------------------


def smooth(rng: np.random.Generator) -> np.ndarray:
    """Return the values of all orders: less by 1 for each pair that the hidden best one ranks otherwise."""
    return -orders.KENDALL[rng.integers(120)].astype(float)


def rough(rng: np.random.Generator) -> np.ndarray:
    """Return smooth values with an error of deviation 1.5 for each order, the hidden one .5 above all others."""
    values = smooth(rng)
    best = int(values.argmax())
    values += rng.normal(0.0, 1.5, 120)
    values[best] = max(values[best], np.delete(values, best).max() + 0.5)
    return values


def anywhere(rng: np.random.Generator) -> np.ndarray:
    """Return smooth values with the same errors, where the best is wherever these put it."""
    return smooth(rng) + rng.normal(0.0, 1.5, 120)


FUNCTIONS = {"smooth": smooth, "rough": rough, "anywhere": anywhere}


def by_ucb(seed: int, try_: Callable[[int], float]) -> tuple[list[int], int]:
    """Return the ids tried, in their order, and the one held for the best in the end."""
    search, tried = UCB(orders.space(), seed=seed), []
    for _ in range(ORDER_EVALUATIONS):
        (order,) = search.ask()
        tried.append(orders.order_id(order))
        search.tell(order, try_(tried[-1]))
    return tried, orders.order_id(search.incumbent().point)


def by_chance(seed: int, try_: Callable[[int], float]) -> tuple[list[int], int]:
    tried = np.random.default_rng((5, seed)).permutation(120)[:ORDER_EVALUATIONS].tolist()
    values = [try_(i) for i in tried]
    return tried, tried[int(np.argmax(values))]


def measured_orders() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, function in FUNCTIONS.items():
        for noise in NOISES:
            for way, search in (("ucb", by_ucb), ("chance", by_chance)):
                found, named, began = [], 0, time.process_time()
                for seed in range(ORDER_SEEDS):
                    rng = np.random.default_rng((7, seed))
                    values = function(rng)
                    best = int(values.argmax())
                    tried, held = search(
                        seed, lambda i, v=values, r=rng, s=noise: v[i] + s * r.standard_normal()
                    )
                    found.append(tried.index(best) + 1 if best in tried else None)
                    named += held == best
                step = (time.process_time() - began) / (ORDER_SEEDS * ORDER_EVALUATIONS)
                rows.append(
                    {
                        "function": name,
                        "noise": noise,
                        "way": way,
                        "found_at": found,
                        "named": named,
                        "step_s": step,
                    }
                )
                print(name, noise, way, sum(at is not None for at in found), named, f"{step * 1e3:.2f} ms")
    return rows


# -- boxes ----------------------------------------------------------------------------------------------------------

Box = Sequence[tuple[float, float]]


def branin(x: float, y: float) -> float:
    parabola = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return parabola**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def camel(x: float, y: float) -> float:
    return (4 - 2.1 * x * x + x**4 / 3) * x * x + x * y + (4 * y * y - 4) * y * y


def rosenbrock(x: float, y: float) -> float:
    return (1 - x) ** 2 + 100 * (y - x * x) ** 2


BOXES: dict[str, tuple[Callable[[float, float], float], Box, float]] = {  # function, box, minimum
    "branin": (branin, ((-5.0, 10.0), (0.0, 15.0)), 0.39788735772973816),
    "camel": (camel, ((-3.0, 3.0), (-2.0, 2.0)), -1.0316284534898774),
    "rosenbrock": (rosenbrock, ((-2.0, 2.0), (-1.0, 3.0)), 0.0),
}


def box_by_ucb(function: Callable[[float, float], float], box: Box, seed: int) -> list[float]:
    search, values = UCB(Space([Interval(*side) for side in box]), seed=seed, repeats=False), []
    for _ in range(BOX_EVALUATIONS):
        (point,) = search.ask()
        values.append(function(*point))
        search.tell(point, -values[-1])
    return values


def box_by_chance(function: Callable[[float, float], float], box: Box, seed: int) -> list[float]:
    rng = np.random.default_rng((11, seed))
    return [function(*(rng.uniform(*side) for side in box)) for _ in range(BOX_EVALUATIONS)]


def box_by_tpe(function: Callable[[float, float], float], box: Box, seed: int) -> list[float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(
        lambda trial: function(
            *(trial.suggest_float(name, *side) for name, side in zip("xy", box, strict=True))
        ),
        n_trials=BOX_EVALUATIONS,
    )
    return [trial.value for trial in study.trials]


def measured_boxes() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, (function, box, minimum) in BOXES.items():
        for way, search in (("ucb", box_by_ucb), ("tpe", box_by_tpe), ("chance", box_by_chance)):
            began = time.process_time()
            regrets = [float(np.min(search(function, box, seed)) - minimum) for seed in range(BOX_SEEDS)]
            step = (time.process_time() - began) / (BOX_SEEDS * BOX_EVALUATIONS)
            rows.append({"function": name, "way": way, "regret": regrets, "step_s": step})
            print(name, way, f"median regret {np.median(regrets):.4g}, {step * 1e3:.2f} ms")
    return rows


# -- what is written ------------------------------------------------------------------------------------------------


def measure() -> None:
    found = {"orders": measured_orders(), "boxes": measured_boxes()}
    write_json(HERE / "search.json", {"machine": machine(), **found})


def chart(rows: list[dict]) -> Chart:
    figure = Chart(
        "found",
        f"Seeds of {ORDER_SEEDS} that have found the best of 120 orders",
        Axis("evaluations", shows=(0.0, float(ORDER_EVALUATIONS))),
        Axis("seeds (%)", shows=(0.0, 100.0)),
        "Noise of deviation 1.",
    )
    at = list(range(ORDER_EVALUATIONS + 1))
    shown = [
        ("smooth", "ucb", "blue"),
        ("rough", "ucb", "orange"),
        ("anywhere", "ucb", "green"),
        ("smooth", "chance", "grey"),
    ]
    for function, way, colour in shown:
        (row,) = (r for r in rows if (r["function"], r["way"], r["noise"]) == (function, way, 1.0))
        shares = [100 * np.mean([e is not None and e <= i for e in row["found_at"]]) for i in at]
        label = "chance" if way == "chance" else f"GP-UCB, {function}"
        figure.line(at, shares, colour, label, dashed=way == "chance")
    return figure


def tables(found: dict) -> str:
    lines = [
        "| values | noise | found within 30 | median evaluation | named at the end | CPU ms a step |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["orders"]:
        at = [math.inf if e is None else e for e in row["found_at"]]
        lines.append(
            f"| {row['function']}, {row['way']} | {row['noise']:g} | {100 * np.mean(np.isfinite(at)):.0f} % | "
            f"{np.median(at):g} | {100 * row['named'] / len(at):.0f} % | {1e3 * row['step_s']:.2f} |"
        )
    lines += [
        "",
        "| function | way | median regret | quartiles | below TPE's, same seed | CPU ms a step |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["boxes"]:
        (tpe,) = (
            r["regret"] for r in found["boxes"] if (r["function"], r["way"]) == (row["function"], "tpe")
        )
        low, median, high = np.percentile(row["regret"], [25, 50, 75])
        wins = "" if row["way"] == "tpe" else f"{np.sum(np.less(row['regret'], tpe))} of {len(tpe)}"
        lines.append(
            f"| {row['function']} | {row['way']} | {median:.3g} | {low:.3g} to {high:.3g} | {wins} | "
            f"{1e3 * row['step_s']:.1f} |"
        )
    return "\n".join(lines)


def draw() -> None:
    found = json.loads((HERE / "search.json").read_text())
    (HERE / "found.svg").write_text(chart(found["orders"]).svg(standalone=True) + "\n", encoding="utf-8")
    print(tables(found))


if __name__ == "__main__":
    {"measure": measure, "draw": draw}[sys.argv[1]]()
