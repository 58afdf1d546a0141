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

from ddppo.files import write_json
from ddppo.records.summary import machine, versions
from ddppo.study.bench.measured import Clock, run_rounds, this_code
from ddppo.study.bench.results import Measurement
from ddppo.study.bench.workloads import Configuration, fixed
from ddppo.study.page.chart import Axis, Chart

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
            "machine": machine(),
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
    for chart in (num_envs(points), width(points), workers(points)):
        (HERE / f"{chart.name}.svg").write_text(chart.svg(standalone=True), encoding="utf-8")


def lines(points: list[dict], figure: str) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for point in points:
        if point["figure"] == figure:
            found.setdefault(point["line"], []).append(point)
    return found


def num_envs(points: list[dict]) -> Chart:
    chart = empty("num_envs", "environments", NUM_ENVS)
    for (line, found), colour in zip(lines(points, "num_envs").items(), ("blue", "orange"), strict=True):
        curve(chart, found, line, colour)
        bound = [1 / (1 / learning_limit(p) + 1 / p["env_fps"]) for p in found]
        chart.line([p["x"] for p in found], bound, colour, f"{line}: products and tasks alone", dashed=True)
    return chart


def width(points: list[dict]) -> Chart:
    chart = empty("width", "units of each of two hidden layers, W = 1", WIDTHS, scale="log10")
    of_line = lines(points, "width")
    for (line, found), colour in zip(of_line.items(), ("blue", "orange"), strict=True):
        curve(chart, found, line, colour)
    found = next(iter(of_line.values()))
    limits = [learning_limit(p) for p in found]
    chart.line([p["x"] for p in found], limits, "grey", "products alone", dashed=True)
    return chart


def workers(points: list[dict]) -> Chart:
    of_line = lines(points, "workers")
    one, cores = of_line["strong"][0]["fps"], machine()["cores"]
    chart = empty("workers", f"workers W on {cores} cores", WORLD_SIZES)
    for (line, found), colour in zip(of_line.items(), ("blue", "red"), strict=True):
        curve(chart, found, line, colour)
    limit = [one * min(x, cores) for x in WORLD_SIZES]
    chart.line(WORLD_SIZES, limit, "grey", f"W = 1 times min(W, {cores} cores)", dashed=True)
    return chart


def empty(name: str, x: str, ticks: tuple[int, ...], scale: str = "linear") -> Chart:
    y = Axis("environment steps/s", scale, shows=(0,) if scale == "linear" else ())
    return Chart(name, "", Axis(x, "log2", {float(tick): str(tick) for tick in ticks}), y)


def curve(chart: Chart, found: list[dict], label: str, colour: str) -> None:
    xs, ys = [p["x"] for p in found], [p["fps"] for p in found]
    chart.line(xs, ys, colour, label)
    chart.dots(xs, ys, colour, [f"{label}, {x}: {y:,.0f} steps/s" for x, y in zip(xs, ys, strict=True)])


if __name__ == "__main__":
    {"measure": measure, "draw": draw}[sys.argv[1]]()
