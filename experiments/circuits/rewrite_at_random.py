"""How far does rewriting at random get? Best cost over CPU time, one circuit and seed a line, as CSV.

python experiments/circuits/rewrite_at_random.py circuits=tof_3,mod5_4 seeds=0,1 at=5,15,60 choose=uniform
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from ddppo.circuits.benchmarks import BENCHMARKS
from ddppo.envs.tasks.circuit import CircuitEnv
from ddppo.envs.tasks.circuit.pairs import growth_of

Obs = dict[str, np.ndarray]


def weights_of(env: CircuitEnv, choose: str) -> np.ndarray:
    """Return [num_rules] how likely a rule is beside others: no NOP, which ends the episode.

    uniform: all alike. downhill: e^-2 less likely for each gate that the rule adds.
    """
    growth = growth_of(env.rewriter)
    weights = {"uniform": np.ones(len(growth)), "downhill": np.exp(-2.0 * growth)}[choose]
    weights[env.rewriter.nop] = 0
    return weights


def best_costs(circuit: str, seed: int, choose: str) -> Iterator[tuple[float, float, int]]:
    """Yield (CPU seconds, best cost, steps so far) after every step, for ever."""
    env = CircuitEnv(circuit)
    rng = np.random.default_rng(seed)
    weights = weights_of(env, choose)
    began, steps = time.process_time(), 0
    obs, _ = env.reset(seed=seed)
    best = float(len(env.circuit))
    while True:
        at = weights[obs["pairs"][: obs["num_pairs"][0], 1]].cumsum()
        action = int(np.searchsorted(at, rng.random() * at[-1], "right")) if at[-1] else 0
        obs, _, terminated, truncated, _ = env.step(action)
        best, steps = min(best, float(len(env.circuit))), steps + 1
        if terminated or truncated:
            obs, _ = env.reset()
        yield time.process_time() - began, best, steps


def row(circuit: str, seed: int, choose: str, at: list[float]) -> list[object]:
    """Return a line: the best cost after each of the times `at`, and rewrites a second."""
    costs: list[float] = []
    for elapsed, best, steps in best_costs(circuit, seed, choose):
        while len(costs) < len(at) and elapsed >= at[len(costs)]:
            costs.append(best)
        if len(costs) == len(at):
            return [circuit, seed, choose, *(f"{cost:g}" for cost in costs), round(steps / elapsed)]
    raise AssertionError("rewriting never ends")


def main(arguments: list[str]) -> None:
    given = dict(argument.split("=", 1) for argument in arguments)
    circuits = given.get("circuits", ",".join(BENCHMARKS)).split(",")
    seeds = [int(seed) for seed in given.get("seeds", "0,1").split(",")]
    at = [float(seconds) for seconds in given.get("at", "5,15,60").split(",")]
    choose = given.get("choose", "uniform")
    write: Callable[[list[object]], object] = csv.writer(sys.stdout).writerow
    write(["circuit", "seed", "choose", *(f"{seconds:g}_s" for seconds in at), "rewrites_per_s"])
    for circuit in circuits:
        for seed in seeds:
            write(row(circuit, seed, choose, at))
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
