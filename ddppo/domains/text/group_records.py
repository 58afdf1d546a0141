"""A group of episodes (groups.py): its members as records and as dialogues, and what a policy returns for them."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.domains.text.hf_tokens import Opening
from ddppo.domains.text.rollouts import (
    FOLDER,
    RolloutRecord,
    TurnRecord,
    numbers,
    shortened,
    summed_parts,
    write_records,
)
from ddppo.domains.text.settings import HfSettings
from ddppo.errors import ConfigError
from ddppo.serve.client.sessions import EnvAnswer

# A message of a chat: {"role": "system", "user" or "assistant", "content": text}.
ChatMessage = dict[str, str]
# Called with the dialogue of each member that plays; returns the line that each types.
Policy = Callable[[list[list[ChatMessage]]], Sequence[str] | Awaitable[Sequence[str]]]


@dataclass(slots=True)
class EpisodeGroup:
    """The episodes of G members that began equally."""

    number: int  # 1, 2, ... in the order in which groups began
    task: str | None  # None if the environment names none
    seed: int  # of every member's reset
    members: list[RolloutRecord]
    dialogues: list[list[ChatMessage]]  # the whole texts; records shorten very long ones
    is_recorded: bool = False  # by record_group_result

    @property
    def playing(self) -> list[int]:
        """The members with an episode that is not over."""
        return [i for i, member in enumerate(self.members) if member.ended_by is None]

    @property
    def returns(self) -> list[float | None]:
        """The return of each member; None if it failed or still plays."""
        return [member.episode_return for member in self.members]

    @property
    def mean_return(self) -> float | None:
        """The mean return of the members that did not fail; None if all failed."""
        return _mean([x for x in self.returns if x is not None])

    @property
    def success_rate(self) -> float | None:
        """The share of members that achieved the task, of those that did not fail and say it; None if none does."""
        said = [each.is_success for each in self.members if each.ended_by != "failed"]
        return _mean([float(x) for x in said if x is not None])

    def observed(self) -> list[list[ChatMessage]]:
        """Return the dialogues of the members that play, as copies: a policy may change them."""
        return [list(self.dialogues[i]) for i in self.playing]

    def write(self, folder: str | Path) -> None:
        """Write the members for `python -m ddppo.rollouts <folder>`. Raises StorageError."""
        write_records(Path(folder) / FOLDER / "groups" / f"group_{self.number:08d}.jsonl", self.members)

    # -- What the pool notes, in the order of an episode.

    def begin(self, answer: EnvAnswer, tiers: Mapping[str, str]) -> None:
        """Add a member by the answer to its reset. Raises EnvOutputError for examples that are none."""
        info, prompt = dict(answer.info), str(answer.obs)
        opening = Opening.of(HfSettings(), info)
        task = self.task if self.task is not None else _text(info.get("task"))
        member = RolloutRecord(
            kind="group", iteration=self.number, env_steps=None, env=len(self.members), group=self.number, task=task,
            tier=_text(info.get("tier")) or tiers.get(str(task)), seed=self.seed, policy=None, episode_return=None,
            num_tokens=None, system=opening.system or None, prompt=shortened(prompt),
        )  # fmt: skip
        _note(member, {key: x for key, x in info.items() if key not in ("system", "shots")})
        self.members.append(member)
        self.dialogues.append(opened(opening, prompt))

    def step(self, i: int, line: str, answer: EnvAnswer, max_turns: int | None) -> None:
        """Add a turn of member i; the episode may be over by it."""
        if not math.isfinite(answer.reward):
            self.fail(i, line, f"the environment returned {answer.reward} as the reward")
            return
        member, info = self.members[i], dict(answer.info)
        failed = info.get("tool_failed")
        member.turns.append(
            TurnRecord(
                typed=None, action=shortened(line), answer=shortened(answer.obs), reward=answer.reward, num_tokens=None,
                tool_failed=None if failed is None else bool(failed), reward_parts=numbers(info.get("reward_parts")),
            )
        )  # fmt: skip
        _note(member, info)
        self.dialogues[i] += [_message("assistant", line), _message("user", str(answer.obs))]
        if answer.terminated or answer.truncated:
            _end(member, "terminated" if answer.terminated else "time_limit")
        elif len(member.turns) == max_turns:
            _end(member, "max_turns")

    def fail(self, i: int, line: str, why: str) -> None:
        """End the episode of member i, after a turn without an answer. It counts in no number of the group."""
        self.members[i].turns.append(TurnRecord(None, shortened(line), None, None, None))
        _end(self.members[i], "failed", why)


def opened(opening: Opening, prompt: str) -> list[ChatMessage]:
    """Return the messages before the first turn: the system message, worked examples, and the prompt.

    User and assistant alternate, so the last answer of an example and the next prompt are one message.
    """
    found = [_message("system", opening.system)] if opening.system else []
    for texts in (*opening.shots, (prompt,)):
        for i, text in enumerate(texts):
            if i == 0 and found and found[-1]["role"] == "user":
                found[-1] = _message("user", f"{found[-1]['content']}\n\n{text}")
            else:
                found.append(_message("assistant" if i % 2 else "user", text))
    return found


def checked_lines(lines: Any, num_playing: int) -> list[str]:
    """Return the lines of a policy. Raises ConfigError unless there is one for each member that plays."""
    rule = "a policy returns a list with one line for each dialogue that it is given"
    if isinstance(lines, (str, bytes)) or not isinstance(lines, Sequence):
        raise ConfigError(f"the policy returned {type(lines).__name__}: {rule}")
    if len(lines) != num_playing:
        raise ConfigError(f"the policy returned {len(lines)} lines for {num_playing} dialogues: {rule}")
    for i, line in enumerate(lines):
        if not isinstance(line, str):
            raise ConfigError(f"the policy returned {type(line).__name__} as line {i}: {rule}")
    return list(lines)


def _message(role: str, text: str) -> ChatMessage:
    return {"role": role, "content": text}


def _note(member: RolloutRecord, info: dict[str, Any]) -> None:
    """Keep the info of the last answer, and what it says about score and success."""
    score, is_success = info.get("score"), info.get("is_success")
    member.info = info
    if isinstance(score, (int, float)) and not isinstance(score, bool):
        member.score = float(score)
    if is_success is not None:
        member.is_success = bool(is_success)


def _end(member: RolloutRecord, ended_by: str, error: str | None = None) -> None:
    member.ended_by, member.error = ended_by, error
    member.reward_parts = summed_parts(member.turns)
    if ended_by != "failed":
        member.episode_return = math.fsum(member.rewards)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
