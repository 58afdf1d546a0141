"""The rounds: in each, every configuration of every code in turn, so that a pair meets the same machine.

Imports no torch: what measures runs in processes of its own.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddppo import config as configuration
from ddppo.door.arguments import composed
from ddppo.errors import ConfigError, TrainingError
from ddppo.study.bench.code import Code, this_code
from ddppo.study.bench.one_run import Clock, measure
from ddppo.study.bench.results import Measurement
from ddppo.study.bench.workloads import Configuration

Say = Callable[[str], None]


def run_rounds(
    todo: Sequence[Configuration], codes: Sequence[Code], num_rounds: int, clock: Clock, say: Say
) -> list[Measurement]:
    """Measure each configuration with each code, num_rounds times, A B A B. Raises ConfigError, TrainingError.

    Before the first round each is run once for a moment, so that nobody pays for cold caches.
    """
    for configured in todo:
        for code in codes:
            say(f"warming up {configured.name}{_of(code, codes)}")
            measure(code, configured.overrides, Clock(0.0, 0.0))
    measurements = []
    for number in range(1, num_rounds + 1):
        limits = _limits(todo)
        for configured in todo:
            for code in codes:
                run = measure(code, configured.overrides, clock)
                say(
                    f"round {number} of {num_rounds}  {configured.name}{_of(code, codes)}: {run['fps']:,.0f} steps/s"
                )
                measurements.append(
                    Measurement(
                        round=number,
                        code=code.name,
                        workload=configured.workload.name,
                        world_size=configured.world_size,
                        rule=configured.rule,
                        overrides=configured.overrides,
                        run=run,
                        limits=limits[configured.name],
                    )
                )
    return measurements


def _of(code: Code, codes: Sequence[Code]) -> str:
    return f" ({code.name})" if len(codes) > 1 else ""


def _limits(todo: Sequence[Configuration]) -> dict[str, Mapping[str, Any]]:
    """Return what the machine allows now, by configuration, as ddppo.study.bench.limits measures it."""
    with tempfile.TemporaryDirectory(prefix="ddppo-bench-") as folder:
        paths = []
        for number, configured in enumerate(todo):
            path = Path(folder) / f"{number}.yaml"
            path.write_text(configuration.to_yaml(composed(configured.overrides)), encoding="utf-8")
            paths.append(str(path))
        found = subprocess.run(
            [sys.executable, "-m", "ddppo.study.bench.limits", *paths],
            cwd=folder,
            env=this_code().environ(),
            capture_output=True,
            text=True,
        )
        if found.returncode:
            last = found.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            kind, _, said = last[0].partition(": ")
            if kind == "ddppo.errors.ConfigError":
                raise ConfigError(said)
            raise TrainingError(f"the machine's limits could not be measured: {last[0]}")
    whole = json.loads(found.stdout.splitlines()[-1])
    latency = {"collective_us": whole["collective_us"]}
    return {configured.name: rates | latency for configured, rates in zip(todo, whole["limits"], strict=True)}
