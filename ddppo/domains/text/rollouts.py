"""Records of rollouts of text: typed turns, answers of the environment, and rewards (docs/rollouts.md).

A record is a line of JSON in the run folder:

    rollouts/rank_0/iteration_00000012.jsonl    rollouts of training, on the rank that acted in them
    rollouts/rank_0/eval_000000300000.jsonl     episodes of an evaluation after so many steps
    rollouts/eval_000000300000_seed_7.jsonl     episodes that ddppo.evaluate has played
    rollouts/groups/group_00000012.jsonl        members of a group that a program has played (groups.py)

`Transcript` keeps the texts of an episode while it is played, `RolloutWriter` chooses and writes records in training,
and `read_rollouts` reads them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.errors import RunFolderError
from ddppo.files import jsonable, remove_leftovers, replacing, stored
from ddppo.terminal import warn

if TYPE_CHECKING:
    import torch

    from ddppo.distributed.topologies.base import RankContext
    from ddppo.domains.text.collector import TextCollector
    from ddppo.domains.text.turns import Turn

FOLDER = "rollouts"  # in the run folder
_MOST_CHARACTERS = 20_000  # of a text in a record; the rest is left out, and counted


# -- A record.


@dataclass(slots=True)
class TurnRecord:
    """A turn of the policy and the answer to it."""

    typed: str | None  # all typed tokens as text; None if the tokenizer has no method `decode`
    # The line that the environment received; None for a turn that was cut short, or that held no action.
    action: str | None
    answer: str | None  # the text that it printed; None if it gave none
    reward: float | None
    num_tokens: int | None  # typed in this turn; None in a group, whose policy may have no tokens
    tool_failed: bool | None = None  # as the environment says in its info; None if it does not
    reward_parts: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RolloutRecord:
    """One rollout: an episode of training, of an evaluation, or of a group that a program has played."""

    kind: str  # training, evaluation or group
    iteration: int  # of training; of an evaluation: iterations done before it; of a group: its number
    env_steps: int | None  # of an evaluation: steps of training before it
    env: int  # global index of the environment; of an evaluation: number of the episode; of a group: of the member
    group: int | None  # rollouts of a group began equally; None in an evaluation
    task: str | None
    tier: str | None
    seed: int
    policy: int | None  # iterations that the policy which acted had learned from; None in a group
    episode_return: float | None  # None if the rollout failed
    group_mean: float | None = None  # mean return of the group, failed rollouts left out
    # GRPO's; None with a value function, in an evaluation, and if ppo.mask_truncated left the rollout out.
    advantage: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)  # sums over turns
    is_success: bool | None = None  # None if the environment does not say
    ended_by: str | None = None  # a word of ddppo.ppo.rollout.ENDS
    num_tokens: int | None = 0  # typed in all turns; None in a group
    system: str | None = None  # the system prompt, if any
    prompt: str | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    # Of a member of a group.
    score: float | None = None  # info["score"] of the last answer, if the environment has one
    info: dict[str, Any] = field(default_factory=dict)  # of the last answer
    error: str | None = None  # why it failed

    @property
    def name(self) -> str:
        """A name in its run or folder.

        12.5 is environment 5 of iteration 12, e300000.5 episode 5 after so many steps, g12.5 member 5 of group 12.
        """
        if self.kind == "training":
            return f"{self.iteration}.{self.env}"
        return f"g{self.iteration}.{self.env}" if self.kind == "group" else f"e{self.env_steps}.{self.env}"

    @property
    def rewards(self) -> list[float]:
        """The reward of each turn that was answered."""
        return [turn.reward for turn in self.turns if turn.reward is not None]


# -- Keeping the texts of an episode.


@dataclass(slots=True)
class Transcript:
    """The texts of an episode under way: `answered` and `typed` are called in turn."""

    prompt: str | None = None
    info: dict[str, Any] = field(default_factory=dict)  # of reset
    actions: list[str | None] = field(default_factory=list)
    # Text, reward_parts and tool_failed of each answer but the first.
    answers: list[tuple[str | None, Any, Any]] = field(default_factory=list)

    def answered(self, turn: "Turn") -> None:
        """Keep an answer of the environment; the first one is the prompt."""
        if self.prompt is None:
            self.prompt = shortened(turn.obs)
            self.info = {key: turn.info.get(key) for key in ("task", "tier", "system")}
        else:
            parts, failed = turn.info.get("reward_parts"), turn.info.get("tool_failed")
            self.answers.append((shortened(turn.obs), parts, failed))

    def typed(self, action: str | None) -> None:
        """Keep the line that the environment receives; None for a turn without an action."""
        self.actions.append(shortened(action))


def shortened(text: Any) -> str | None:
    if not isinstance(text, str) or len(text) <= _MOST_CHARACTERS:
        return text if isinstance(text, str) else None
    return f"{text[:_MOST_CHARACTERS]}\n... ({len(text) - _MOST_CHARACTERS:,} more characters)"


def records_of(collector: "TextCollector", envs: Iterable[int], **known: Any) -> list[RolloutRecord]:
    """Return records of the episodes that the collector has just played in its environments `envs`.

    known: fields of all records, such as kind and iteration.
    """
    return [_record_of(collector, i, known) for i in envs]


def _record_of(collector: "TextCollector", i: int, known: Mapping[str, Any]) -> RolloutRecord:
    played, transcript = collector.played, collector.transcripts[i]
    seed, options = collector.started_from[i]
    # 1. The turns. Typed tokens are runs of own rows: at least one token of an answer lies between two turns.
    decode = getattr(collector.tokenizer, "decode", None)
    turns = []
    for at, rows in enumerate(_runs(played.own[:, i])):
        tokens = played.tokens[i, rows + 1].tolist()
        action = transcript.actions[at] if at < len(transcript.actions) else None
        text, parts, tool_failed = (
            transcript.answers[at] if at < len(transcript.answers) else (None, None, None)
        )
        turns.append(
            TurnRecord(
                None if decode is None else shortened(decode(tokens)),
                action,
                text,
                None if text is None else float(played.rewards[rows[-1], i]),
                len(rows),
                None if tool_failed is None else bool(tool_failed),
                numbers(parts),
            )
        )
    # A task may offer a system message that the policy does not read, or that the settings replace.
    tokenizer, system = collector.tokenizer, None
    if hasattr(tokenizer, "system_of"):
        system = tokenizer.system_of(transcript.info)
    elif getattr(tokenizer, "reads_info", False):
        system = transcript.info.get("system")
    # 2. The episode: what the environment's info says, else the options with which it began.
    task = transcript.info.get("task") or options.get("task")
    tier = transcript.info.get("tier") or (collector.turns.spec.tasks or {}).get(str(task))
    failed, achieved = bool(played.failed[i]), played.achieved[i]
    return RolloutRecord(
        **known,
        env=collector.first_env + i,
        task=None if task is None else str(task),
        tier=None if tier is None else str(tier),
        seed=seed,
        episode_return=None if failed else float(played.rewards[:, i].sum()),
        reward_parts=summed_parts(turns),
        is_success=None if math.isnan(achieved) else bool(achieved),
        ended_by=collector.ended_by[i],
        num_tokens=int(played.own[:, i].sum()),
        system=system,
        prompt=transcript.prompt,
        turns=turns,
    )


def _runs(own: np.ndarray) -> list[np.ndarray]:
    """Return the row numbers of each run of True in `own` `[L]`."""
    rows = np.flatnonzero(own)
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []


def summed_parts(turns: Iterable[TurnRecord]) -> dict[str, float]:
    """Return the sum of each part of the reward over turns."""
    of_turns: dict[str, list[float]] = {}
    for turn in turns:
        for name, x in turn.reward_parts.items():
            of_turns.setdefault(name, []).append(x)
    return {name: math.fsum(each) for name, each in of_turns.items()}


def numbers(parts: Any) -> dict[str, float]:
    return {str(name): float(x) for name, x in parts.items()} if isinstance(parts, Mapping) else {}


# -- Writing.


class RolloutWriter:
    """Writes records of each iteration, on the ranks that act. All ranks call its methods together.

    log.rollouts=all writes all rollouts. With `sampled` they are three groups at most: one group after another in turn,
    and those of the best and of the worst rollout, of which only that rollout is written. The choice depends on returns
    alone, so it is the same for every number of ranks.
    """

    def __init__(self, context: "RankContext", run_dir: Path, iteration: int, env_steps: int) -> None:
        """Go on after `iteration`: records that are newer, of an earlier start of the run, are removed."""
        self._context = context
        self._mode = context.config.log.rollouts
        self._folder = run_dir / FOLDER / f"rank_{context.group.rank}"
        # A rank removes its own files; rank 0 also those of ranks that this start of the run does not have.
        folders = [self._folder]
        if context.group.rank == 0:
            found = (run_dir / FOLDER).glob("rank_*")
            folders += [path for path in found if _number(path.name) >= context.group.world_size]
        for folder in filter(Path.is_dir, folders):
            remove_leftovers(folder)
            for path in folder.glob("*.jsonl"):
                newest = iteration if path.name.startswith("iteration_") else env_steps
                if _number(path.stem) > newest:
                    with stored(path):
                        path.unlink()

    def write(self, iteration: int) -> None:
        """Write the chosen rollouts of the iteration just collected. Raises StorageError."""
        if self._mode == "none":
            return
        # 1. One gather: every rank gets the returns of all rollouts, and so makes the same choice.
        was_played, is_left_out, returns, learned, rounding = self._gathered()
        if (collector := self._collector) is None:
            return
        # 2. The rollouts to write, of those of this rank.
        training, num_envs = self._context.config.training, len(returns)
        is_chosen = np.ones(num_envs, bool)
        if self._mode == "sampled":
            is_chosen = chosen(returns.numpy(), was_played.numpy(), training.group_size, iteration)
        own = [i for i in range(collector.turns.num_envs) if is_chosen[collector.first_env + i]]
        if not own:
            return
        records = records_of(
            collector, own, kind="training", iteration=iteration, env_steps=None, group=None,
            policy=iteration - 1,
        )  # fmt: skip
        # 3. Their places in their groups.
        means, _ = in_groups(returns, rounding, was_played, training)
        _, advantages = in_groups(learned, rounding, was_played, training)
        for record in records:
            record.group = record.env // training.group_size
            if was_played[record.env]:
                record.group_mean = means[record.group].item()
                if advantages is not None and not is_left_out[record.env]:
                    record.advantage = advantages[record.env].item()
        write_records(self._folder / f"iteration_{iteration:08d}.jsonl", records)

    def _gathered(self) -> "tuple[torch.Tensor, ...]":
        """Return what is known of the N rollouts of all ranks, each `[N]`.

        Whether each was played, and left out by ppo.mask_truncated; its return, the return that learning sees (scaled
        and clipped), and the rounding of the latter.
        """
        import torch

        from ddppo.algorithms.grpo import rounding_of_returns
        from ddppo.ppo.learner import scaled_and_clipped
        from ddppo.ppo.rollout import CUTS

        training = self._context.config.training
        local = torch.zeros(5, self._context.shape.num_envs, dtype=torch.float64)
        if (collector := self._collector) is not None:
            played = collector.played
            rewards = torch.from_numpy(np.where(played.own & ~played.failed, played.rewards, 0.0))
            learned = rewards
            if isinstance(training, GrpoSettings):
                learned = scaled_and_clipped(rewards, training)
            columns = local[:, collector.first_env : collector.first_env + rewards.shape[1]]
            columns[0] = torch.from_numpy(played.own.any(axis=0) & ~played.failed)
            if isinstance(training, GrpoSettings) and training.mask_truncated:
                columns[1] = torch.tensor([word in CUTS for word in collector.ended_by])
            columns[2], columns[3] = rewards.sum(dim=0), learned.sum(dim=0)
            columns[4] = rounding_of_returns(learned, rewards)
        was_played, is_left_out, *sums = self._context.group.gather(local).sum(dim=0)  # [W, 5, N] -> [5, N]
        return was_played > 0, is_left_out > 0, *sums

    @property
    def _collector(self) -> "TextCollector | None":
        collector: Any = self._context.topology.collector
        # A model may have a collector of its own, which keeps no transcripts.
        return collector if hasattr(collector, "transcripts") else None


def chosen(returns: np.ndarray, was_played: np.ndarray, group_size: int, iteration: int) -> np.ndarray:
    """Return which of the rollouts `[N]` bool an iteration records with log.rollouts=sampled.

    One group, a different one in each iteration, and the rollouts of the highest and of the lowest return; of several,
    the first. Rollouts that failed have no return, and are recorded only with their group.
    """
    num_groups = len(returns) // group_size
    found = np.arange(len(returns)) // group_size == (iteration - 1) % num_groups
    if was_played.any():
        found[np.argmax(np.where(was_played, returns, -np.inf))] = True
        found[np.argmin(np.where(was_played, returns, np.inf))] = True
    return found


def in_groups(
    returns: "torch.Tensor", rounding: "torch.Tensor", was_played: "torch.Tensor", training: Any
) -> "tuple[torch.Tensor, torch.Tensor | None]":
    """Return the mean return of each group `[K]`, and the advantage of each rollout `[N]` if GRPO learns.

    By the functions of GRPO's learner; the arguments but `training` are `[N]`.
    """
    import torch

    from ddppo.algorithms.grpo import group_advantages, group_statistics, merge_group_statistics

    groups = torch.arange(len(returns)) // training.group_size
    num_groups = len(returns) // training.group_size
    merged = merge_group_statistics(group_statistics(returns, rounding, groups, was_played, num_groups)[None])
    if not isinstance(training, GrpoSettings):
        return merged[1], None
    advantages, _ = group_advantages(returns, groups, was_played, merged, scale_by=training.scale_by)
    return merged[1], advantages


def write_records(path: Path, records: Sequence[RolloutRecord]) -> None:
    """Write records as lines of JSON into a file that is whole at every moment. Raises StorageError."""
    lines = [json.dumps(jsonable(asdict(record)), ensure_ascii=False, allow_nan=False) for record in records]
    with stored(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A policy may type half of a surrogate pair, which UTF-8 cannot hold.
    with replacing(path, "wb") as file:
        file.write("".join(f"{line}\n" for line in lines).encode(errors="replace"))


# -- Reading.


def read_rollouts(run_dir: Path) -> list[RolloutRecord]:
    """Return all records of a run: of training by iteration and environment, then of evaluations.

    A line that is no record is left out with a warning. Raises RunFolderError if there are no records.
    """
    paths = sorted((run_dir / FOLDER).glob("**/*.jsonl"))
    if not run_dir.is_dir():
        raise RunFolderError(f"run={run_dir}: there is no such folder: give the folder of a run")
    if not paths:
        raise RunFolderError(
            f"run={run_dir}: it has no records of rollouts: tasks of text have them, unless log.rollouts=none; "
            "python -m ddppo.evaluate plays episodes and records them"
        )
    found: dict[tuple[Any, ...], RolloutRecord] = {}
    for path in paths:
        # Iterations of training may be recorded by several ranks; episodes may be played again by ddppo.evaluate.
        for record in _records_in(path):
            found[record.kind, record.iteration, record.env_steps or 0, record.env, record.seed] = record
    return [found[key] for key in sorted(found, key=lambda key: (key[0] != "training", *key[1:]))]


def _records_in(path: Path) -> list[RolloutRecord]:
    records = []
    text = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
    for number, line in enumerate(text.split("\n"), start=1):  # a text may hold other ends of lines
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError):
            warn(f"{path} line {number} is no record of a rollout: it is left out")
    return records


def _record(line: dict[str, Any]) -> RolloutRecord:
    """Return the record in a line. Fields that this version does not know are left out."""
    known, of_turn = ({each.name for each in fields(kind)} for kind in (RolloutRecord, TurnRecord))
    turns = [TurnRecord(**{key: x for key, x in turn.items() if key in of_turn}) for turn in line["turns"]]
    found = RolloutRecord(**{key: x for key, x in line.items() if key in known} | {"turns": turns})
    # Lists and filters compare these.
    if not all(isinstance(x, int) for x in (found.iteration, found.env, found.seed)):
        raise ValueError(line)
    return found


def _number(name: str) -> int:
    """Return the first number in the name of a file or folder of records; -1 if there is none."""
    digits = [part for part in name.split("_") if part.isdigit()]
    return int(digits[0]) if digits else -1
