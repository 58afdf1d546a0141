"""How fast could this machine be at most? Its limits, measured in every round of a bench.

`python -m ddppo.study.bench.limits <config.yaml> ...` prints one JSON object: for each configuration the rates of W
processes (at most one for each core), and the latency of a collective. No run is faster than its environments with
random actions; a slower machine has other limits, while slower code has not.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddppo.config import rank_rules, stored
from ddppo.config.settings import Config
from ddppo.distributed.join import join
from ddppo.envs.make import make_vec_env
from ddppo.processes.machine import available_cores
from ddppo.seeding import derived_seed
from ddppo.spaces import ActionSpec

MATRIX = (2048, 64, 64)  # a minibatch of 2,048 samples through a layer of 64 units
COLLECTIVE_BYTES = 37_000  # size of the gradient of two 64-64 networks on CartPole
_MEASURE_S = 0.4  # for each rate
_ACTIONS = 64  # batches of random actions, used in turn
_WARMUP_CALLS, _CALLS = 50, 300
# Fork, so that torch is imported once. It has computed nothing before, which macOS requires.
_START = multiprocessing.get_context("fork")


def main() -> None:
    """Measure the limits of the configurations on the command line and print them."""
    torch.set_num_threads(1)  # a thread pool would not survive the forks
    configs = [stored.load_config(Path(path)) for path in sys.argv[1:]]
    print(
        json.dumps({"limits": [rates(each) for each in configs], "collective_us": collective_us(configs[0])})
    )


def rates(config: Config) -> dict[str, float]:
    """Return the rates of a configuration, each the sum over processes that run at the same time.

    num_processes   W, at most the cores and the environments
    env_fps         steps per second of all environments with random actions
    matrix_gflops   the product of MATRIX in the model's type, with one thread in each process
    calls_per_s     calls of a small layer from Python

    The last two contain none of our code: they tell a slower machine from slower code.
    """
    # As many processes as can be busy, with equal shares of the environments.
    num_envs = rank_rules.batch_shape(config).num_envs
    num_processes = min(config.dist.world_size, available_cores(), num_envs)
    bounds = [num_envs * k // num_processes for k in range(num_processes + 1)]

    def one(index: int, together: Any) -> dict[str, float]:
        return {
            "env_fps": _env_fps(config, range(bounds[index], bounds[index + 1]), together),
            "matrix_gflops": _matrix_gflops(getattr(torch, config.dtype), together),
            "calls_per_s": _calls_per_s(together),
        }

    found = _side_by_side(num_processes, one)
    return {"num_processes": num_processes} | {name: sum(each[name] for each in found) for name in found[0]}


def _env_fps(config: Config, indices: range, together: Any) -> float:
    envs = make_vec_env(replace(config.env, slow_ranks={}), indices, rank=0, cores=1)
    try:
        envs.reset([derived_seed(config.seed, "env", i, 0) for i in indices])
        # Prepare, wait until all processes are ready, then measure at the same time.
        actions = random_actions(envs.spec.action, (_ACTIONS, len(indices)))
        together.wait()
        return len(indices) * _per_second(lambda turn: envs.step(actions[turn % _ACTIONS]), num_calls=16)
    finally:
        envs.close()


def random_actions(action: ActionSpec, shape: tuple[int, ...]) -> np.ndarray:
    """Return random actions `[*shape, *action.shape]` in a model's form: normal, or choices of equal probability."""
    # The same actions in every measurement.
    generator = np.random.default_rng(0)
    if action.kind == "box":
        return generator.standard_normal((*shape, *action.shape)).astype(np.float32)
    num_choices = 2 if action.kind == "multi_binary" else np.asarray(action.sizes)
    if action.kind == "discrete":
        return generator.integers(action.sizes[0], size=shape)
    return generator.integers(num_choices, size=(*shape, *action.shape))


def _matrix_gflops(dtype: torch.dtype, together: Any) -> float:
    rows, inner, columns = MATRIX
    # The output is allocated once, so that the product alone is measured.
    a, b = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    together.wait()
    per_second = _per_second(lambda turn: torch.mm(a, b, out=out), num_calls=100)
    return 2 * rows * inner * columns * per_second / 1e9


def _calls_per_s(together: Any) -> float:
    rows, weight, bias = torch.ones(8, 64), torch.ones(64, 64), torch.ones(64)
    state = np.ones((8, 4))

    def call(turn: int) -> Any:
        total = 0
        for number in range(32):  # the interpreter's share of the work
            total += number
        return state + total, torch.tanh(torch.addmm(bias, rows, weight))

    together.wait()
    return _per_second(call, num_calls=100)


def _per_second(call: Callable[[int], Any], num_calls: int) -> float:
    """Return calls per second of `call`, measured over _MEASURE_S in blocks of `num_calls`."""
    for turn in range(num_calls):
        call(turn)
    # After one block of warm-up.
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _MEASURE_S:
        for turn in range(num_calls):
            call(turn)
        done += num_calls
    return done / elapsed


def collective_us(config: Config, world_size: int = 2) -> float:
    """Return the median microseconds of a sum of COLLECTIVE_BYTES over ranks of this machine, done as in a run."""
    config = replace(config, dist=replace(config.dist, world_size=world_size), device="cpu")
    # Ranks join as in a run, by the variables that torchrun sets.
    values = torch.zeros(COLLECTIVE_BYTES // 4)

    with tempfile.TemporaryDirectory() as folder:

        def one(rank: int, together: Any) -> float:
            torchrun_variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
            for name, value in (torchrun_variables | {"LOCAL_WORLD_SIZE": world_size}).items():
                os.environ[name] = str(value)
            group, _ = join(config, lambda _: dist.FileStore(f"{folder}/store", world_size))
            seconds = []
            for _ in range(_WARMUP_CALLS + _CALLS):
                start = time.perf_counter()
                group.sum_(values)
                seconds.append(time.perf_counter() - start)
            group.close()
            return 1e6 * median(seconds[_WARMUP_CALLS:])

        return max(_side_by_side(world_size, one))


def _side_by_side(num_processes: int, call: Callable[[int, Any], Any]) -> list[Any]:
    """Return the results of `call(index, barrier)` in forks of this process that run at the same time."""
    together, results = _START.Barrier(num_processes), _START.SimpleQueue()

    def run(index: int) -> None:
        try:
            results.put((index, call(index, together)))
        # An error must release the others from the barrier, and reach the parent.
        except BaseException as e:
            together.abort()
            results.put((index, e))

    processes = [_START.Process(target=run, args=(index,)) for index in range(num_processes)]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    # Raise the error of a process here.
    for value in found.values():
        if isinstance(value, BaseException):
            raise value
    return [found[index] for index in range(num_processes)]


if __name__ == "__main__":
    main()
