"""Count the lines of the twenty tasks of docs/coming_from.md in Stable-Baselines3, or run them.

python experiments/coming_from/count.py          # lines of each task
python experiments/coming_from/count.py run      # run each of them, in a folder of its own; needs stable-baselines3
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).with_name("stable_baselines3.txt")
# What the programs find: a task of the user's own, and a model that was saved.
TASK = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class MyEnv(CartPoleEnv):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {"score": float(obs[0])}


gym.register("Scored-v0", MyEnv, max_episode_steps=500)
"""
SAVED = 'from stable_baselines3 import PPO\nPPO("MlpPolicy", "CartPole-v1").learn(4096).save("cartpole")\n'


def programs() -> dict[int, list[str]]:
    """Return the lines of each task, by its number: code, and commands of a shell, without comments."""
    parts = re.split(r"^# (\d+)\. .*\n", PROGRAMS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for number, text in zip(parts[::2], parts[1::2], strict=True):
        lines = [line.removeprefix("# shell: ") for line in text.splitlines()]
        found[int(number)] = [line for line in lines if line and not line.startswith("#")]
    return found


def run() -> int:
    """Run the programs of Python; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_envs.py").write_text(TASK, encoding="utf-8")
        everything = {0: SAVED.splitlines()} | programs()
        for number, lines in everything.items():
            if not lines or lines[0].startswith("for "):
                print(f"{number}: nothing to run")
                continue
            (Path(folder) / "program.py").write_text("\n".join(lines), encoding="utf-8")
            done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True)
            failed += done.returncode != 0
            print(
                f"{number}: {'runs' if done.returncode == 0 else done.stderr.strip().splitlines()[-1]}",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        sys.exit(run())
    for number, lines in programs().items():
        print(number, len(lines))
