"""The circuit task, whose news also say which circuits its episodes were of; one of its processes may be killed."""

import dataclasses
import json
import os
import signal
import struct
from pathlib import Path

import gymnasium as gym

from ddppo.domains.circuits.task import CircuitEnv
from ddppo.domains.circuits.task.journal import CircuitJournal

_SIZE = struct.Struct("<q")


class Watched(CircuitEnv):
    """Whoever comes to its step `dies_at` first is killed there, once in a run, in an iteration after the first."""

    journal = "tests.domains.circuits.watched_circuits:Watch"

    def __init__(self, folder: str, dies_at: int | None = None, **settings) -> None:
        super().__init__(**settings)
        self._folder, self._dies_at, self._taken = Path(folder), dies_at, 0
        self._ended: list[str] = []
        self._is_tried = True  # at the door, where nobody publishes

    def step(self, action):
        self._taken += 1
        if self._taken == self._dies_at and not self._is_tried:
            self._die_once()
        *answer, info = super().step(action)
        if answer[2] or answer[3]:
            self._ended.append(info["circuit"])
        return *answer, info

    def _die_once(self) -> None:
        try:
            (self._folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def publish(self):
        self._is_tried = False
        said = json.dumps(self._ended).encode()
        self._ended = []
        return _SIZE.pack(len(said)) + said + super().publish()

    def receive(self, news):
        super().receive([_of_task(each) for each in news])


def _names(news: bytes) -> list[str]:
    return json.loads(news[_SIZE.size : _SIZE.size + _SIZE.unpack_from(news)[0]]) if news else []


def _of_task(news: bytes) -> bytes:
    return news[_SIZE.size + _SIZE.unpack_from(news)[0] :] if news else b""


class Watch(CircuitJournal):
    """Writes of every iteration, and in order of the environments, the circuits whose episodes ended in it."""

    def __init__(self, env, folder: Path) -> None:
        task = {key: value for key, value in env.kwargs.items() if key not in ("folder", "dies_at")}
        super().__init__(dataclasses.replace(env, kwargs=task), folder)
        self._ended: list[list[list[str]]] = []
        self._path = folder / "ended.json"

    def note(self, news, env_steps, wall_s):
        self._ended.append([_names(each) for each in news])
        self._path.write_text(json.dumps(self._ended))
        return super().note([_of_task(each) for each in news], env_steps, wall_s)

    def before(self):
        return [_SIZE.pack(0) + each for each in super().before()]


gym.register("tests/Watched-v0", Watched)
