"""Hand-made runs for tests of ddppo.study: in memory, and as the folders that the trainer leaves."""

import copy
import json

import numpy as np

from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.files import write_json
from ddppo.records.jsonl import JsonlWriter, read_reports
from ddppo.records.metrics import IterationReport
from ddppo.records.summary import SummaryBuilder
from ddppo.study.read.record import PARTS, Evaluation, Run

CONFIG = {
    "env": {"id": "Task-v0", "num_envs": 8, "backend": "sync", "slow_ranks": {}},
    "ppo": {"rollout_steps": 10, "learning_rate": 0.001},
    "dist": {"world_size": 1, "grad_sync": "auto", "timeout_s": 600.0},
    "scaling": {"rule": "strong"},
    "seed": 0,
    "target_return": None,
}


def make_run(
    world_size, seed=0, *, parts=None, fps=None, steps=80, iterations=4, rule="strong", cores=64, **more
):
    """A run whose iterations all take `parts`: seconds by part, for all ranks (a number) or by rank (a list)."""
    times = {}
    if parts is not None:
        for part in PARTS:
            times[part] = np.tile(
                np.broadcast_to(parts.get(part, 0.0), (world_size,)), (iterations, 1)
            ).astype(float)
        times["t_iter"] = sum(times[part] for part in PARTS)
        fps = fps or steps / float(times["t_iter"].mean())
    known = {
        "path": f"W{world_size}-seed{seed}",
        "env_id": "Task-v0",
        "num_envs": 8,
        "rollout_steps": steps // 8,
        "num_epochs": 4,
        "num_minibatches": 2,
        "num_parameters": 1000,
        "env_steps": steps * iterations,
        "wall_s": steps * iterations / fps,
        "final_return": 100.0,
        "target_return": float("nan"),
        "evaluations": (),
    }
    return Run(
        world_size=world_size,
        seed=seed,
        rule=rule,
        cores=cores,
        fps=fps,
        times=times,
        steps=np.full(iterations, steps),
        **{**known, **more},
    )


def points(*returns, every_s=10.0):
    """Evaluations every 100 steps and every_s seconds."""
    return tuple(Evaluation(100 * i, every_s * i, value) for i, value in enumerate(returns, start=1))


def write_run(
    folder,
    world_size=1,
    seed=0,
    *,
    iterations=6,
    warmup=2,
    t_iter=0.5,
    finished="2026-01-01T00:00:00+00:00",
    **changes,
):
    """Write summary.json and metrics.jsonl as a completed run would; `changes` are dotted settings (with __)."""
    config = copy.deepcopy(CONFIG)
    config["dist"]["world_size"], config["seed"] = world_size, seed
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            config[section][key] = value
        else:
            config[section] = value
    growth = world_size if config["scaling"]["rule"] == "weak" else 1
    steps = 80 * growth
    folder.mkdir(parents=True)
    lines = []
    for i in range(1, iterations + 1):
        for rank in range(world_size):
            line = {
                "iteration": i,
                "rank": rank,
                "env_steps": steps * i,
                "wall_s": t_iter * i,
                "time/t_iter": t_iter,
            }
            line |= {f"time/{part}": t_iter / len(PARTS) for part in PARTS}
            if rank == 0:
                line |= {"train/approx_kl": 0.01, "train/entropy": None, "rollout/return_mean": 10.0 * i}
                if i % 2 == 0:
                    line["eval/return_mean"] = 20.0 * i
            lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    measured = iterations - warmup
    summary = {
        "schema_version": 1,
        "status": "completed",
        "world_size": world_size,
        "env_steps": steps * iterations,
        "iterations": iterations,
        "wall_s": t_iter * iterations,
        "fps": steps / t_iter,
        "warmup": {
            "iterations": warmup,
            "left_out": warmup,
            "measured": measured,
            "too_few_iterations": False,
        },
        "eval": {"final": {"return_mean": 20.0 * iterations}, "best": None},
        "derived": {
            "N": 8 * growth,
            "T": 10,
            "K": 4,
            "M": 2,
            "num_parameters": 1000,
            "threads_per_rank": 1,
            "device": "cpu",
        },
        "config": config,
        "git_commit": "0" * 40,
        "machine": {"cores": 64, "hostname": "here"},
        "finished_at": finished,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def change_summary(folder, **values):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def trained(folder, *starts, rule="strong", seed=0, warmup=1, first=2):
    """Write the records of a run of several starts, (world_size, iterations, seconds of each), as the trainer does.

    The first iteration of a start takes `first` times as long. The return is 10 times the number of the iteration.
    """
    folder.mkdir(parents=True)
    path = folder / "metrics.jsonl"
    iteration, env_steps, wall_s = 0, 0, 0.0
    for world_size, count, seconds in starts:
        config = Config()
        config.env.id, config.seed, config.target_return = "CartPole-v1", seed, 20.0
        config.dist.world_size, config.scaling.rule = world_size, rule
        shape = validate(config)
        here = {"hostname": "here", "cpu": "Xeon", "gpu": None, "cores": 64, "ranks": list(range(world_size))}
        derived = {"num_parameters": 1000, "num_hosts": 1, "machines": [here]}
        builder = SummaryBuilder(config, shape, derived, warmup)
        if path.exists():
            builder.restore(read_reports(path))
        writer = JsonlWriter(path)
        for i in range(count):
            iteration, env_steps = iteration + 1, env_steps + shape.batch_size
            t_iter = seconds * (first if i == 0 else 1)
            wall_s += t_iter
            per_rank = {"time/t_iter": t_iter} | {f"time/{part}": t_iter / len(PARTS) for part in PARTS}
            per_rank["rollout/local_steps"] = shape.batch_size / world_size
            metrics = {"rollout/return_mean": 10.0 * iteration, "train/epochs": 4.0}
            report = IterationReport(iteration, env_steps, wall_s, (per_rank,) * world_size, metrics)
            builder.add(report)
            writer.write(report)
        writer.close()
    final = {"return_mean": 10.0 * iteration}
    write_json(folder / "summary.json", builder.build(status="completed", final_eval=final))
    return folder
