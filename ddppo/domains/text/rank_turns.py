"""`Turns` over ranks: a model on rank 0 acts in the environments of the other ranks (distributed=env_workers).

    rank 0                                   every other rank
    RankTurns.begin, act: note a call        TurnsServer.serve: wait for a message
    RankTurns.ready: broadcast all calls     run the calls of its own environments
                     gather the answers      send the answers that are ready

A round takes one broadcast and one gather, each with its size before it. It waits for the first answer of every rank
that has busy environments, and env.batch_wait_ms longer on that rank. Between rollouts, and while rank 0 evaluates, the
same messages travel; a message with a word instead of calls ends them.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ddppo.collectives.group import Group, gather_bytes
from ddppo.domains.text.turns import READ, Turn, Turns
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError, EnvRaised
from ddppo.spaces import EnvSpec

_OVER = "over"  # all episodes are over
_RELEASED = "released"  # the evaluation is over, or has failed


class RankTurns:
    """The environments of all other ranks, as rank 0 sees them."""

    num_restarts = num_lost_episodes = 0  # the other ranks count theirs

    def __init__(self, group: Group, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._group = group
        self._calls: list[list[Any]] = []
        self._busy: set[int] = set()  # environments that have not answered yet

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        self._note(i, ["begin", i, seed, dict(options)])

    def act(self, i: int, action: Any) -> None:
        self._note(i, ["act", i, action])

    def ready(self, wait_s: float | None) -> list[Turn]:
        if not self._busy:
            self._send(_OVER)
            return []
        self._send([self._calls, wait_s])
        self._calls = []
        parts, _ = gather_bytes(self._group, b"", at_root=True)
        turns: list[Turn] = []
        for part in parts:
            answer = json.loads(part) if part else []
            if isinstance(answer, str):  # a fault, in words
                raise EnvError(answer)
            turns += [Turn(*turn) for turn in answer]
        self._busy -= {turn.env for turn in turns}
        return turns

    def release(self) -> None:
        """End the evaluation for the ranks that serve it; episodes under way are dropped."""
        self._calls, self._busy = [], set()
        self._send(_RELEASED)

    def close(self) -> None:
        """Do nothing: the environments belong to the other ranks."""

    def _note(self, i: int, call: list[Any]) -> None:
        assert i not in self._busy, f"{self.names(i)} has not answered yet"
        self._busy.add(i)
        self._calls.append(call)

    def _send(self, content: Any) -> None:
        broadcast_json(self._group, content)


class TurnsServer:
    """The environments of a rank that steps for rank 0."""

    def __init__(self, turns: Turns, group: Group, envs: range) -> None:
        self.env = turns
        self._group = group
        self._envs = envs  # their numbers on rank 0

    def serve(self) -> None:
        """Step by the calls of rank 0, until all episodes are over. Raises EnvError."""
        while isinstance(content := broadcast_json(self._group, None), list):
            self._answer(json.dumps(self._ready(content), default=repr))

    def assist(self) -> None:
        """Step for an evaluation of rank 0 until it is over. A fault of an environment is raised once it is."""
        fault: EnvError | None = None
        while (content := broadcast_json(self._group, None)) != _RELEASED:
            if content == _OVER:
                continue
            try:
                answer: Any = self._ready(content)
            except EnvError as e:  # rank 0 learns of it by the answer, and releases all ranks
                fault, answer = e, e.said if isinstance(e, EnvRaised) else str(e)
            self._answer(json.dumps(answer, default=repr))
        if fault is not None:
            raise fault

    def _ready(self, content: list[Any]) -> list[list[Any]]:
        """Start the calls of this rank's environments; return the answers that are ready."""
        calls, wait_s = content
        first, turns = self._envs.start, self.env
        for name, i, *arguments in calls:
            if i in self._envs:
                start = turns.begin if name == "begin" else turns.act
                start(i - first, *arguments)
        return [
            [
                *(first + turn.env, turn.obs, turn.reward, turn.terminated, turn.truncated, turn.failed),
                {name: _plain(turn.info[name]) for name in READ if name in turn.info},
            ]
            for turn in turns.ready(wait_s)
        ]

    def _answer(self, content: str) -> None:
        gather_bytes(self._group, content.encode(), at_root=True)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def broadcast_json(group: Group, content: Any) -> Any:
    """Return rank 0's content, plain values, on every rank; other ranks give None."""
    own = b"" if content is None else json.dumps(content).encode()
    (size,) = group.broadcast_(torch.tensor([len(own)])).tolist()
    message = torch.zeros(size, dtype=torch.uint8)
    if own:
        message.numpy()[:] = memoryview(own)
    return json.loads(group.broadcast_(message).numpy().tobytes())
