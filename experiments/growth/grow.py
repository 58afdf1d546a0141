"""How steps/s grow with the number of environments, the width of the model and the number of workers.

PYTHONPATH=. .venv/bin/python experiments/growth/grow.py measure      # writes growth.json, about 10 minutes
PYTHONPATH=. .venv/bin/python experiments/growth/grow.py draw         # draws the three figures from it

Everything but the swept number is W2 of the bench: CartPole, 64 environments x 128 steps, 4 epochs x 4 minibatches,
64-64 tanh. Runs take turns, the medians of the rounds are kept.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import matplotlib.ticker
from matplotlib.axes import Axes

from ddppo.benchmark.code import this_code
from ddppo.benchmark.one_run import Clock
from ddppo.benchmark.results import Measurement
from ddppo.benchmark.rounds import run_rounds
from ddppo.benchmark.workloads import Configuration, fixed
from ddppo.files import write_json
from ddppo.run.records.summary import machine, versions
from ddppo.study.page.figure_style import BLUE, GREY, ORANGE, VERMILLION, Plot, panel, style

HERE = Path(__file__).resolve().parent
NUM_ENVS = (8, 64, 512, 2048, 4096)
WIDTHS = (64, 128, 256, 512, 1024)
WORLD_SIZES = (1, 2, 4, 8, 16, 32)
ROUNDS, CLOCK = 2, Clock(warmup_s=0.3, measure_s=1.5)
STEPS_OF_MODEL = {"in C++ (compile=auto)": "auto", "by torch (compile=off)": "off"}


def configurations() -> Iterator[tuple[str, str, int, Configuration]]:
    """Yield (figure, line, x, what is run)."""
    for x in NUM_ENVS:
        for world_size in (1, 2):
            workload = fixed("W2", [f"env.num_envs={x}"])
            yield "num_envs", f"W={world_size}", x, Configuration(workload, world_size, "strong")
    for x in WIDTHS:
        for line, compile_ in STEPS_OF_MODEL.items():
            sizes = f"model.hidden_sizes=[{x},{x}]"
            one_thread = "dist.threads_per_rank=1"  # else by the rule, two for the widest
            workload = fixed("W2", [sizes, f"compile={compile_}", one_thread])
            yield "width", line, x, Configuration(workload, 1, "strong")
    for x in WORLD_SIZES:
        for rule in ("strong", "weak"):
            yield "workers", rule, x, Configuration(fixed("W2"), x, "strong" if x == 1 else rule)


def measure() -> None:
    points = []
    for figure, line, x, configured in configurations():
        found = run_rounds([configured], [this_code()], ROUNDS, CLOCK, say=lambda text: None)
        points.append({"figure": figure, "line": line, "x": x, **medians(found)})
        print(points[-1], flush=True)
    write_json(
        HERE / "growth.json",
        {
            "commit": this_code().name,
            "machine": machine(with_gpu=False),
            "versions": versions(),
            "points": points,
        },
    )


def medians(found: list[Measurement]) -> dict[str, float]:
    """Return steps/s, the seconds of an iteration's parts, and the machine's limits."""
    run = ("fps", "t_iter", "t_rollout", "t_learn", "t_comm", "t_sync", "t_other", "num_parameters")
    limits = ("env_fps", "matrix_gflops")
    return {name: median(m.run[name] for m in found) for name in run} | {
        name: median(m.limits[name] for m in found) for name in limits
    }


def learning_limit(point: dict[str, float], num_epochs: int = 4) -> float:
    """Return the steps/s of a learner that does nothing but its products, at the measured rate of one."""
    return point["matrix_gflops"] * 1e9 / (6 * point["num_parameters"] * num_epochs)


def draw() -> None:
    points = json.loads((HERE / "growth.json").read_text())["points"]
    with style():
        for plot in (num_envs(points), width(points), workers(points)):
            (HERE / f"{plot.name}.png").write_bytes(plot.png)


def lines(points: list[dict], figure: str) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for point in points:
        if point["figure"] == figure:
            found.setdefault(point["line"], []).append(point)
    return found


def num_envs(points: list[dict]) -> Plot:
    figure, axes = panel()
    of_line = lines(points, "num_envs")
    for (line, found), colour in zip(of_line.items(), (BLUE, ORANGE), strict=True):
        curve(axes, found, "fps", line, colour)
        bound = [1 / (1 / learning_limit(p) + 1 / p["env_fps"]) for p in found]
        axes.plot(
            [p["x"] for p in found], bound, "--", color=colour, label=f"{line}: products and tasks alone"
        )
    axes.set_xlabel("environments")
    return finished("num_envs", figure, axes, NUM_ENVS)


def width(points: list[dict]) -> Plot:
    figure, axes = panel()
    of_line = lines(points, "width")
    for (line, found), colour in zip(of_line.items(), (BLUE, ORANGE), strict=True):
        curve(axes, found, "fps", line, colour)
    found = next(iter(of_line.values()))
    axes.plot(
        [p["x"] for p in found], [learning_limit(p) for p in found], "--", color=GREY, label="products alone"
    )
    axes.set_xlabel("units of each of two hidden layers, W = 1")
    axes.set_yscale("log")
    return finished("width", figure, axes, WIDTHS)


def workers(points: list[dict]) -> Plot:
    figure, axes = panel()
    of_line = lines(points, "workers")
    for (line, found), colour in zip(of_line.items(), (BLUE, VERMILLION), strict=True):
        curve(axes, found, "fps", line, colour)
    one, cores = of_line["strong"][0]["fps"], machine(with_gpu=False)["cores"]
    limit = [one * min(x, cores) for x in WORLD_SIZES]
    axes.plot(WORLD_SIZES, limit, "--", color=GREY, label=f"W = 1 times min(W, {cores} cores)")
    axes.set_xlabel(f"workers W on {cores} cores")
    return finished("workers", figure, axes, WORLD_SIZES)


def curve(axes: Axes, found: list[dict], name: str, label: str, colour: str) -> None:
    axes.plot([p["x"] for p in found], [p[name] for p in found], "o-", color=colour, label=label)


def finished(name: str, figure, axes: Axes, ticks: tuple[int, ...]) -> Plot:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.minorticks_off()
    axes.set_ylabel("environment steps/s")
    axes.yaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.legend()
    return Plot(name, "", figure)


if __name__ == "__main__":
    {"measure": measure, "draw": draw}[sys.argv[1]]()
