"""Steps per second of PPO on the same task as tensors: ddppo, eager and recorded, and rsl_rl.

    python experiments/devices/beside_rsl_rl.py out=<file.json> [device=cuda] [iterations=30] 1024 4096 16384

Both step the class Quadruped of ddppo on the same device, with networks of 256, 128 and 64 ELUs for policy and value,
T = 24 steps, 5 epochs of 4 minibatches, and the adaptive step size that reads the divergence. rsl_rl is its
OnPolicyRunner as it comes; without its search for NaN in every step, for which the host waits; and beside that with the
task's kernels recorded by ddppo. An iteration is
rollout, returns and learning; the time is the median of the iterations after the first ten, by the host's clock after
the device is done. ddppo runs by `ddppo.train` in a process of its own.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parents[2]
T, SKIPPED = 24, 10
SIZES = [256, 128, 64]


def environment(num_envs, device, *, is_recorded):
    """Return ddppo's quadruped as rsl_rl's VecEnv, perhaps with its kernels recorded as ddppo records them."""
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    from ddppo.envs.native_tasks import Quadruped
    from ddppo.ppo.recorded_rollout import RecordedTask

    class Env(VecEnv):
        def __init__(self):
            self.task = Quadruped(num_envs, device)
            if is_recorded:
                self.task = RecordedTask(self.task, torch.float32)
            self.num_envs, self.num_actions, self.max_episode_length = num_envs, 12, 500
            self.device, self.cfg = device, {}
            self.obs = self.task.reset(torch.arange(num_envs, device=device))
            self.episode_length_buf = self.task._steps

        def groups(self):
            # A recorded task returns the same tensors in every step, and rsl_rl keeps them beyond the next one.
            obs = {name: x.clone() if is_recorded else x for name, x in self.obs.items()}
            return TensorDict(obs, batch_size=[self.num_envs], device=self.device)

        def get_observations(self):
            return self.groups()

        def step(self, actions):
            step = self.task.step(actions.clamp(-2.0, 2.0))
            self.obs = step.obs
            dones = (step.terminated | step.truncated).long()
            return self.groups(), step.rewards, dones, {"time_outs": step.truncated}

    return Env()


def of_rsl_rl(num_envs, device, iterations, *, is_recorded=False, **more):
    """Return milliseconds of rsl_rl's iterations."""
    from rsl_rl.runners import OnPolicyRunner

    def net(**own):
        return {"class_name": "MLPModel", "hidden_dims": SIZES, "activation": "elu", **own}

    settings = {
        "num_steps_per_env": T,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["actor"], "critic": ["actor", "critic"]},
        "actor": net(distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0}),
        "critic": net(),
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": 5, "num_mini_batches": 4, "clip_param": 0.2, "gamma": 0.99,
            "lam": 0.95, "value_loss_coef": 0.5, "entropy_coef": 0.005, "learning_rate": 1e-3, "max_grad_norm": 1.0,
            "schedule": "adaptive", "desired_kl": 0.01, "use_clipped_value_loss": False, "rnd_cfg": None,
            "symmetry_cfg": None,
        },
        **more,
    }  # fmt: skip
    torch.manual_seed(0)
    runner = OnPolicyRunner(
        environment(num_envs, device, is_recorded=is_recorded), settings, log_dir=None, device=device
    )
    times = []

    def note(*_, **__):
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    runner.logger.log = note
    runner.learn(iterations)
    return [1000 * (end - start) for start, end in itertools.pairwise(times)]


def of_ddppo(num_envs, device, iterations, *more):
    """Return milliseconds of ddppo's iterations."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "ddppo.train", "env=quadruped", f"env.num_envs={num_envs}", f"device={device}",
            f"ppo.total_steps={iterations * T * num_envs}", f"model.hidden_sizes={SIZES}".replace(" ", ""),
            "model.activation=elu", "eval.final_episodes=0", "checkpoint.every_steps=0", "log.progress=none",
            "log.tensorboard=false", *more, f"hydra.run.dir={folder}/run",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=200)
        if done.returncode:
            raise RuntimeError(done.stderr[-1500:])
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        return [1000 * json.loads(line)["time/t_iter"] for line in lines]


def main():
    words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    device, iterations = words.get("device", "cuda"), int(words.get("iterations", 40))
    sys.path.insert(0, str(HERE))
    ways = {
        "ddppo, compile=off": lambda n: of_ddppo(n, device, iterations, "compile=off"),
        "ddppo, compile=auto": lambda n: of_ddppo(n, device, iterations, "compile=auto"),
        "ddppo, compile=torch": lambda n: of_ddppo(n, device, iterations, "compile=torch"),
        "rsl_rl": lambda n: of_rsl_rl(n, device, iterations),
        "rsl_rl, no search for NaN": lambda n: of_rsl_rl(n, device, iterations, check_for_nan=False),
        "rsl_rl, no search, recorded task": lambda n: of_rsl_rl(
            n, device, iterations, check_for_nan=False, is_recorded=True
        ),
    }
    found = {}
    for num_envs in [int(word) for word in sys.argv[1:] if word.isdecimal()]:
        for way, times in ways.items():
            start = time.monotonic()
            try:
                ms = statistics.median(times(num_envs)[SKIPPED:])
            except Exception as e:
                print(f"{way}: {type(e).__name__}: {e}", flush=True)
                continue
            found[f"{way}, E={num_envs}"] = row = {"ms": ms, "steps_per_s": 1000 * T * num_envs / ms}
            took = time.monotonic() - start
            print(
                f"E={num_envs:6} {way:34} {ms:9.2f} ms {row['steps_per_s']:14,.0f} steps/s  ({took:.0f} s)",
                flush=True,
            )
            if "out" in words:
                Path(words["out"]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
