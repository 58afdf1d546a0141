"""What all environments of a run are in the midst of: gathered from the ranks that know, dealt to those that go on.

Everything is by the global index of the environment, so that any number of ranks, any backend and any topology that
steps in turn may go on with it.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives.group import Group, gather_bytes
from ddppo.config.settings import Config
from ddppo.distributed.topologies.base import RankContext
from ddppo.distributed.topologies.known import find
from ddppo.envs.backends.classic_cpp import why_not_batched
from ddppo.envs.probing.dry_run import why_inexact
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import EnvStateError
from ddppo.loop.env_messages import joined, parted
from ddppo.ppo.collector import Collector
from ddppo.spaces import EnvSpec

_WORTH = 4096  # bytes from which a state is compressed
_OF_EPISODES: dict[str, type] = {"starts": np.bool_, "returns": np.float64, "lengths": np.int64}


class Environments:
    """The environments of a rank, as checkpoints see them. All ranks come to `state` together.

    why_not: why nobody can say what they are in the midst of, "" where that is nothing; the same on all ranks. doubt:
    why this rank knows that states are not exact.
    """

    def __init__(
        self, context: RankContext, group: Group, why_not: str | None, doubt: str | None = None
    ) -> None:
        self._context = context
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
        context = self._context
        env: Any = context.topology.env
        if env is not None:
            first = env.names.indices.start
            env.go_on_from({"envs": _states(state, range(first, first + env.num_envs))})
        reset()
        collector = context.topology.collector
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
        return _joined([_Told.of(part) for part in told], self._context.shape.num_envs) if told else None

    def _learned(self) -> tuple[int, torch.Tensor] | None:
        """Return the discounted returns that this rank scales rewards by, and the index of the first's environment."""
        learning, rank = self._context.layout.learning, self._group.rank
        normalizer = self._context.topology.learner.reward_normalizer
        if rank not in learning or normalizer is None:
            return None
        return learning.index(rank) * len(normalizer.discounted), normalizer.discounted

    def _of_rank(self) -> list[bytes]:
        """Return what this rank knows: a head, arrays of episodes under way, discounted returns, memory, states.

        Behind them stands what is large in the states, once, however many environments have it.
        """
        program = self._context.topology
        head: dict[str, Any] = {"why": self._doubt, "envs": [0, 0], "episodes": [0, 0], "discounted": [0, 0]}
        beside: dict[str, bytes] = {}
        collector = program.collector
        env: Any = program.env
        memory = b""
        states: list[bytes] = []
        if env is not None:
            try:
                states = [_shrunk(packed(each, beside)) for each in env.state()["envs"]]
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
        head["beside"] = list(beside)
        return [
            json.dumps(head).encode(),
            *episodes,
            discounted,
            memory,
            *states,
            *map(_shrunk, beside.values()),
        ]


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
    beside: dict[str, bytes]

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
        states, rest = parts[6 : 6 + len(envs)], parts[6 + len(envs) :]
        beside = dict(zip(head["beside"], rest, strict=True))
        return cls(head["why"], envs, episodes, discounted, arrays, returns, memory, states, beside)


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
    beside = {name: blob for each in told for name, blob in each.beside.items()}
    return {
        **_stored("states", "sizes", known),
        **(
            {"beside": list(beside), **_stored("blobs", "blob_sizes", list(beside.values()))}
            if beside
            else {}
        ),
        **{name: torch.from_numpy(array) for name, array in episodes.items()},
        "discounted": torch.from_numpy(discounted) if normalizes else None,
        **({"memory": torch.from_numpy(memory)} if memory.size else {}),
    }


def _stored(name: str, sizes: str, parts: Sequence[bytes]) -> dict[str, torch.Tensor]:
    """Return parts one after another and their sizes, as tensors, which load without unpickling."""
    content = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    return {name: content, sizes: torch.tensor(list(map(len, parts)))}


def _parts(state: Mapping[str, Any], name: str, sizes: str, numbers: Iterable[int]) -> list[bytes]:
    """Return the parts of these numbers of what `_stored` returned."""
    bounds, content = [0, *state[sizes].cumsum(0).tolist()], state[name].numpy()
    return [_grown(content[bounds[i] : bounds[i + 1]].tobytes()) for i in numbers]


def _states(state: Mapping[str, Any], envs: range) -> list[Any]:
    """Return the states of environments of these indices."""
    names = state.get("beside", [])
    beside = (
        dict(zip(names, _parts(state, "blobs", "blob_sizes", range(len(names))), strict=True))
        if names
        else {}
    )
    return [unpacked(part, beside) for part in _parts(state, "states", "sizes", envs)]


def how_saved(state: Mapping[str, Any]) -> str:
    """Return by what means the first environment's state was taken, as ddppo.envs names it."""
    return str(_states(state, range(1))[0].get("how"))


def what_is_large(state: Mapping[str, Any]) -> str:
    """Return what takes most room in the first environment's state, "" where states are missing."""
    if "missing" in state:
        return ""
    path: list[str] = []
    value: Any = _states(state, range(1))[0]
    while (items := _parts_of(value)) and (name := max(items, key=lambda each: size_of(items[each]))):
        path, value = [*path, name], items[name]
    if path[:2] == ["saved", "task"]:
        path = [f"the task's {'.'.join(path[2:3])}"]
    elif path[:2] == ["saved", "around"]:
        path = [f"{'.'.join(path[3:4])} of a wrapper around the task"]
    shape = f"{value.dtype} {list(value.shape)}, " if isinstance(value, np.ndarray) else ""
    return f"{'.'.join(path)} ({shape}{size_of(value) / 1e6:.1f} MB)"


def _parts_of(value: Any) -> dict[str, Any]:
    """Return the parts of a state that have names: those of dicts, unless one stands for another type, and of lists."""
    if isinstance(value, dict):
        return {} if any(key.startswith("\0") for key in value) else value
    is_chain = isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    return {str(i): each for i, each in enumerate(value)} if is_chain else {}


def size_of(value: Any) -> int:
    """Return about how many bytes a part of a checkpoint takes."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


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


# -- Whether a resumed run is the one that was not interrupted, and what is said where it is not.


def is_between_episodes(config: Config, spec: EnvSpec) -> bool:
    """Return whether environments are in the midst of nothing between iterations, for whole episodes are played."""
    return make_sampler(config, spec, config.env.num_envs).every_iteration


def why_left_out(config: Config) -> str | None:
    """Return why checkpoints of a run do not hold what environments are in the midst of; None if they do."""
    if find(config.dist.topology).own_pace:
        return f"with distributed={config.dist.topology} actors go at their own pace, and who comes when is chance"
    return None if config.checkpoint.environments else "checkpoint.environments=false leaves them out"


def warning(config: Config, spec: EnvSpec) -> str | None:
    """Return what a run is to say at its start, where it could not be resumed exactly."""
    if config.resume_state == "approximate" or is_between_episodes(config, spec):
        return None
    why = why_left_out(config) or why_inexact(config.env)
    if why is None:
        return None
    return (
        f"checkpoints will not hold what environments are in the midst of, for {why}: this run can be resumed with new "
        "episodes only, which resume_state=approximate allows"
    )


def missing(config: Config, spec: EnvSpec, state: dict[str, Any]) -> str | None:
    """Return why a run cannot go on from a checkpoint's state exactly; None if it can."""
    if is_between_episodes(config, spec):
        return None
    # What a checkpoint holds is gone on from, unless the run says that it may be left aside.
    may_leave_aside = find(config.dist.topology).own_pace or config.resume_state == "approximate"
    if may_leave_aside and (why := why_left_out(config)):
        return why
    held = state.get("environments") or {"missing": "it is of a run that played whole episodes"}
    if "missing" in held:
        return str(held["missing"])
    was, now = _kind(how_saved(held)), _kind_now(config)
    if was != now:
        return (
            f"{config.env.id} was stepped {was} and is stepped {now} now, each with states of its own: keep "
            "env.backend and dist.topology"
        )
    return None


_KINDS = {"batched": "as one batch", "games": "by ale-py's batch"}


def _kind(how: str) -> str:
    return _KINDS.get(how, "one by one")


def _kind_now(config: Config) -> str:
    backend = find(config.dist.topology).env_backend or config.env.backend
    if config.env.is_ale and backend in ("auto", "gym_vector"):
        return _KINDS["games"]
    is_batch = backend in ("auto", "batched") and why_not_batched(config.env) is None
    return _kind("batched" if is_batch else "")
