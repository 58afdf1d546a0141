"""What all environments of a run are in the midst of: gathered from the ranks that know, dealt to those that go on.

Everything is by the global index of the environment, so that any number of ranks, any backend and any topology that
steps in turn may go on with it.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ddppo.collectives import Group
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import EnvStateError
from ddppo.ppo.acting.collector import Collector
from ddppo.run.loop.exchange import gather_bytes, joined, parted
from ddppo.run.parts import Parts

_WORTH = 4096  # bytes from which a state is compressed
_OF_EPISODES: dict[str, type] = {"starts": np.bool_, "returns": np.float64, "lengths": np.int64}


class Environments:
    """The environments of a rank, as checkpoints see them. All ranks come to `state` together.

    why_not: why nobody can say what they are in the midst of, "" where that is nothing; the same on all ranks. doubt:
    why this rank knows that states are not exact.
    """

    def __init__(self, parts: Parts, group: Group, why_not: str | None, doubt: str | None = None) -> None:
        self._parts = parts
        self._group = group
        self._why_not = why_not
        self._doubt = doubt

    def begin(self, reset: Callable[[], None], state: Mapping[str, Any] | None) -> str | None:
        """Start the environments by `reset`, in the midst of what `state` returned, or anew.

        Returns why they do not go on where they were, None if they do, or have nothing to go on with.
        """
        if state is None or "missing" in state:
            reset()
            return None if state is None or self._why_not == "" else state["missing"]
        parts = self._parts
        env: Any = parts.program.env
        if env is not None:
            first = env.names.indices.start
            env.go_on_from({"envs": _states(state, range(first, first + env.num_envs))})
        reset()
        collector = parts.program.collector
        if isinstance(collector, Collector):
            mine = slice(collector.first_env, collector.first_env + collector.env.num_envs)
            for name in _OF_EPISODES:
                getattr(collector, name)[:] = state[name][mine].numpy()
            if collector.memory is not None:
                collector.memory.state.copy_(state["memory"][mine])
        if (learned := self._learned()) is not None and state["discounted"] is not None:
            first, discounted = learned
            discounted.copy_(state["discounted"][first : first + len(discounted)])
        return None

    def state(self) -> dict[str, Any] | None:
        """Return what all environments are in the midst of, for a checkpoint of rank 0; None: of nothing."""
        if self._why_not is not None:
            return {"missing": self._why_not} if self._why_not else None
        told = _gathered(self._group, self._of_rank())
        return _joined([_Told.of(part) for part in told], self._parts.shape.num_envs) if told else None

    def _learned(self) -> tuple[int, torch.Tensor] | None:
        """Return the discounted returns that this rank scales rewards by, and the index of the first's environment."""
        learning, rank = self._parts.layout.learning, self._group.rank
        normalizer = self._parts.learner.reward_normalizer
        if rank not in learning or normalizer is None:
            return None
        return learning.index(rank) * len(normalizer.discounted), normalizer.discounted

    def _of_rank(self) -> list[bytes]:
        """Return what this rank knows: a head, arrays of episodes under way, discounted returns, memory, states."""
        program = self._parts.program
        head: dict[str, Any] = {"why": self._doubt, "envs": [0, 0], "episodes": [0, 0], "discounted": [0, 0]}
        collector = program.collector
        env: Any = program.env
        memory = b""
        states: list[bytes] = []
        if env is not None:
            try:
                states = [_shrunk(packed(each)) for each in env.state()["envs"]]
            except EnvStateError as e:  # of a process that was just lost
                head["why"] = str(e)
            head["envs"] = [env.names.indices.start, len(states)]
        episodes = [b""] * len(_OF_EPISODES)
        if isinstance(collector, Collector):
            head["episodes"] = [collector.first_env, collector.env.num_envs]
            episodes = [
                getattr(collector, name).astype(kind).tobytes() for name, kind in _OF_EPISODES.items()
            ]
            if collector.memory is not None:
                memory = collector.memory.state.double().cpu().numpy().tobytes()
        discounted = b""
        if (learned := self._learned()) is not None:
            head["discounted"] = [learned[0], len(learned[1])]
            discounted = learned[1].double().cpu().numpy().tobytes()
        return [json.dumps(head).encode(), *episodes, discounted, memory, *states]


class _Told(NamedTuple):
    """What a rank told. Each of the ranges is of global indices."""

    why: str | None
    envs: range
    episodes: range
    discounted: range
    arrays: list[np.ndarray]
    returns: np.ndarray
    memory: np.ndarray
    states: list[bytes]

    @classmethod
    def of(cls, parts: list[bytes]) -> "_Told":
        head = json.loads(parts[0])
        envs, episodes, discounted = (
            range(head[name][0], sum(head[name])) for name in ("envs", "episodes", "discounted")
        )
        arrays: list[np.ndarray] = [
            np.frombuffer(part, kind) for part, kind in zip(parts[1:4], _OF_EPISODES.values(), strict=True)
        ]
        returns, memory = map(np.frombuffer, parts[4:6])
        return cls(head["why"], envs, episodes, discounted, arrays, returns, memory, parts[6:])


def _joined(told: Sequence[_Told], num_envs: int) -> dict[str, Any]:
    """Return what all ranks told, by the environments' indices; {"missing": why} where something is."""
    if why := next((each.why for each in told if each.why), None):
        return {"missing": why}
    states: list[bytes | None] = [None] * num_envs
    episodes: dict[str, np.ndarray] = {name: np.zeros(num_envs, kind) for name, kind in _OF_EPISODES.items()}
    num_known = 0
    discounted = np.zeros(num_envs)
    memory = np.zeros((num_envs, max(x.memory.size // max(len(x.episodes), 1) for x in told)))
    for each in told:
        for i, state in zip(each.envs, each.states, strict=True):
            states[i] = state
        for of_all, own in zip(episodes.values(), each.arrays, strict=True):
            of_all[each.episodes.start : each.episodes.stop] = own
        memory[each.episodes.start : each.episodes.stop] = each.memory.reshape(
            len(each.episodes), memory.shape[1]
        )
        num_known += len(each.episodes)
        discounted[each.discounted.start : each.discounted.stop] = each.returns
    known = [state for state in states if state is not None]
    if len(known) < num_envs or num_known < num_envs:
        return {"missing": "the program of its topology names neither all environments nor who acts in them"}
    normalizes = any(each.discounted for each in told)
    return {
        "states": torch.frombuffer(bytearray(b"".join(known)), dtype=torch.uint8),
        "sizes": torch.tensor(list(map(len, known))),
        **{name: torch.from_numpy(array) for name, array in episodes.items()},
        "discounted": torch.from_numpy(discounted) if normalizes else None,
        **({"memory": torch.from_numpy(memory)} if memory.size else {}),
    }


def _states(state: Mapping[str, Any], envs: range) -> list[Any]:
    """Return the states of environments of these indices."""
    bounds = [0, *state["sizes"].cumsum(0).tolist()]
    content = state["states"].numpy()
    return [unpacked(_grown(content[bounds[i] : bounds[i + 1]].tobytes())) for i in envs]


def how_saved(state: Mapping[str, Any]) -> str:
    """Return by what means the first environment's state was taken, as ddppo.envs names it."""
    return str(_states(state, range(1))[0].get("how"))


def _shrunk(state: bytes) -> bytes:
    return b"z" + zlib.compress(state, 1) if len(state) >= _WORTH else b"-" + state


def _grown(state: bytes) -> bytes:
    return zlib.decompress(state[1:]) if state[:1] == b"z" else state[1:]


def _gathered(group: Group, mine: Sequence[bytes]) -> list[list[bytes]]:
    """Return the parts of all ranks on rank 0, [] on others. No topology sends them: the messages are not counted."""
    first = len(group.records)
    parts, _ = gather_bytes(group, joined(mine), at_root=True)
    group.records[first:] = [record._replace(num_bytes=None) for record in group.records[first:]]
    return [parted(part) for part in parts]
