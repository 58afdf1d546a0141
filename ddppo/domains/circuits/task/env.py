"""`ddppo/Circuit-v0`, the environment: one rewrite is one step. Read `step` and `reset` first."""

import hashlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import cost as cost_named
from ddppo.domains.circuits.quantum.drawing import as_pixels, as_text
from ddppo.domains.circuits.task import settings
from ddppo.domains.circuits.task.board import (
    PAIRS_PER_NODE,
    UNCHANGED,
    WRONG,
    Choice,
    CircuitBoard,
    LengthCap,
    Start,
    num_weights,
    rewriter,
    rules_digest,
    sized,
    starts,
)
from ddppo.domains.circuits.task.buffer import GraphBuffer
from ddppo.domains.circuits.task.lineage import (
    ORIGINAL,
    EnvMessage,
    Found,
    StartMessage,
    decode_messages,
    encode_message,
)
from ddppo.domains.circuits.task.settings import (
    Counts,
    feature_space,
    graph_space,
    of_text,
    packed,
    text,
    unpacked,
)
from ddppo.errors import ConfigError, EnvStateError

Obs = dict[str, np.ndarray]


class CircuitEnv(gym.Env):
    """Rewrites a quantum circuit, one (node, rule) pair a step. The reward is cost before - cost after.

    An action is the index of a row of the observation's `pairs` (see task.settings.observation_space).

    An episode terminates if
    - the cost exceeds the least cost of the episode by more than the slack,
    - the action changes nothing (with episode.nop_stop),
    - no pair is left to choose, or
    - the action is no offered rewrite, with a reward of -1.
    It is truncated at the length cap.

    Episodes start from each original circuit in turn, at a circuit drawn from the buffer of that original. A buffer
    holds circuits that cost at most as much as the original. Environments exchange circuits by `publish` and
    `receive`.
    """

    # Rank 0 makes one of this class: it reads the messages of all environments, and keeps the best circuits.
    journal = "ddppo.domains.circuits.task.journal:CircuitJournal"
    metadata = {"render_modes": ["human", "ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 (as gymnasium has it)

    def __init__(
        self,
        circuit: str | Sequence[str],
        cost: str = "gate_count",
        rules: str | None = None,
        coupling: str | Sequence[str] | None = None,
        sizes: Mapping[str, Any] | None = None,
        episode: Mapping[str, Any] | None = None,
        buffer: Mapping[str, Any] | None = None,
        observe: str = "graph",
        patience: int = 0,
        start: str = "given",
        render_mode: str | None = None,
    ) -> None:
        # observe: the form of observations, settings.OBSERVE. patience: for the journal, which ends a run.
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode={render_mode}: one of {', '.join(self.metadata['render_modes'])}")
        self.render_mode = render_mode
        # 1. Settings, circuits and rules. Each raises ConfigError with its own remedy.
        self._episode = settings.of(settings.EpisodeSettings, "episode", episode)
        self._buffer = settings.of(settings.BufferSettings, "buffer", buffer)
        given_sizes = settings.of(settings.SizeSettings, "sizes", sizes)
        if observe not in settings.OBSERVE:
            raise ConfigError(f"observe={observe}: has to be one of {', '.join(settings.OBSERVE)}")
        self._cost_of = cost_named(cost)
        self.starts = starts(circuit, self._cost_of, coupling, start)
        self.rewriter = rewriter(rules, keeps_pairs=coupling is not None)
        # 2. The board, and spaces of its sizes.
        self._sizes = max_nodes, max_pairs = sized(
            given_sizes, self.starts, self.rewriter, self._episode, PAIRS_PER_NODE[observe]
        )
        self._board = CircuitBoard(self.rewriter, max_nodes, max_pairs, self._episode, observe)
        self._observes_features = observe == "features"
        self._check_choices()
        self.observation_space = (
            feature_space(max_pairs, num_weights(self.rewriter))
            if self._observes_features
            else graph_space(max_nodes, max_pairs, self.rewriter.num_rules, has_mask=self._episode.mask)
        )
        self.action_space = Discrete(max_pairs)
        # 3. The state: buffers and caps of each original, counters, and the current episode.
        self._task = _fingerprint(
            self.starts, rules_digest(self.rewriter), cost, self._sizes, self._episode, self._buffer
        )
        self._buffers: list[GraphBuffer] = []  # one for each original, from the first reset on
        self._counts = Counts(self.rewriter.num_rules, self._board.offered, self._board.applied)
        # Index of the current original and of the next one; the lineage's step that made the current circuit.
        self._at, self._next, self._step = 0, 0, ORIGINAL
        self._is_over = True
        self._search: list[float] | None = (
            None  # [steps left, least cost so far] of an episode that is a search
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start an episode from the next original. With a seed: empty the buffers, and start at a random original.

        options: {"search": true} makes the episode a search, as evaluations do. It begins from the original with empty
        buffers and lasts `search_steps`; where an episode would end, it goes on from a circuit of its buffer. Its
        rewards add up to the cost that the best circuit saves.
        """
        super().reset(seed=seed)
        is_search = bool((options or {}).get("search"))
        if seed is not None or is_search or not self._buffers:
            self._begin()
        else:
            self._buffers[self._at].lineage.release(self._step)
        self._at, self._next = self._next, (self._next + 1) % len(self.starts)
        start = self.starts[self._at]
        self._search = [search_steps(start), start.cost] if is_search else None
        self._start()
        self._show()
        return self._observation(), {"circuit": start.name, "cost": self._cost}

    def _start(self) -> None:
        """Draw a circuit from the buffer and show it."""
        # The lineage keeps its history as long as the episode holds its step.
        buffer = self._buffers[self._at]
        circuit, self._cost, self._step = buffer.draw(self.np_random)
        buffer.lineage.hold(self._step)
        self._least, self._num_steps, self._num_rewrites = self._cost, 0, 0
        self._num_too_large = self._num_without_room = 0
        self._is_over = False
        self._board.show(circuit)
        self._note_pairs()

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            raise gym.error.ResetNeeded("the episode is over: call reset() before the next step()")
        answer = self._choose(action)
        if self._search is not None:
            answer = self._go_on_searching(*answer)
        self._show()
        return answer

    def _choose(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        self._counts.totals["steps"] += 1
        choice = self._board.choose(int(action))
        # 1. The action changed nothing.
        if choice.outcome == WRONG:
            return self._answer(-1.0, "not_a_choice")
        if choice.outcome == UNCHANGED:
            return self._answer(0.0, "nothing_changed" if self._episode.nop_stop else None)
        # 2. The circuit is another one: record it, and see whether the episode ends here.
        saved = self._note_rewrite(choice)
        end = None if self._board.num_pairs else "no_choice"
        if self._cost > self._least + self._episode.slack:
            end = "too_costly"
        answer = self._answer(saved, end)
        # 3. Later episodes may start from it, but not from where an episode ended.
        if not self._is_over:
            self._step = self._buffers[self._at].add(self.circuit, self._cost, self._step)
        return answer

    def _go_on_searching(
        self, obs: Obs, _: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Return the result of a step of a search: an end of an episode is followed by the next start."""
        assert self._search is not None
        buffer, (left, before) = self._buffers[self._at], self._search
        self._search = [left - 1, buffer.best_cost]
        is_last = left == 1
        if (terminated or truncated) and not is_last:
            buffer.lineage.release(self._step)
            self._start()
            obs = self._observation()
        self._is_over = is_last
        return obs, before - buffer.best_cost, False, is_last, self._summary() if is_last else {}

    def publish(self) -> bytes:
        """Return the message to all environments: circuits found since the last call, caps and counts (lineage.py)."""
        if not self._buffers:
            return b""
        messages = tuple(
            StartMessage(buffer.publish(), cap.own, (buffer.num_circuits, buffer.num_levels, buffer.nbytes))
            for buffer, cap in zip(self._buffers, self._caps, strict=True)
        )
        counts = self._counts.state()
        self._counts.clear()
        return encode_message(EnvMessage(messages, counts))

    def receive(self, messages: Sequence[bytes]) -> None:
        """Receive the messages of all environments of a run, in the same order everywhere. Raises EnvStateError."""
        if not self._buffers:
            raise EnvStateError(
                "a circuit environment can receive no messages before its first reset: call reset() first"
            )
        every = decode_messages(tuple(messages))
        for at, (buffer, cap) in enumerate(zip(self._buffers, self._caps, strict=True)):
            cap.receive(each.starts[at].cap for each in every)
            if self._buffer.share:
                for shared in (shared for each in every for shared in each.starts[at].circuits):
                    buffer.receive(shared)

    @property
    def pairs(self) -> np.ndarray:
        """Node and rule of each choice `[max_pairs, 2]`, padded with -1; valid until the next step."""
        return self._board.pairs

    @property
    def circuit(self) -> Circuit:
        """The current circuit."""
        return self._board.circuit

    def best(self) -> list[Found]:
        """Return the best circuit known here for each original, found or received, with its rewrites."""
        return [buffer.best() for buffer in self._buffers]

    def render(self) -> str | np.ndarray | None:
        """Return the current circuit as text (ansi) or pixels [H, W, 3] uint8 (rgb_array), with fresh gates marked."""
        if self.render_mode == "ansi":
            return f"{self._heading()}\n\n{as_text(self.circuit)}\n"
        if self.render_mode == "rgb_array":
            marked = self._board.fresh if self._num_rewrites else ()
            return as_pixels(self.circuit, title=self._heading(), marked=marked)
        return None

    def _show(self) -> None:
        """Draw the circuit on the terminal, for render_mode=human, and wait until the next picture is due."""
        if self.render_mode == "human":
            width, height = shutil.get_terminal_size((100, 40))
            lines = as_text(self.circuit, width=width).splitlines()[: height - 3]
            clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
            print(f"{clear}{self._heading()}\n", *lines, sep="\n", flush=True)
            time.sleep(1 / self.metadata["render_fps"])

    def _heading(self) -> str:
        return (
            f"{self.starts[self._at].name}, rewrite {self._num_rewrites}: cost {self._cost:g}, "
            f"{len(self.circuit)} gates; least cost {self._least:g}"
        )

    def state(self) -> dict[str, Any]:
        """Return the complete state in plain values, buffers included. Raises EnvStateError before a reset."""
        if not self._buffers:
            raise EnvStateError(
                "a circuit environment has no state before its first reset: call reset() first"
            )
        # "episode" describes the current episode; all other entries outlive it.
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
                **({"ages": self._board.ages} if self._observes_features else {}),
                "counts": [self._num_steps, self._num_rewrites, self._num_too_large, self._num_without_room],
                "is_over": self._is_over,
                **({} if self._search is None else {"search": self._search}),
            },
        }

    def restore(self, state: dict[str, Any]) -> tuple[Obs, dict[str, Any]]:
        """Continue exactly from a result of `state`; return the observation and info of that moment.

        Raises EnvStateError for the state of another task.
        """
        if state["task"] != self._task:
            raise EnvStateError(
                "this state belongs to an environment of other circuits, rules or settings: make this one with the "
                "same arguments"
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
        # The board computes the observation again from the circuit and its fresh nodes.
        episode = state["episode"]
        self._at = episode["at"]
        circuit = unpacked(self.starts[self._at].circuit.num_qubits, of_text(episode["circuit"]))
        self._cost, self._step, self._least = episode["cost"], episode["step"], episode["least"]
        self._is_over, self._search = episode["is_over"], episode.get("search")
        self._board.show(circuit, episode["fresh"], episode.get("ages"))
        self._num_steps, self._num_rewrites, self._num_too_large, self._num_without_room = episode["counts"]
        return self._observation(), {"circuit": self.starts[self._at].name, "cost": self._cost}

    def _observation(self) -> Obs:
        if self._observes_features:
            above = (self._cost - self._least) / max(self._episode.slack, 1.0)
            self._board.status[:] = (
                above, self._num_steps / self._episode.max_steps, self._board.num_lowering() / 8,
            )  # fmt: skip
        return self._board.observation()

    def _begin(self) -> None:
        # The originals share the memory evenly. The first original is random, so that environments differ.
        max_bytes = self._buffer.megabytes * 1e6 / len(self.starts)
        self._buffers = [GraphBuffer(start, self._buffer, max_bytes) for start in self.starts]
        self._caps = [LengthCap(self._episode) for _ in self.starts]
        self._counts.clear()
        self._next = int(self.np_random.integers(len(self.starts)))

    def _check_choices(self) -> None:
        """Raise ConfigError if an original circuit offers no pair to choose."""
        for start in self.starts:
            self._board.show(start.circuit)
            if not self._board.num_pairs:
                raise ConfigError(
                    f"episode.nop=never: no rule matches {start.name}, so there is nothing to choose: leave it out, or "
                    "give larger rules"
                )

    def _note_rewrite(self, choice: Choice) -> float:
        """Record the new circuit on the board; return the cost saved."""
        buffer, before = self._buffers[self._at], self._cost
        self._cost = float(self._cost_of(self.circuit))
        self._counts.note_rewrite(choice.rule, before - self._cost)
        # The new step keeps its parent alive, so that the episode need not hold the parent any longer.
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
        """Return the result of `step`. `end` is the reason why the episode terminates, one of ENDS, or None."""
        # Count the end and tell the length cap about it; only then does the info hold the summary.
        terminated = end is not None
        truncated = not terminated and self._num_steps >= self._caps[self._at].cap
        self._is_over = terminated or truncated
        info = {}
        if self._is_over:
            self._counts.totals[end or "cut"] += 1
            self._caps[self._at].note(self._num_steps)
            info = self._summary()
        return self._observation(), float(reward), terminated, truncated, info

    def _summary(self) -> dict[str, Any]:
        """Return the info of an episode's end. Keys with best_ describe all episodes from this original so far."""
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


def search_steps(start: Start) -> int:
    """Return the steps of a search: 20 for each gate of the original, and 1,000 at least."""
    return max(1000, 20 * len(start.circuit))


def _fingerprint(starts: tuple[Start, ...], *others: object) -> str:
    """Return a hash that is equal for environments that can restore each other's states."""
    found = hashlib.blake2b(digest_size=16)
    for start in starts:
        found.update(f"{start.name}\n".encode() + start.circuit.digest())
    # Old checkpoints hold this hash with the classes called Episode and Buffer: keep these names in it.
    found.update("\n".join(str(other).replace("Settings(", "(", 1) for other in others).encode())
    return found.hexdigest()
