"""The state of all environments in a checkpoint: episodes under way, so that a resumed run goes on within them.

    saving      every rank packs its part as a list of bytes (`Environments._pack`)
                one gather brings all parts to rank 0, which reads them (`RankStates.read`)
                rank 0 orders them by the global index of the environment (`_merged`), as the checkpoint holds them
    restoring   every rank loads the checkpoint and takes the states of its own environments (`Environments.begin`)

All is ordered by global index, so a run may go on with another number of ranks, backend or topology, as long as the
environments are stepped in the same way (`missing`). The end of the file says when a run cannot be resumed exactly.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

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

_COMPRESSED_FROM = 4096  # bytes of a state

# Arrays [E] of a collector about episodes under way, and their types in a checkpoint.
_EPISODE_ARRAYS: dict[str, type] = {
    "starts": np.bool_,  # whether the next step begins an episode
    "returns": np.float64,  # rewards so far, undiscounted
    "lengths": np.int64,  # steps so far
}


class Environments:
    """The environments of this rank, as checkpoints see them. All ranks call `state` together."""

    def __init__(
        self,
        context: RankContext,
        group: Group,
        # Why checkpoints of this run hold no states, equal on all ranks; None if they do. "": there is nothing to hold,
        # because every iteration begins new episodes.
        why_not: str | None,
        doubt: str | None = None,  # why this rank knows that its states would not be exact
    ) -> None:
        self._context = context
        self._group = group
        self._why_not = why_not
        self._doubt = doubt

    def begin(self, reset: Callable[[], None], state: Mapping[str, Any] | None) -> str | None:
        """Start the environments, in the episodes of a checkpoint's `state` if it holds them, else in new ones.

        reset: resets all environments of this rank. Returns None, or why a resumed run begins new episodes.
        """
        if state is None or "missing" in state:
            reset()
            return None if state is None or self._why_not == "" else state["missing"]
        context = self._context

        # 1. The environments: the next reset returns the observation of the state instead of a new episode's.
        env: Any = context.topology.env
        if env is not None:
            first = env.names.indices.start
            env.go_on_from({"envs": _states(state, range(first, first + env.num_envs))})
        reset()

        # 2. The collector: returns and lengths so far, and the state of a model with memory.
        collector = context.topology.collector
        if _counts_episodes(collector):
            local = slice(collector.first_env, collector.first_env + collector.env.num_envs)
            for name in _EPISODE_ARRAYS:
                getattr(collector, name)[:] = state[name][local].numpy()
            if collector.memory is not None:
                collector.memory.state.copy_(state["memory"][local])

        # 3. The learner: discounted returns, by which rewards are normalised.
        if (found := self._discounted_returns()) is not None and state["discounted"] is not None:
            first, discounted = found
            discounted.copy_(state["discounted"][first : first + len(discounted)])
        return None

    def state(self) -> dict[str, Any] | None:
        """Return the state of all environments on rank 0, for a checkpoint; None if there is nothing to save.

        {"missing": why} if states are left out or cannot be saved.
        """
        if self._why_not is not None:
            return {"missing": self._why_not} if self._why_not else None
        by_rank = gather_at_root(self._group, self._pack())
        if not by_rank:  # not rank 0
            return None
        return _merged([RankStates.read(parts) for parts in by_rank], self._context.shape.num_envs)

    def _discounted_returns(self) -> tuple[int, torch.Tensor] | None:
        """Return the reward normaliser's discounted returns, behind the global index of their first environment.

        None if this rank does not learn, or rewards are not normalised.
        """
        learning, rank = self._context.layout.learning, self._group.rank
        learner = self._context.topology.learner
        if rank not in learning or learner.reward_normalizer is None:
            return None
        return learner.shape.env_indices(learning.index(rank)).start, learner.reward_normalizer.discounted

    def _pack(self) -> list[bytes]:
        """Return this rank's part of the state, in the order in which `RankStates.read` reads it.

        A rank has only what its role gives it: with env_workers one rank steps environments and another one acts in
        them. The header names the environments of each piece.
        """
        topology = self._context.topology
        header: dict[str, Any] = {
            "why": self._doubt,
            "envs": [0, 0],
            "episodes": [0, 0],
            "discounted": [0, 0],
        }
        shared: dict[str, bytes] = {}
        collector = topology.collector
        env: Any = topology.env
        memory = b""

        # 1. States of the environments that this rank steps.
        states: list[bytes] = []
        if env is not None:
            try:
                states = [_compressed(packed(each, shared)) for each in env.state()["envs"]]
            except EnvStateError as e:  # such as a process that was just lost
                header["why"] = str(e)
            header["envs"] = [env.names.indices.start, len(states)]

        # 2. Episodes under way, and the model's memory, in the environments in which this rank acts.
        episodes = [b""] * len(_EPISODE_ARRAYS)
        if _counts_episodes(collector):
            header["episodes"] = [collector.first_env, collector.env.num_envs]
            episodes = [
                getattr(collector, name).astype(kind).tobytes() for name, kind in _EPISODE_ARRAYS.items()
            ]
            if collector.memory is not None:
                memory = collector.memory.state.cpu().double().numpy().tobytes()

        # 3. Discounted returns of the environments from which this rank learns.
        discounted = b""
        if (found := self._discounted_returns()) is not None:
            header["discounted"] = [found[0], len(found[1])]
            discounted = found[1].double().cpu().numpy().tobytes()
        header["beside"] = list(shared)
        return [
            json.dumps(header).encode(),
            *episodes,
            discounted,
            memory,
            *states,
            *map(_compressed, shared.values()),
        ]


class RankStates(NamedTuple):
    """One rank's part of the state, as rank 0 reads it. Ranges are of global indices of environments."""

    why: str | None  # why this rank's states cannot be saved; None if they can
    envs: range  # environments that the rank steps: `states`
    episodes: range  # environments in which the rank acts: `episode_arrays` and `memory`
    discounted_envs: range  # environments from which the rank learns: `discounted`
    episode_arrays: list[np.ndarray]  # [E] each, by _EPISODE_ARRAYS
    discounted: np.ndarray  # [E] discounted returns; empty if rewards are not normalised
    memory: np.ndarray  # [E * S] state of a model with memory; empty without memory
    states: list[bytes]  # of each environment, packed
    shared: dict[str, bytes]  # large arrays that several states hold, stored once and named by a hash

    @classmethod
    def read(cls, parts: list[bytes]) -> "RankStates":
        """Return the value of `Environments._pack`, read."""
        header = json.loads(parts[0])
        envs, episodes, discounted_envs = (
            range(header[name][0], sum(header[name])) for name in ("envs", "episodes", "discounted")
        )
        episode_arrays: list[np.ndarray] = [
            np.frombuffer(part, kind) for part, kind in zip(parts[1:4], _EPISODE_ARRAYS.values(), strict=True)
        ]
        discounted, memory = map(np.frombuffer, parts[4:6])
        states, rest = parts[6 : 6 + len(envs)], parts[6 + len(envs) :]
        shared = dict(zip(header["beside"], rest, strict=True))
        return cls(
            header["why"], envs, episodes, discounted_envs, episode_arrays, discounted, memory, states, shared
        )


def _merged(by_rank: Sequence[RankStates], num_envs: int) -> dict[str, Any]:
    """Return the section "environments" of a checkpoint; {"missing": why} if a state cannot be saved."""
    if why := next((rank.why for rank in by_rank if rank.why), None):
        return {"missing": why}
    states: list[bytes | None] = [None] * num_envs
    episodes: dict[str, np.ndarray] = {
        name: np.zeros(num_envs, kind) for name, kind in _EPISODE_ARRAYS.items()
    }
    num_acted_in = 0  # environments in which a rank acts
    discounted = np.zeros(num_envs)
    # [N, S] for a state of S numbers; S follows from the size of a rank's part, and is 0 without memory.
    memory = np.zeros((num_envs, max(rank.memory.size // max(len(rank.episodes), 1) for rank in by_rank)))
    # Each rank's part goes to the rows of its environments.
    for rank in by_rank:
        for i, state in zip(rank.envs, rank.states, strict=True):
            states[i] = state
        for array, local in zip(episodes.values(), rank.episode_arrays, strict=True):
            array[rank.episodes.start : rank.episodes.stop] = local
        memory[rank.episodes.start : rank.episodes.stop] = rank.memory.reshape(
            len(rank.episodes), memory.shape[1]
        )
        num_acted_in += len(rank.episodes)
        discounted[rank.discounted_envs.start : rank.discounted_envs.stop] = rank.discounted

    # A topology of the user's own may have environments that none of its ranks names.
    known = [state for state in states if state is not None]
    if len(known) < num_envs or num_acted_in < num_envs:
        return {"missing": "some environments are in no rank's Topology.env and Topology.collector"}

    # The states of all environments, packed.
    merged: dict[str, Any] = _concatenated("states", "sizes", known)
    # Large arrays that states share, and their names: a task of 4 MB in 100 environments takes 4 MB.
    if shared := {name: blob for rank in by_rank for name, blob in rank.shared.items()}:
        merged |= {"beside": list(shared), **_concatenated("blobs", "blob_sizes", list(shared.values()))}
    # starts, returns and lengths of the episodes under way.
    merged |= {name: torch.from_numpy(array) for name, array in episodes.items()}
    # Discounted returns; None if rewards are not normalised.
    is_normalized = any(rank.discounted_envs for rank in by_rank)
    merged["discounted"] = torch.from_numpy(discounted) if is_normalized else None
    # The state of a model with memory.
    if memory.size:
        merged["memory"] = torch.from_numpy(memory)
    return merged


def _concatenated(name: str, sizes: str, parts: Sequence[bytes]) -> dict[str, torch.Tensor]:
    """Return parts as two tensors: one after another, and their sizes. Tensors load without unpickling."""
    content = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    return {name: content, sizes: torch.tensor(list(map(len, parts)))}


def _parts(state: Mapping[str, Any], name: str, sizes: str, places: Iterable[int]) -> list[bytes]:
    """Return some of the parts that `_concatenated` put together, by their places, decompressed."""
    bounds, content = [0, *state[sizes].cumsum(0).tolist()], state[name].numpy()
    return [_decompressed(content[bounds[i] : bounds[i + 1]].tobytes()) for i in places]


def _counts_episodes(collector: Any) -> TypeGuard[Collector]:
    """Return whether episodes go on from one rollout to the next: in a `Collector` or a `DeviceCollector`."""
    return hasattr(collector, "starts")


def _states(state: Mapping[str, Any], envs: range) -> list[Any]:
    """Return the states of the environments of these global indices, from a checkpoint."""
    names = state.get("beside", [])
    shared = (
        dict(zip(names, _parts(state, "blobs", "blob_sizes", range(len(names))), strict=True))
        if names
        else {}
    )
    return [unpacked(part, shared) for part in _parts(state, "states", "sizes", envs)]


def _compressed(state: bytes) -> bytes:
    return b"z" + zlib.compress(state, 1) if len(state) >= _COMPRESSED_FROM else b"-" + state


def _decompressed(state: bytes) -> bytes:
    return zlib.decompress(state[1:]) if state[:1] == b"z" else state[1:]


def gather_at_root(group: Group, local: Sequence[bytes]) -> list[list[bytes]]:
    """Return the parts of all ranks on rank 0, and [] on other ranks.

    The bytes are not counted as communication of the topology: a checkpoint is not part of its iteration.
    """
    first = len(group.records)
    parts, _ = gather_bytes(group, joined(local), at_root=True)
    group.records[first:] = [record._replace(num_bytes=None) for record in group.records[first:]]
    return [parted(part) for part in parts]


# -- The size of a checkpoint, for the warning about large states.


def what_is_large(state: Mapping[str, Any]) -> str:
    """Return the name and size of the largest part of the first environment's state; "" if states are missing."""
    if "missing" in state:
        return ""
    # Descend into the largest part until it has no named parts.
    path: list[str] = []
    value: Any = _states(state, range(1))[0]
    while (items := _parts_of(value)) and (name := max(items, key=lambda part: size_of(items[part]))):
        path, value = [*path, name], items[name]
    if path[:2] == ["saved", "task"]:
        path = [f"the task's {'.'.join(path[2:3])}"]
    elif path[:2] == ["saved", "around"]:
        path = [f"{'.'.join(path[3:4])} of a wrapper around the task"]
    shape = f"{value.dtype} {list(value.shape)}, " if isinstance(value, np.ndarray) else ""
    return f"{'.'.join(path)} ({shape}{size_of(value) / 1e6:.1f} MB)"


def _parts_of(value: Any) -> dict[str, Any]:
    """Return the named parts of a state: those of a dict, or the numbered dicts of a list (a chain of wrappers)."""
    if isinstance(value, dict):  # a key that begins with \0 marks a value of another type (envs/saving.py)
        return {} if any(key.startswith("\0") for key in value) else value
    is_chain = isinstance(value, list) and bool(value) and all(isinstance(part, dict) for part in value)
    return {str(i): part for i, part in enumerate(value)} if is_chain else {}


def size_of(value: Any) -> int:
    """Return the size of a part of a checkpoint in bytes, approximately."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 8


# -- Whether a resumed run equals the uninterrupted run to the bit, and the messages if it does not.


def is_between_episodes(config: Config, spec: EnvSpec) -> bool:
    """Return whether every iteration begins new episodes, so that no episode is under way between iterations."""
    return make_sampler(config, spec, config.env.num_envs).every_iteration


def why_left_out(config: Config) -> str | None:
    """Return why checkpoints of a run hold no states of environments; None if they do."""
    if find(config.dist.topology).own_pace:
        return (
            f"with distributed={config.dist.topology} actors go at their own pace, and their timing is chance"
        )
    return None if config.checkpoint.environments else "checkpoint.environments=false leaves them out"


def warning(config: Config, spec: EnvSpec) -> str | None:
    """Return the warning at the start of a run that could not be resumed exactly; None if it could."""
    if config.resume_state == "approximate" or is_between_episodes(config, spec):
        return None
    why = why_left_out(config) or why_inexact(config.env)
    if why is None:
        return None
    return (
        f"checkpoints will not hold the states of environments, because {why}: this run can be resumed with new "
        "episodes only, which resume_state=approximate allows"
    )


def missing(config: Config, spec: EnvSpec, state: dict[str, Any]) -> str | None:
    """Return why a run cannot go on exactly from a checkpoint's state; None if it can."""
    if is_between_episodes(config, spec):
        return None
    # States that the checkpoint holds are used, unless the settings of the resumed run leave them out and allow
    # approximate results.
    may_leave_out = find(config.dist.topology).own_pace or config.resume_state == "approximate"
    if may_leave_out and (why := why_left_out(config)):
        return why
    held = state.get("environments") or {"missing": "it is of a run that collected whole episodes"}
    if "missing" in held:
        return str(held["missing"])
    # A batch of environments saves other values than single environments do.
    before, now = _kind(how_saved(held)), _current_kind(config)
    if before != now:
        # Versions of before stepped robots of MuJoCo one by one under env.backend=auto.
        is_auto = before == _kind("") and now == _KINDS["batched"] and config.env.backend == "auto"
        remedy = "use env.backend=sync" if is_auto else "keep env.backend and dist.topology"
        return f"{config.env.id} was stepped {before} and is stepped {now} now, each with states of its own: {remedy}"
    return None


def how_saved(state: Mapping[str, Any]) -> str:
    """Return the name of the method by which the first environment was saved (envs/saving.py)."""
    return str(_states(state, range(1))[0].get("how"))


# How environments are stepped, by the method that saved them; all other methods save them "one by one".
_KINDS = {"batched": "as one batch", "games": "by ale-py's batch", "device": "on a device"}


def _kind(how: str) -> str:
    return _KINDS.get(how, "one by one")


def _current_kind(config: Config) -> str:
    if config.env.backend == "device":
        return _KINDS["device"]
    backend = find(config.dist.topology).env_backend or config.env.backend
    if config.env.is_ale and backend in ("auto", "gym_vector"):
        return _KINDS["games"]
    is_batch = backend in ("auto", "batched") and why_not_batched(config.env) is None
    return _kind("batched" if is_batch else "")
