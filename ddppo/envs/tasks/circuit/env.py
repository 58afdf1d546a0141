"""`ddppo/Circuit-v0`: here one rewrite becomes one transition."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete

from ddppo.circuits import costs
from ddppo.circuits.costs import cx_count
from ddppo.circuits.rewriting import digest
from ddppo.envs.tasks.circuit import settings
from ddppo.envs.tasks.circuit.buffer import GraphBuffer, circuit_of_text, packed_text
from ddppo.envs.tasks.circuit.found import Found
from ddppo.envs.tasks.circuit.lengths import LengthCap
from ddppo.envs.tasks.circuit.lineage import ORIGINAL
from ddppo.envs.tasks.circuit.observation import observation_space, observed
from ddppo.envs.tasks.circuit.pairs import PairLister, sized
from ddppo.envs.tasks.circuit.starts import Start, rewriter, rules_digest, starts
from ddppo.errors import EnvStateError

NONE_FRESH = np.empty(0, np.int32)
Obs = dict[str, np.ndarray]


class CircuitEnv(gym.Env):
    """Rewrite a quantum circuit, one (node, rule) pair a step; the reward is cost before - cost after.

    An action is the index of a row of the observation's `pairs` (ddppo.envs.tasks.circuit.observation). terminated:
    the cost exceeds the least of the episode by more than the slack (the start costs at most what the original does,
    so that is never left further behind), nothing was changed where that stops, nothing is left to choose, or the
    action was no row, worth -1. truncated: the length cap. Episodes start round-robin over the circuits, each from
    its own buffer; this environment's buffers are no other's.
    """

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
        self._episode = settings.of(settings.Episode, "episode", episode)
        self._buffer = settings.of(settings.Buffer, "buffer", buffer)
        given_sizes = settings.of(settings.Sizes, "sizes", sizes)
        self._cost_of = costs.cost(cost)
        self.starts = starts(circuit, self._cost_of)
        self.rewriter = rewriter(rules)
        self._sizes = max_nodes, max_pairs = sized(given_sizes, self.starts, self.rewriter, self._episode)
        self._list_pairs = PairLister(
            self.rewriter, max_nodes, max_pairs, nop_at_nodes=self._episode.nop == "nodes"
        )
        self.observation_space = observation_space(max_nodes, max_pairs, self.rewriter.num_rules)
        self.action_space = Discrete(max_pairs)
        self._task = _fingerprint(
            self.starts, rules_digest(self.rewriter), cost, self._sizes, self._episode, self._buffer
        )
        self._buffers: list[GraphBuffer] = []  # one of each start, from the first reset on
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
        self.circuit, self._cost, self._step = buffer.draw(self.np_random)
        buffer.lineage.hold(self._step)
        self._least, self._num_steps, self._num_rewrites = self._cost, 0, 0
        self._num_too_large = self._num_without_room = 0
        self._is_over, self._fresh = False, NONE_FRESH
        self._list()
        return self._observe(), {"circuit": self.starts[self._at].name, "cost": self._cost}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before the next step()")
        self._num_steps += 1
        if not 0 <= action < len(self._pairs):
            self._fresh = NONE_FRESH
            return self._answer(-1.0, terminated=True)
        node, rule = self._pairs[action].tolist()
        if rule == self.rewriter.nop:
            self._fresh = np.array([node], np.int32) if node >= 0 else NONE_FRESH
            return self._answer(0.0, terminated=self._episode.nop_stop)
        before = self._cost
        self._rewrite(node, rule)
        over = self._cost > self._least + self._episode.slack or not len(self._pairs)
        answer = self._answer(before - self._cost, terminated=over)
        if not self._is_over:
            self._buffers[self._at].add(self.circuit, self._cost, self._step)
        return answer

    def best(self) -> list[Found]:
        """Return of every starting circuit the best that this environment has met, with its rewrites."""
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
            "episode": {
                "at": self._at,
                "circuit": packed_text(self.circuit),
                "cost": self._cost,
                "step": self._step,
                "least": self._least,
                "fresh": self._fresh.tolist(),
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
        episode = state["episode"]
        self._at = episode["at"]
        self.circuit = circuit_of_text(self.starts[self._at].circuit.num_qubits, episode["circuit"])
        self._cost, self._step, self._least = episode["cost"], episode["step"], episode["least"]
        self._fresh, self._is_over = np.array(episode["fresh"], np.int32), episode["is_over"]
        self._list()
        self._num_steps, self._num_rewrites, self._num_too_large, self._num_without_room = episode["counts"]
        return self._observe(), {"circuit": self.starts[self._at].name, "cost": self._cost}

    def _begin(self) -> None:
        max_bytes = self._buffer.megabytes * 1e6 / len(self.starts)
        self._buffers = [GraphBuffer(start, self._buffer, max_bytes) for start in self.starts]
        self._caps = [LengthCap(self._episode) for _ in self.starts]
        self._next = int(self.np_random.integers(len(self.starts)))

    def _rewrite(self, node: int, rule: int) -> None:
        buffer = self._buffers[self._at]
        self.circuit, self._fresh = self.rewriter.apply(self.circuit, node, rule)
        self._cost = float(self._cost_of(self.circuit))
        step = buffer.lineage.add(self._step, node, rule)
        buffer.lineage.release(self._step)
        self._step = step
        self._num_rewrites += 1
        self._least = min(self._least, self._cost)
        buffer.note(self.circuit, self._cost, step)
        self._list()

    def _list(self) -> None:
        self._pairs, num_too_large, num_without_room = self._list_pairs(self.circuit)
        self._num_too_large += num_too_large
        self._num_without_room += num_without_room

    def _observe(self) -> Obs:
        return observed(self.circuit, self._pairs, self._fresh, *self._sizes, self.rewriter.num_rules)

    def _answer(self, reward: float, *, terminated: bool) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        truncated = not terminated and self._num_steps >= self._caps[self._at].cap
        self._is_over = terminated or truncated
        info = {}
        if self._is_over:
            self._caps[self._at].note(self._num_steps)
            info = self._summary()
        return self._observe(), float(reward), terminated, truncated, info

    def _summary(self) -> dict[str, Any]:
        """Return what is told at an episode's end; best_ is of all episodes of this circuit here."""
        buffer = self._buffers[self._at]
        best = buffer.best_circuit
        return {
            "circuit": buffer.start.name,
            "cost": self._cost,
            "episode_least_cost": self._least,
            "episode_rewrites": self._num_rewrites,
            "max_steps": self._caps[self._at].cap,
            "original_cost": buffer.start.cost,
            "best_cost": buffer.best_cost,
            "best_gates": len(best),
            "best_cx": int(cx_count(best)),
            "best_depth": best.depth,
            "best_rewrites": buffer.num_best_rewrites,
            "buffer_circuits": buffer.num_circuits,
            "buffer_levels": buffer.num_levels,
            "buffer_bytes": buffer.nbytes,
            "pairs_too_large": self._num_too_large,
            "pairs_without_room": self._num_without_room,
        }


def _fingerprint(starts: tuple[Start, ...], *others: object) -> str:
    """Return text that differs between environments whose states do not fit one another."""
    said = hashlib.blake2b(digest_size=16)
    for start in starts:
        said.update(f"{start.name}\n".encode() + digest(start.circuit))
    said.update("\n".join(map(str, others)).encode())
    return said.hexdigest()
