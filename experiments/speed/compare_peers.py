"""Measure ddppo and Stable-Baselines3 on the same work in the same rounds.

python experiments/speed/compare_peers.py --sb3-python <python with stable-baselines3> [--workload W1] [--rounds 5]

Everything runs in turn, one thing at a time, each in a process of its own. Steps/s are of training after the first two
iterations; Stable-Baselines3 has torch's default threads, then one, and the faster counts in each round. Writes
peers_<workload>.json beside this file, or what --out says.

W3 is Pong with Stable-Baselines3's AtariWrapper and VecFrameStack in float32; ours is measured in bfloat16, which the
workload takes, and in float32.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from ddppo.launch.arguments import composed
from ddppo.records.summary import machine, versions
from ddppo.study.bench.measured import Clock, measure, this_code
from ddppo.study.bench.workloads import Configuration, fixed

HERE = Path(__file__).resolve().parent

SB3 = """
import sys, time
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack
import torch
env_id, num_envs, rollout_steps, num_epochs, minibatch, threads, seconds = sys.argv[1:]
num_envs, rollout_steps = int(num_envs), int(rollout_steps)
if int(threads):
    torch.set_num_threads(int(threads))

class Clock(BaseCallback):
    times = []
    def _on_rollout_start(self):
        self.times.append(time.perf_counter())
    def _on_step(self):
        return len(self.times) < 5 or time.perf_counter() - self.times[2] < float(seconds)

if env_id.startswith("ALE/"):
    import ale_py
    unskipped = {"frameskip": 1, "repeat_action_probability": 0.0}  # AtariWrapper skips
    env = VecFrameStack(make_atari_env(env_id, n_envs=num_envs, env_kwargs=unskipped), n_stack=4)
else:
    env = make_vec_env(env_id, n_envs=num_envs)
policy = "CnnPolicy" if env_id.startswith("ALE/") else "MlpPolicy"
model = PPO(policy, env, n_steps=rollout_steps, batch_size=int(minibatch),
            n_epochs=int(num_epochs), device="cpu", seed=0)
model.learn(10**9, callback=Clock())
times = Clock.times
print(num_envs * rollout_steps * (len(times) - 3) / (times[-1] - times[2]))
"""


def sb3(python: str, configured: Configuration, threads: int, seconds: float) -> float:
    """Return steps/s of Stable-Baselines3 on the work of `configured`; threads 0 leaves torch's default."""
    config = composed(configured.overrides)
    ppo = config.ppo
    minibatch = config.env.num_envs * ppo.rollout_steps // ppo.num_minibatches
    sizes = (
        config.env.id,
        config.env.num_envs,
        ppo.rollout_steps,
        ppo.num_epochs,
        minibatch,
        threads,
        seconds,
    )
    command = [python, "-W", "ignore", "-c", SB3, *map(str, sizes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sb3-python", required=True)
    parser.add_argument("--workload", default="W2")
    parser.add_argument("--world-sizes", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    workload, clock = fixed(options.workload), Clock(0.5, options.seconds)
    world_sizes = map(int, options.world_sizes.split(","))
    ours = {f"ddppo W={w}": Configuration(workload, w, "strong") for w in world_sizes}
    if workload.name in ("W1", "W2"):  # whose task brings a batched implementation
        ours["ddppo W=1 native"] = Configuration(
            fixed(workload.name, ["env.backend=gym_vector"]), 1, "strong"
        )
    if workload.name == "W3":
        ours["ddppo W=1 float32"] = Configuration(
            fixed(workload.name, ["model.precision=float32"]), 1, "strong"
        )
    rows = []
    for _ in range(options.rounds):
        row = {name: measure(this_code(), each.overrides, clock)["fps"] for name, each in ours.items()}
        for threads, name in ((0, "sb3"), (1, "sb3 one thread")):
            row[name] = sb3(options.sb3_python, next(iter(ours.values())), threads, options.seconds)
        rows.append(row)
        print({name: round(value) for name, value in row.items()}, flush=True)
    best = [max(row["sb3"], row["sb3 one thread"]) for row in rows]
    for name in rows[0]:
        over = [row[name] / other for row, other in zip(rows, best, strict=True)]
        fps = statistics.median(row[name] for row in rows)
        print(
            f"{name:<18}{fps:10,.0f} steps/s, {statistics.median(over):.2f} of the better SB3 "
            f"({min(over):.2f} to {max(over):.2f})"
        )
    about = {"workload": workload.name, "git_commit": this_code().commit, "git_dirty": this_code().dirty}
    about |= {"machine": machine(), "versions": versions(), "seconds": options.seconds}
    out = options.out or HERE / f"peers_{workload.name.lower()}.json"
    out.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
