"""The two messages of async_actors, each a head of known size and what follows it as it lies in memory."""

import struct
from typing import NamedTuple

import numpy as np
import torch

from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.topologies.async_actors.line import Wire
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import FinishedEpisode


class Sent(NamedTuple):
    """In front of a rollout: which it is, what acted, and how its actor spent the time since it sent the last one.

    num_restarts: of processes of its environments, so far.
    """

    number: int
    version: int
    num_steps: int
    num_episodes: int
    asks_to_stop: int
    num_restarts: int
    num_sends: int
    num_bytes: int
    t_iter: float
    t_rollout: float
    t_wait: float
    t_comm: float


class Answer(NamedTuple):
    """In front of parameters. version: of these, none where the run has ended.

    first: the rollout to begin anew before, if at least 0.
    """

    version: int
    first: int


SENT, ANSWER = struct.Struct("<8q4d"), struct.Struct("<2q")
END = Answer(-1, -1)
_EPISODE = 4  # numbers of one


def as_bytes(x: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return x.detach().view(-1).view(torch.uint8).numpy().data


def episode_rows(episodes: list[FinishedEpisode]) -> np.ndarray:
    """Return when and where episodes ended, their returns and lengths, `[n, 4]`."""
    rows = [(e.step, e.env_index, e.episode_return, e.length) for e in episodes]
    return np.array(rows, np.float64).reshape(len(rows), _EPISODE)


def receive_episodes(wire: Wire, number: int) -> list[FinishedEpisode]:
    rows = np.empty((number, _EPISODE))
    wire.receive(rows.reshape(-1).view(np.uint8).data)
    return [FinishedEpisode(int(t), int(i), total, int(length)) for t, i, total, length in rows.tolist()]


class Parameters:
    """All that an actor acts with, as bytes: the parameters, and the moments of observations."""

    def __init__(self, parameters: FlatParameters, normalizer: ObsNormalizer | None) -> None:
        self._vector = parameters.vector.data
        self._normalizer = normalizer
        # On a CPU what travels is the vector itself.
        self._on_cpu = self._vector if self._vector.device.type == "cpu" else self._vector.cpu()

    def send(self, wire: Wire, answer: Answer) -> None:
        if self._on_cpu is not self._vector:
            self._on_cpu.copy_(self._vector)
        parts: list[memoryview | bytes] = [ANSWER.pack(*answer), as_bytes(self._on_cpu)]
        if self._normalizer is not None:
            parts.append(as_bytes(self._normalizer.state.contiguous()))
        wire.send(*parts)

    def receive(self, wire: Wire) -> None:
        """Take over what follows an Answer."""
        wire.receive(as_bytes(self._on_cpu))
        if self._on_cpu is not self._vector:
            self._vector.copy_(self._on_cpu)
        if self._normalizer is not None:
            state = torch.empty_like(self._normalizer.state)
            wire.receive(as_bytes(state))
            self._normalizer.load(state)
