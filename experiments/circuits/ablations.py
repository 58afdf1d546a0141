"""What masks, the temperature, buffers and sharing are worth: cost reached in the same time without each of them.

PYTHONPATH=. .venv/bin/python experiments/circuits/ablations.py run circuit=mod5_4 minutes=5 at_once=2
PYTHONPATH=. .venv/bin/python experiments/circuits/ablations.py write circuit=mod5_4 minutes=5

`run` takes 7 ways x seeds x minutes, one run after another; what table.py ran is not run again. `write` checks
all that was found, and writes ablations_<circuit>.svg and .md beside this file.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from ddppo.domains.circuits.quantum.benchmarks import benchmark

sys.path.insert(0, str(Path(__file__).resolve().parent))
from runs import HERE, PPO, RANDOM, UNIFORM, Result, Way, do_all, given, results

from ddppo.study.page.chart import Axis, Chart

WAYS = {  # and the colour of each
    PPO: "blue",
    Way("no_mask", ("env.episode.mask=false",)): "red",
    Way("temperature_by_size", ("model.temperature=null",)): "green",
    Way("no_prior", ("model.graph_prior=0",)): "ink",
    Way("no_buffer", ("env.buffer.draw=original",)): "orange",
    Way("nothing_shared", ("env.buffer.share=0",)): "sky",
    UNIFORM: "grey",
    RANDOM: "purple",
}


def cost_at(result: Result, times: np.ndarray) -> np.ndarray:
    """Return the least cost by each time; that of the original before anything was found."""
    costs = np.full(len(times), float(len(benchmark(result.circuit_name))))
    for point in result.points:
        costs[times >= point.cpu_s] = np.minimum(costs[times >= point.cpu_s], point.cost)
    return costs


def chart(found: Sequence[Result], circuit: str) -> Chart:
    """Draw cost against seconds of CPU, the median over seeds of each way."""
    end = max(60 * result.minutes for result in found)
    times = np.geomspace(1, end, 400)
    drawn = Chart(
        f"ablations_{circuit}",
        f"{circuit}: least cost, median of seeds",
        Axis("CPU (s)", "log10"),
        Axis("gates"),
    )
    for way, colour in WAYS.items():
        of = [cost_at(result, times) for result in found if result.way == way.name]
        if of:
            drawn.line(times.tolist(), np.median(of, axis=0).tolist(), colour, way.name.replace("_", " "))
    return drawn


def table(found: Sequence[Result]) -> str:
    lines = ["| | settings | gates of each seed | median | CPU min a run |", "|---|---|---|---|---|"]
    for way in WAYS:
        of = [result for result in found if result.way == way.name]
        if of:
            gates = [len(result.circuit) for result in of]
            settings = " ".join(f"`{setting}`" for setting in way.settings)
            cpu = median(result.cpu_s for result in of) / 60
            cells = [settings, ", ".join(map(str, gates)), f"{median(gates):g}", f"{cpu:.1f}"]
            lines.append(f"| {way.name.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(verb: str, *arguments: str) -> None:
    settings = given(arguments, circuit="mod5_4", seeds="0,1,2", minutes="5", world_size="1", at_once="2")
    circuit, seeds = settings["circuit"], [int(seed) for seed in settings["seeds"].split(",")]
    minutes = float(settings["minutes"])
    if verb == "run":
        runs = [(way, circuit, seed) for seed in seeds for way in WAYS]
        do_all(runs, minutes, int(settings["world_size"]), int(settings["at_once"]))
        return
    found = results(WAYS, [circuit], seeds, minutes)
    if not found:
        sys.exit("no run is done; `run` first")
    (HERE / f"ablations_{circuit}.svg").write_text(chart(found, circuit).svg(standalone=True) + "\n")
    (HERE / f"ablations_{circuit}.md").write_text(table(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["write"]))
