"""Does a run stay as fast and as small as it began? README.md says what to call.

Trains W2 until the time is over, with the checkpoints and TensorBoard of a usual run, and looks at every process of it
now and then. Writes a line per look and process (<out>.csv) and what follows from them (<out>.json).
"""

import argparse
import csv
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces import Traces, adopt_orphans, cpu_seconds, end_all, living, memory_mb, role

CHECKOUT = Path(__file__).resolve().parents[2]
WORK = [
    "experiment=bench/w2",
    "ppo.total_steps=1000000000000",
    "checkpoint.every_steps=2000000",
    "log.tensorboard=true",
]


def env_steps(run_dir: Path) -> int:
    """Return the env_steps of the last whole line of metrics.jsonl, 0 without one."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return json.loads(whole)["env_steps"] if whole else 0


def look(run_dir: Path, start: float) -> list[dict[str, Any]]:
    """Return a row for every process of the run."""
    rows = []
    when = {"seconds": round(time.monotonic() - start, 1), "env_steps": env_steps(run_dir)}
    for pid in living():
        try:
            row = when | {
                "process": role(pid),
                "cpu_s": cpu_seconds(pid),
                **{f"{name}_mb": round(value, 2) for name, value in memory_mb(pid).items()},
                "files": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": len(os.listdir(f"/proc/{pid}/task")),
            }
        except OSError:  # it ended meanwhile
            continue
        rows.append(row)
    return rows


def soak(world_size: int, seconds: float, every_s: float, more: list[str]) -> dict[str, Any]:
    """Run, look, stop by SIGTERM, and look what is left; returns rows and what the end was like."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        run_dir, temporary = Path(folder) / "run", Path(folder) / "temporary"
        temporary.mkdir()
        traces = Traces(temporary)
        command = [sys.executable, "-m", "ddppo.train", *WORK, f"dist.world_size={world_size}", *more]
        start = time.monotonic()
        process = subprocess.Popen([*command, f"hydra.run.dir={run_dir}"], cwd=CHECKOUT, env=traces.environ())
        rows: list[dict[str, Any]] = []
        try:
            while time.monotonic() - start < seconds and process.poll() is None:
                time.sleep(every_s)
                rows += look(run_dir, start)
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
            left, _ = traces.left(patience_s=10)
        finally:
            end_all()
    return {"rows": rows, "exit_code": code, "left": left}


def growth(values: Iterable[float]) -> dict[str, float]:
    """Return the median of the first and the last tenth, and by how many percent the last is more."""
    values = list(values)
    tenth = max(1, len(values) // 10)
    first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
    return {"first": first, "last": last, "percent": round(100 * (last / first - 1), 2)}


def rates(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the steps per second, and per CPU-second of all ranks, of each third."""
    looks: dict[float, dict[str, float]] = {}
    for row in rows:
        if row["process"].startswith("rank"):
            at = looks.setdefault(row["env_steps"], {"seconds": row["seconds"], "cpu_s": 0.0})
            at["cpu_s"] += row["cpu_s"]
    steps = sorted(looks)
    ends = [steps[round(k * (len(steps) - 1) / 3)] for k in range(4)]
    return [
        {
            name: round((b - a) / (looks[b][of] - looks[a][of]), 1)
            for name, of in (("steps_per_s", "seconds"), ("steps_per_cpu_s", "cpu_s"))
        }
        for a, b in itertools.pairwise(ends)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--warm-up-minutes", type=float, default=2)
    parser.add_argument("--every-seconds", type=float, default=15)
    parser.add_argument("--out", type=Path, required=True, help="<out>.csv and <out>.json are written")
    parser.add_argument("settings", nargs="*", help="more settings of the run")
    options = parser.parse_args()
    found = soak(options.world_size, 60 * options.minutes, options.every_seconds, options.settings)
    rows = [row for row in found["rows"] if row["seconds"] >= 60 * options.warm_up_minutes]
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["process"], []).append(row)
    columns = ("rss_mb", "pss_mb", "anonymous_mb", "files", "threads")
    result = {
        "minutes": options.minutes,
        "world_size": options.world_size,
        "settings": [*WORK, *options.settings],
        "env_steps": rows[-1]["env_steps"],
        "thirds": rates(rows),
        "growth": {
            name: {column: growth(row[column] for row in of[name]) for column in columns}
            for name in sorted(of)
        },
        "exit_code": found["exit_code"],
        "left": found["left"],
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=found["rows"][0])
        writer.writeheader()
        writer.writerows(found["rows"])
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
