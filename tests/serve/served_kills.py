"""Kill what a served run stands on at random instants: `python -m tests.serve.served_kills 100`, as often as wanted.

A trainer and a server with as many slots as it has environments. What is killed, by SIGKILL: the process of a world,
the server, or the trainer, which is resumed. After each: all slots are held again, training goes on, and what was lost
is counted exactly.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

from tests.support import CHECKOUT, PATIENCE_S, process_of, processes, wait_until

NUM_ENVS, WORLD_SIZE = 4, 2
TRAINER = (
    "env=remote",
    "ppo.rollout_steps=32",
    "ppo.num_minibatches=2",
    f"env.num_envs={NUM_ENVS}",
    f"dist.world_size={WORLD_SIZE}",
    "dist.oversubscribe=warn",
    "dist.on_lost=restart",
    "dist.max_restarts=1000",
    "dist.timeout_s=600",
    "ppo.total_steps=100_000_000",
    "ppo.lr_schedule=none",
    "checkpoint.every_steps=256",
    "eval.final_episodes=0",
    "log.progress=none",
    "log.tensorboard=false",
)


class Kills:
    """The server and the trainer, and what their deaths cost."""

    def __init__(self, folder: Path, port: int, seed: int) -> None:
        self.folder = folder
        self.url = f"ws://127.0.0.1:{port}"
        self.port = port
        self.drawn = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._worlds: set[int] = set()  # all that were seen, for others' servers have worlds too
        self.lost = 0  # episodes since the trainer was started last
        self.server = self._server()
        self.trainer = self._trainer(f"hydra.run.dir={folder / 'run'}")
        self._wait_until_going_on()

    def kill(self, what: str) -> None:
        """Kill it at an instant that nobody knows, and wait until all is well again."""
        time.sleep(self.drawn.random() * 0.5)
        getattr(self, f"_kill_{what}")()
        self.done[what] += 1
        self._wait_until_going_on()
        wait_until(lambda: self._num_lost() == self.lost, f"count of {self.lost} losses")

    def close(self) -> None:
        for process in (self.trainer, self.server):
            process.send_signal(signal.SIGTERM)
        self.trainer.wait(PATIENCE_S)
        self.server.wait(PATIENCE_S)

    @property
    def left(self) -> list[int]:
        """The processes of worlds that nobody serves any more."""
        return [
            pid for pid in self._worlds.intersection(processes("ddppo slot ")) if not self._is_served(pid)
        ]

    def _kill_world(self) -> None:
        os.kill(self.drawn.choice(self._held()), signal.SIGKILL)
        self.lost += 1

    def _kill_server(self) -> None:
        self.server.kill()
        self.server.wait(PATIENCE_S)
        self.server = self._server()
        self.lost += NUM_ENVS

    def _kill_trainer(self) -> None:
        self.trainer.kill()
        self.trainer.wait(PATIENCE_S)
        wait_until(lambda: self._health()["held"] == 0, "slot given back")
        self.lost = 0
        self.trainer = self._trainer(f"resume={self.folder / 'run'}", "resume_state=approximate")

    def _server(self) -> subprocess.Popen:
        task = ("env=synthetic", "env.kwargs.step_time_s=0.005")  # which sleeps: two cores are enough
        command = ("ddppo.serve", *task, f"pool={NUM_ENVS}", f"port={self.port}")
        started = self._started(command, "server")
        wait_until(lambda: self._health()["held"] >= 0, "server")
        return started

    def _trainer(self, where: str, *how: str) -> subprocess.Popen:
        arguments = () if where.startswith("resume") else TRAINER
        return self._started(("ddppo.train", *arguments, f"env.urls=[{self.url}]", where, *how), "trainer")

    def _started(self, command: tuple[str, ...], name: str) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("ab") as log:
            return process_of(
                [sys.executable, "-m", *command], cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _health(self) -> dict[str, int]:
        try:
            with urllib.request.urlopen(
                f"{self.url.replace('ws', 'http')}/health", timeout=PATIENCE_S
            ) as answer:
                return json.loads(answer.read())
        except OSError:
            return {"held": -1, "free": -1}

    def _wait_until_going_on(self) -> None:
        wait_until(lambda: self._health()["held"] == NUM_ENVS, "session for every environment")
        before = self._num_steps()
        wait_until(lambda: self._num_steps() > before, "further iteration")

        self._worlds.update(self._held())

    def _held(self) -> list[int]:
        return [pid for pid in processes("ddppo slot ") if self._is_served(pid)]

    def _is_served(self, pid: int) -> bool:
        return self.server.pid in _ancestors(pid)

    def _num_steps(self) -> int:
        assert self.trainer.poll() is None, (self.folder / "trainer.log").read_text()[-2000:]
        return max((row["env_steps"] for row in self._rows()), default=0)

    def _num_lost(self) -> float:
        return sum(row["dist/lost_episodes"] for row in self._rows())

    def _rows(self) -> list[dict]:
        """Return what each rank said of the last iteration."""
        path = self.folder / "run" / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 2**15))
            whole = [line for line in file.read().split(b"\n")[1:-1] if line]
        return [json.loads(line) for line in whole[-WORLD_SIZE:]]


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found


def main(num_kills: int, port: int, seed: int) -> None:
    """Kill so often, and say what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="served-kills-"))
    began = time.monotonic()
    kills = Kills(folder, port, seed)
    try:
        for k in range(num_kills):
            what = kills.drawn.choice(("world", "world", "server", "trainer"))
            kills.kill(what)
            print(f"{k + 1} of {num_kills}: {what}, {time.monotonic() - began:.0f} s", flush=True)
    finally:
        kills.close()
    wait_until(lambda: not kills.left, "end of the last world")
    print(f"{dict(kills.done)}: no slot lost, no process left; {folder}")


if __name__ == "__main__":
    main(int(sys.argv[1]), *(int(word) for word in [*sys.argv[2:], "18111", "0"][:2]))
