"""`ddppo/Circuit-v0`: here one rewrite becomes one transition."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.circuit import cost as cost_named
from ddppo.domains.circuits.task import settings
from ddppo.domains.circuits.task.board import (
    UNCHANGED,
    WRONG,
    Choice,
    CircuitBoard,
    LengthCap,
    Start,
    rewriter,
    rules_digest,
    sized,
    starts,
)
from ddppo.domains.circuits.task.buffer import GraphBuffer
from ddppo.domains.circuits.task.lineage import ORIGINAL, Found, OfStart, PublishedCircuits, read_all, written
from ddppo.domains.circuits.task.settings import Counts, observation_space, of_text, packed, text, unpacked
from ddppo.errors import ConfigError, EnvStateError

Obs = dict[str, np.ndarray]


class CircuitEnv(gym.Env):
    """Rewrite a quantum circuit, one (node, rule) pair a step; the reward is cost before - cost after.

    An action is the index of a row of the observation's `pairs` (ddppo.domains.circuits.task.settings). terminated:
    the cost exceeds the least of the episode by more than the slack (the start costs at most what the original does,
    so that is never left further behind), nothing was changed where that stops, nothing is left to choose, or the
    action was no rewrite, worth -1. truncated: the length cap. Episodes start round-robin over the circuits, each from
    its own buffer. Buffers are this environment's own; by `publish` and `receive` they come to hold what others found.
    """

    journal = "ddppo.domains.circuits.task.journal:CircuitJournal"
    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)

    def __init__(
        self,
        circuit: str | Sequence[str],
        cost: str = "gate_count",
        rules: str | None = None,
        sizes: Mapping[str, Any] | None = None,
        episode: Mapping[str, Any] | None = None,
        buffer: Mapping[str, Any] | None = None,
    ) -> None:
        self._episode = settings.of(settings.EpisodeSettings, "episode", episode)
        self._buffer = settings.of(settings.BufferSettings, "buffer", buffer)
        given_sizes = settings.of(settings.SizeSettings, "sizes", sizes)
        self._cost_of = cost_named(cost)
        self.starts = starts(circuit, self._cost_of)
        self.rewriter = rewriter(rules)
        self._sizes = max_nodes, max_pairs = sized(given_sizes, self.starts, self.rewriter, self._episode)
        self._board = CircuitBoard(self.rewriter, max_nodes, max_pairs, self._episode)
        self._check_choices()
        self.observation_space = observation_space(
            max_nodes, max_pairs, self.rewriter.num_rules, has_mask=self._episode.mask
        )
        self.action_space = Discrete(max_pairs)
        self._task = _fingerprint(
            self.starts, rules_digest(self.rewriter), cost, self._sizes, self._episode, self._buffer
        )
        self._buffers: list[GraphBuffer] = []  # one of each start, from the first reset on
        self._counts = Counts(self.rewriter.num_rules, self._board.offered, self._board.applied)
        self._at, self._next, self._step = 0, 0, ORIGINAL
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start the next circuit's next episode. A seed begins anew: with the originals alone, at any of them."""
        super().reset(seed=seed)
        if seed is not None or not self._buffers:
            self._begin()
        else:
            self._buffers[self._at].lineage.release(self._step)
        self._at, self._next = self._next, (self._next + 1) % len(self.starts)
        buffer = self._buffers[self._at]
        circuit, self._cost, self._step = buffer.draw(self.np_random)
        buffer.lineage.hold(self._step)
        self._least, self._num_steps, self._num_rewrites = self._cost, 0, 0
        self._num_too_large = self._num_without_room = 0
        self._is_over = False
        self._board.show(circuit)
        self._note_pairs()
        return self._board.observation(), {"circuit": self.starts[self._at].name, "cost": self._cost}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before the next step()")
        self._num_steps += 1
        self._counts.totals["steps"] += 1
        choice = self._board.choose(int(action))
        if choice.became == WRONG:
            return self._answer(-1.0, "not_a_choice")
        if choice.became == UNCHANGED:
            return self._answer(0.0, "nothing_changed" if self._episode.nop_stop else None)
        saved = self._note_rewrite(choice)
        end = None if self._board.num_pairs else "no_choice"
        if self._cost > self._least + self._episode.slack:
            end = "too_costly"
        answer = self._answer(saved, end)
        if not self._is_over:
            self._step = self._buffers[self._at].add(self.circuit, self._cost, self._step)
        return answer

    def publish(self) -> bytes:
        """Return what the others should know since the last call (ddppo.domains.circuits.task.lineage)."""
        if not self._buffers:
            return b""
        of_starts = tuple(
            OfStart(buffer.told(), cap.own, (buffer.num_circuits, buffer.num_levels, buffer.nbytes))
            for buffer, cap in zip(self._buffers, self._caps, strict=True)
        )
        counts = self._counts.state()
        self._counts.clear()
        return written(PublishedCircuits(of_starts, counts))

    def receive(self, news: Sequence[bytes]) -> None:
        """Learn what all environments of a run published, in an order that all share. Raises EnvStateError."""
        if not self._buffers:
            raise EnvStateError(
                "a circuit environment can keep no news before its first reset: call reset() first"
            )
        every = read_all(tuple(news))
        for at, (buffer, cap) in enumerate(zip(self._buffers, self._caps, strict=True)):
            cap.hear(each.of_starts[at].cap for each in every)
            if self._buffer.share:
                for told in (told for each in every for told in each.of_starts[at].circuits):
                    buffer.take(told)

    @property
    def circuit(self) -> Circuit:
        """What the episode has come to."""
        return self._board.circuit

    def best(self) -> list[Found]:
        """Return of every starting circuit the best that this environment has met or heard of, with its rewrites."""
        return [buffer.best() for buffer in self._buffers]

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, buffers too, in plain values. Raises EnvStateError before a reset."""
        if not self._buffers:
            raise EnvStateError(
                "a circuit environment has no state before its first reset: call reset() first"
            )
        return {
            "task": self._task,
            "generator": self.np_random.bit_generator.state,
            "next": self._next,
            "caps": [cap.state() for cap in self._caps],
            "buffers": [buffer.state() for buffer in self._buffers],
            "counts": self._counts.state(),
            "episode": {
                "at": self._at,
                "circuit": text(packed(self.circuit)),
                "cost": self._cost,
                "step": self._step,
                "least": self._least,
                "fresh": self._board.fresh,
                "counts": [self._num_steps, self._num_rewrites, self._num_too_large, self._num_without_room],
                "is_over": self._is_over,
            },
        }

    def restore(self, state: dict[str, Any]) -> tuple[Obs, dict[str, Any]]:
        """Go on exactly where an environment of this task was when it gave `state`; return what it had observed last.

        Raises EnvStateError for the state of another task.
        """
        if state["task"] != self._task:
            raise EnvStateError(
                "this state is of other circuits, rules or settings than this environment's: make it with the "
                "arguments that it had"
            )
        self._begin()
        self.np_random.bit_generator.state = state["generator"]
        self._next = state["next"]
        for cap, buffer, cap_state, buffer_state in zip(
            self._caps, self._buffers, state["caps"], state["buffers"], strict=True
        ):
            cap.restore(cap_state)
            buffer.restore(buffer_state)
        self._counts.add(state["counts"])
        episode = state["episode"]
        self._at = episode["at"]
        circuit = unpacked(self.starts[self._at].circuit.num_qubits, of_text(episode["circuit"]))
        self._cost, self._step, self._least = episode["cost"], episode["step"], episode["least"]
        self._is_over = episode["is_over"]
        self._board.show(circuit, episode["fresh"])
        self._num_steps, self._num_rewrites, self._num_too_large, self._num_without_room = episode["counts"]
        return self._board.observation(), {"circuit": self.starts[self._at].name, "cost": self._cost}

    def _begin(self) -> None:
        max_bytes = self._buffer.megabytes * 1e6 / len(self.starts)
        self._buffers = [GraphBuffer(start, self._buffer, max_bytes) for start in self.starts]
        self._caps = [LengthCap(self._episode) for _ in self.starts]
        self._counts.clear()
        self._next = int(self.np_random.integers(len(self.starts)))

    def _check_choices(self) -> None:
        """Raise ConfigError for a circuit that leaves nothing to choose."""
        for start in self.starts:
            self._board.show(start.circuit)
            if not self._board.num_pairs:
                raise ConfigError(
                    f"episode.nop=never: no rule matches {start.name}, so there is nothing to choose: leave it out, or "
                    "give larger rules"
                )

    def _note_rewrite(self, choice: Choice) -> float:
        """Take notice of a new circuit on the board; return what it saved."""
        buffer, before = self._buffers[self._at], self._cost
        self._cost = float(self._cost_of(self.circuit))
        self._counts.note_rewrite(choice.rule, before - self._cost)
        step = buffer.lineage.add(self._step, choice.node, choice.rule)
        buffer.lineage.release(self._step)
        self._step = step
        self._num_rewrites += 1
        self._least = min(self._least, self._cost)
        buffer.note(self.circuit, self._cost, step)
        self._note_pairs()
        return before - self._cost

    def _note_pairs(self) -> None:
        self._num_too_large += self._board.num_too_large
        self._num_without_room += self._board.num_without_room

    def _answer(self, reward: float, end: str | None) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Return what step does; `end` is why the episode is terminated, one of ENDS."""
        terminated = end is not None
        truncated = not terminated and self._num_steps >= self._caps[self._at].cap
        self._is_over = terminated or truncated
        info = {}
        if self._is_over:
            self._counts.totals[end or "cut"] += 1
            self._caps[self._at].note(self._num_steps)
            info = self._summary()
        return self._board.observation(), float(reward), terminated, truncated, info

    def _summary(self) -> dict[str, Any]:
        """Return what is told at an episode's end; best_ is of all episodes of this circuit here."""
        buffer = self._buffers[self._at]
        return {
            "circuit": buffer.start.name,
            "cost": self._cost,
            "episode_least_cost": self._least,
            "episode_rewrites": self._num_rewrites,
            "max_steps": self._caps[self._at].cap,
            **buffer.summary(),
            "pairs_too_large": self._num_too_large,
            "pairs_without_room": self._num_without_room,
        }


def _fingerprint(starts: tuple[Start, ...], *others: object) -> str:
    """Return text that is the same for environments that can restore each other's states."""
    said = hashlib.blake2b(digest_size=16)
    for start in starts:
        said.update(f"{start.name}\n".encode() + start.circuit.digest())
    # EpisodeSettings and BufferSettings by their names in the first checkpoints, which are resumed by this text.
    said.update("\n".join(str(other).replace("Settings(", "(", 1) for other in others).encode())
    return said.hexdigest()
