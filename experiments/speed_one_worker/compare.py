"""Compare one worker of ddppo with Stable-Baselines3 on CartPole: 64 envs x 128 steps, 4 epochs x 4 minibatches.

python experiments/speed_one_worker/compare.py --sb3-python <python of a venv with stable-baselines3>

The two run in turn, one thing at a time; each number is environment steps per second over the iterations after the
first two. Writes results.json beside this file and prints medians and the ratio pair by pair.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ITERATIONS = 30
STEPS = 64 * 128

SB3 = f"""
import sys, time
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
import torch
threads = int(sys.argv[1])
if threads:
    torch.set_num_threads(threads)

class Clock(BaseCallback):
    times = []
    def _on_rollout_start(self): self.times.append(time.perf_counter())
    def _on_step(self): return True
    def _on_training_end(self): self.times.append(time.perf_counter())

clock = Clock()
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=64), n_steps=128, batch_size=2048, n_epochs=4,
            device="cpu", seed=0)
model.learn({ITERATIONS * STEPS}, callback=clock)
print({STEPS} * {ITERATIONS - 2} / (clock.times[-1] - clock.times[2]))
"""


def sb3(python: str, threads: int) -> float:
    """Return steps/s of Stable-Baselines3; threads 0 leaves torch's default."""
    command = [python, "-W", "ignore", "-c", SB3, str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def ours(*overrides: str) -> float:
    """Return steps/s of ddppo after warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "ddppo.train", "env=cartpole", "ppo=default", "env.num_envs=64"),
            *("ppo.rollout_steps=128", "ppo.num_epochs=4", "ppo.num_minibatches=4"),
            *(f"ppo.total_steps={ITERATIONS * STEPS}", "eval.final_episodes=0", "log.progress=none"),
            *(f"hydra.run.dir={folder}/run", *overrides),
        ]
        subprocess.run(command, check=True, cwd=HERE.parent.parent)
        return json.loads(Path(folder, "run", "summary.json").read_text())["fps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sb3-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for _ in range(options.rounds):
        rows.append(
            {
                "ddppo": ours(),
                "sb3": sb3(options.sb3_python, 0),
                "sb3_one_thread": sb3(options.sb3_python, 1),
                "ddppo_native": ours("env.backend=native"),
            }
        )
        print({name: round(value) for name, value in rows[-1].items()}, flush=True)
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    ratios = {
        "ddppo / best of sb3": [row["ddppo"] / max(row["sb3"], row["sb3_one_thread"]) for row in rows],
        "ddppo_native / best of sb3": [
            row["ddppo_native"] / max(row["sb3"], row["sb3_one_thread"]) for row in rows
        ],
    }
    for name, value in medians.items():
        print(f"{name:<16} {value:10,.0f} steps/s (median of {len(rows)})")
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f}")
    (HERE / "results.json").write_text(
        json.dumps({"rows": rows, "medians": medians, "ratios": ratios}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
