"""Acting in tasks of text: a model types whole episodes, token by token, in all environments at once.

Read `TextCollector.play` first: it is the loop of an iteration. `_record_answer` handles an environment's answer,
`_type` generates the turns that follow. token_rollout.py keeps the tokens and makes the rollout that the learner
reads.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddppo.config.settings import Config
from ddppo.distributed.topologies.base import RankContext
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.rank_turns import RankTurns, TurnsServer
from ddppo.domains.text.rollouts import Transcript
from ddppo.domains.text.settings import text_settings
from ddppo.domains.text.token_rollout import EpisodeRecord
from ddppo.domains.text.tokenizers import Dialogue, NoAction, Tokenizer, begun, make_tokenizer
from ddppo.domains.text.turns import Turn, Turns, make_turns
from ddppo.envs.encoding.step_values import PARTS, WrongOutput, weighted
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvOutputError, TrainingError
from ddppo.models.distributions import MANY_CHOICES
from ddppo.ppo.rollout import EpisodeOutcome, FinishedEpisode, Rollout
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How the turns of an episode are generated."""

    num_tokens: int  # L: tokens of an episode, prompt and answers included, after which it is truncated
    max_turns: int | None = None  # turns of the policy after which an episode is truncated; None: any number
    top_p: float = 1.0  # tokens are sampled from the nucleus of this probability; 1 is all tokens
    reward_weights: Mapping[str, float] | None = (
        None  # of the parts of a reward; None: the task's own reward counts
    )
    wait_s: float | None = None  # seconds to wait for more answers after the first one; None: wait for all


class TextCollector:
    """Plays one episode in each of E environments.

    Environments answer at their own pace. The model types the turns of all environments that have answered as one
    batch, while the others still step. Results do not depend on how environments are batched: the token at position l
    of environment i has its own noise.

    An episode is truncated when its `num_tokens` are used up, or after `max_turns`. A turn that runs out of tokens is
    not played. An episode that failed has no valid row in the rollout. `ended_by` says why each episode ended.
    """

    def __init__(
        self,
        turns: Turns,
        model: TokenActorCritic,
        tokenizer: Tokenizer,
        generation: GenerationSettings,
        *,
        first_env: int,  # global index of the first environment
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.turns = turns
        self.model = model
        self.tokenizer = tokenizer
        self.generation = generation
        self.num_tokens = generation.num_tokens
        self.first_env = first_env
        self.device, self.dtype = device, dtype
        # Of a large vocabulary, an accelerator draws tokens in a hundredth of the host's time, from the same numbers.
        is_large = device.type != "cpu" and model.num_params > MANY_CHOICES
        self._samples_there = is_large and not torch.are_deterministic_algorithms_enabled()
        self._has_warned = False  # of texts that were cut
        self._clear()

    @classmethod
    def make(cls, context: RankContext) -> "TextCollector":
        """Make the environments of a rank and its collector. Raises ConfigError as `from_config` does."""
        return cls._made(context, _own_turns(context), context.env_indices.start)

    @classmethod
    def over_ranks(cls, context: RankContext) -> "TextCollector | TurnsServer":
        """Return, on rank 0, a collector that acts in the environments of all others; on these, what steps them."""
        if context.role.steps:
            return TurnsServer(_own_turns(context), context.group, context.env_indices)
        names = EnvNames(range(context.shape.num_envs), context.group.rank)
        return cls._made(context, RankTurns(context.group, context.spec, names), 0)

    @classmethod
    def _made(cls, context: RankContext, turns: Turns, first_env: int) -> "TextCollector":
        assert isinstance(context.model, TokenActorCritic)
        return cls.from_config(
            context.config, turns, context.model, first_env=first_env, device=context.device
        )

    @staticmethod
    def check(config: Config, shape: BatchShape) -> None:
        """Raise ConfigError if a prompt can fill an episode, or if there are more minibatches than episodes."""
        num_tokens, model = config.training.rollout_steps, text_settings(config.model)
        section = config.training.section
        if model.obs_tokens >= num_tokens:
            raise ConfigError(
                f"model.obs_tokens={model.obs_tokens} with {section}.rollout_steps={num_tokens}, the tokens of an "
                f"episode: a prompt may leave none to type: use a {section}.rollout_steps of at least "
                f"{model.obs_tokens + model.turn_tokens}, or a smaller model.obs_tokens"
            )
        if shape.num_minibatches > shape.num_envs:
            raise ConfigError(
                f"{section}.num_minibatches={shape.num_minibatches} exceeds the {shape.num_envs} episodes of an "
                f"iteration. {config.env.id} is a task of text, and its minibatches are made of whole episodes: use at "
                f"most {shape.num_envs}"
            )

    @staticmethod
    def check_task(config: Config, spec: EnvSpec) -> None:
        """Raise ConfigError if system message, tools and examples fill an episode, or the model is too short for it."""
        tokenizer = make_tokenizer(spec, config.model)
        _check_positions(config, getattr(tokenizer, "most_tokens", None))
        _check_room(config, getattr(tokenizer, "num_opening", 0))

    @classmethod
    def from_config(
        cls, config: Config, turns: Turns, model: TokenActorCritic, *, first_env: int, device: torch.device
    ) -> "TextCollector":
        """Return the collector of these environments. Raises ConfigError if episodes are longer than the model reads.

        Args:
            first_env: global index of the first environment of `turns`.
        """
        num_tokens = config.training.rollout_steps
        _check_positions(config, model.most_tokens)
        tokenizer = make_tokenizer(turns.spec, config.model)
        _check_room(config, getattr(tokenizer, "num_opening", 0))
        wait_ms = config.env.batch_wait_ms
        generation = GenerationSettings(
            num_tokens,
            max_turns=config.env.max_turns,
            top_p=text_settings(config.model).top_p,
            reward_weights=config.env.reward_weights or None,
            wait_s=None if wait_ms is None else wait_ms / 1000,
        )
        return cls(
            turns,
            model,
            tokenizer,
            generation,
            first_env=first_env,
            device=device,
            dtype=getattr(torch, config.dtype),
        )

    @property
    def env(self) -> Turns:
        return self.turns

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start the episode of the next `play` in every environment, each from its own seed."""
        self._clear()
        self.started_from = list(zip(seeds, options or [{}] * len(seeds), strict=True))
        for i, (seed, option) in enumerate(self.started_from):
            self.turns.begin(i, seed, option)
        self._num_stepping = self.turns.num_envs

    def collect(self, noise: np.ndarray | None) -> tuple[Rollout, list[FinishedEpisode]]:
        """Play all episodes as `play` does. Return the rollout for the learner, and the episodes."""
        episodes = self.play(noise)
        return self._record.rollout(self.model, self.device, self.dtype), episodes

    def play(self, noise: np.ndarray | None) -> list[FinishedEpisode]:
        """Play all episodes to their ends; return the ones that did not fail.

        Tokens are sampled with noise `[L, E, num_noise]`. Without noise, the likeliest token is typed.
        Raises EnvError as `Turns.ready` does.
        """
        drawn = None if noise is None else torch.from_numpy(noise)
        if drawn is not None and self.model.num_params <= MANY_CHOICES:
            drawn = drawn.to(self.dtype)
        self._cache = self.model.cache(self.turns.num_envs, self.num_tokens)
        began = time.perf_counter()
        # 1. Take the answers of environments that have stepped. An empty list means that all episodes are over.
        while answers := self._answers():
            self._t_waited += time.perf_counter() - began
            # 2. Record them. Some of these episodes end here.
            waiting = [turn.env for turn in answers if self._record_answer(turn)]
            # 3. Type the next turn of the others, in one batch. An environment steps as soon as its turn is typed.
            if waiting:
                self._type(np.array(sorted(waiting)), drawn)
            began = time.perf_counter()
        del self._cache  # keys and values of every layer: the largest tensors of acting
        self._warn_of_cuts()
        return self._record.episodes(self.first_env)

    @property
    def played(self) -> EpisodeRecord:
        """The tokens and rewards of the episodes just played; their texts are in `transcripts`."""
        return self._record

    @property
    def achieved(self) -> np.ndarray:
        """Whether each episode just played achieved its task `[E]`: 1 or 0, NaN if unknown."""
        return self._record.achieved

    def outcomes(self) -> list[EpisodeOutcome]:
        """Return what became of each episode just played, in the order of environments."""
        record = self._record
        return [
            EpisodeOutcome(
                env_index=self.first_env + i,
                ended_by=ended_by or "failed",
                length=int(record.own[:, i].sum()),
                num_turns=int(self._num_turns[i]),
                num_tool_failures=int(record.tool_failures[i]) if record.tells_failures[i] else None,
                reward_parts=record.parts[i],
            )
            for i, ended_by in enumerate(record.ended_by)
        ]

    @property
    def ended_by(self) -> list[str | None]:
        """Why each episode just played ended `[E]`, by one of ENDS."""
        return self._record.ended_by

    def measured(self) -> dict[str, float]:
        """Return counts and durations of the last `play`, by names of TOPOLOGY_METRICS."""
        num_tokens, seconds = int(self._record.own.sum()), self._t_typed
        return {
            "rollout/inference_batch": num_tokens / max(self._num_forwards, 1),
            "rollout/turns": float(self._num_turns.sum()),
            "rollout/cut_observations": float(self._num_cut()),
            "rollout/tokens_per_s": num_tokens / seconds if seconds else 0.0,
            "rollout/t_generate": seconds,
            "rollout/t_answers": self._t_waited,
        }

    def _num_cut(self) -> int:
        """Return how many texts of the environments were longer than obs_tokens, as far as dialogues count them."""
        return sum(getattr(dialogue, "num_cut", 0) for dialogue in self._dialogues)

    def _warn_of_cuts(self) -> None:
        if self._has_warned or not (num_cut := self._num_cut()):
            return
        self._has_warned = True
        warn(
            f"{num_cut} prompts or answers of this iteration were longer than model.obs_tokens and were cut "
            "(rollout/cut_observations counts them): use a larger model.obs_tokens"
        )

    def _clear(self) -> None:
        num_envs = self.turns.num_envs
        self._record = EpisodeRecord(self.num_tokens, num_envs, self.tokenizer.pad)
        self._dialogues: list[Dialogue | None] = [None] * num_envs
        self.transcripts = [Transcript() for _ in range(num_envs)]
        self._num_stepping = 0  # environments that have not answered yet
        self._unplayed: list[Turn] = []  # answers to turns without an action
        # Tokens of each environment that are in the model's cache.
        self._num_read = np.zeros(num_envs, np.int64)
        self._num_turns = np.zeros(num_envs, np.int64)
        self._num_forwards, self._t_typed, self._t_waited = 0, 0.0, 0.0

    # -- An environment has answered.

    def _record_answer(self, turn: Turn) -> bool:
        """Record the answer of an environment; return whether its episode continues with a turn of the policy."""
        record, i, dialogue = self._record, turn.env, self._dialogues[turn.env]
        if turn.failed:
            record.end(i, "failed")
            return False
        self._num_turns[i] += dialogue is not None
        self.transcripts[i].answered(turn)
        self._record_success(turn)
        # The first answer of an episode is its prompt. It has no reward and never ends the episode.
        if dialogue is None:
            self._dialogues[i] = dialogue = begun(self.tokenizer, turn.obs, turn.info)
            if not record.read(i, dialogue.prompt_tokens):
                raise TrainingError(
                    f"{self.turns.names(i)}: its tokenizer made a prompt of {len(dialogue.prompt_tokens)} tokens, "
                    "system message, tools and examples included, and "
                    f"ppo.rollout_steps={self.num_tokens} leaves none to type: have it keep to model.obs_tokens, or "
                    "set a larger ppo.rollout_steps"
                )
            return True
        # The reward of a turn belongs to its last token.
        row = record.last[i]
        record.rewards[row, i] = self._reward(turn)
        self._record_tool(turn)
        if turn.terminated:
            record.end(i, "terminated")
            return False
        answer, room = dialogue.observe(turn.obs), record.room(i)
        has_room = record.read(i, answer)
        if turn.truncated:
            record.end(i, "time_limit")
        elif self._num_turns[i] == self.generation.max_turns:
            record.end(i, "max_turns")
        elif not has_room:
            record.end(i, "prompt" if len(answer) > room else "tokens")
        return record.ended_by[i] is None

    def _record_success(self, turn: Turn) -> None:
        """Record info["is_success"] if the environment reports it. The last report of an episode counts."""
        if (is_success := turn.info.get("is_success")) is None:
            return
        if isinstance(is_success, str) or not 0 <= is_success <= 1:
            found = f'{is_success!r} as info["is_success"]'
            raise self._bad_output(turn, found, "return True if the task is achieved, else False")
        self._record.achieved[turn.env] = float(is_success)

    def _record_tool(self, turn: Turn) -> None:
        """Record info["tool_failed"] if the environment reports it."""
        if (tool_failed := turn.info.get("tool_failed")) is None:
            return
        if type(tool_failed) is not bool:
            found = f'{tool_failed!r} as info["tool_failed"]'
            raise self._bad_output(turn, found, "return True if the tool of the turn failed, else False")
        self._record.tells_failures[turn.env] = True
        self._record.tool_failures[turn.env] += tool_failed

    def _reward(self, turn: Turn) -> float:
        """Return the reward of a turn, and add its parts to those of the episode.

        Raises EnvOutputError if a number is NaN, infinite or too large for `dtype`, or if the parts are not the ones
        that env.reward_weights weighs.
        """
        parts, weights = turn.info.get(PARTS), self.generation.reward_weights
        sums = self._record.parts[turn.env]
        for name, value in (parts or {}).items():
            sums[name] = sums.get(name, 0.0) + self._checked(turn, value, f"the part {name} of the reward")
        reward = turn.reward
        if weights:
            try:
                reward = weighted(parts, weights)
            except WrongOutput as e:
                raise self._bad_output(turn, e.found, e.wanted) from e
        return self._checked(turn, reward, "the reward")

    def _checked(self, turn: Turn, value: float, of: str) -> float:
        if abs(value) <= torch.finfo(self.dtype).max:  # False for NaN
            return value
        more = f", more than {self.dtype} holds," if math.isfinite(value) else ""
        remedy = "nothing can be learned from it; mend the task, or wrap it so that it returns finite numbers"
        raise self._bad_output(turn, f"{value:g}{more} as {of}", remedy)

    def _bad_output(self, turn: Turn, found: str, remedy: str) -> EnvOutputError:
        seed, options = self.started_from[turn.env]
        task = f" of the task {options['task']}" if "task" in options else ""
        return EnvOutputError(
            f"{self.turns.names(turn.env)} returned {found} in turn {self._num_turns[turn.env]} of the episode{task} "
            f"from seed {seed}: {remedy}"
        )

    # -- The policy types.

    @torch.inference_mode()
    def _type(self, envs: np.ndarray, noise: torch.Tensor | None) -> None:
        """Generate one turn for each of these environments. Each one steps as soon as its own turn is complete."""
        began, record = time.perf_counter(), self._record
        while len(envs):
            # 1. One token for every environment of the batch: masked by its grammar, sampled with its own noise.
            chosen, allowed = self._choose(self._read(envs), self._allowed(envs), noise, envs)
            record.typed(envs, chosen, allowed)
            # 2. An environment leaves the batch when its turn or its token budget ends.
            unfinished = []
            for i, token in zip(envs.tolist(), chosen.tolist(), strict=True):
                dialogue = self._dialogue(i)
                dialogue.push(token)
                if dialogue.is_over:
                    self._act(i, dialogue.action())
                elif record.is_full(i):
                    record.end(i, "tokens")
                else:
                    unfinished.append(i)
            envs = np.array(unfinished, np.int64)
        self._t_typed += time.perf_counter() - began

    def _act(self, env: int, action: str | NoAction) -> None:
        """Step an environment. If the turn has no action, it is answered here, and the environment is not stepped."""
        if isinstance(action, NoAction):
            self.transcripts[env].typed(None)
            # Its reward is 0, and so are the parts of its reward.
            parts = dict.fromkeys(self.generation.reward_weights or (), 0.0)
            info = {"tool_failed": True, **({PARTS: parts} if parts else {})}
            self._unplayed.append(Turn(env, action.message, info=info))
        else:
            self.transcripts[env].typed(action)
            self.turns.act(env, action)
            self._num_stepping += 1

    def _answers(self) -> list[Turn]:
        """Wait for answers; return them with those to turns without an action. [] if all episodes are over."""
        unplayed, self._unplayed = self._unplayed, []
        # Turns over ranks take a call without a busy environment for the end of all episodes.
        if unplayed and not self._num_stepping:
            return unplayed
        answers = self.turns.ready(self.generation.wait_s)
        self._num_stepping -= len(answers)
        return answers + unplayed

    def _dialogue(self, env: int) -> Dialogue:
        dialogue = self._dialogues[env]
        assert dialogue is not None, f"environment {env} has no prompt"
        return dialogue

    def _allowed(self, envs: np.ndarray) -> np.ndarray | None:
        """Return the masks of the next tokens `[n, V]`; None if the model applies them and there is no nucleus."""
        masks = [self._dialogue(i).allowed() for i in envs]
        if self.model.masks_typed and self.generation.top_p == 1.0:
            typed = getattr(self.tokenizer, "typed", None)
            if all(mask is typed for mask in masks):
                return None
        return np.array(masks)

    def _read(self, envs: np.ndarray) -> torch.Tensor:
        """Feed the model all tokens that its cache lacks; return action parameters `[n, V]` of the next token.

        At the start of a turn these are the tokens of the whole answer, later the one token just typed.
        """
        counts = self._record.lengths[envs] - self._num_read[envs]
        columns = self._num_read[envs, None] + np.arange(counts.max())
        # Short rows repeat tokens behind their ends; the cache ignores them, because it is given `counts`.
        tokens = self._record.tokens[envs[:, None], columns.clip(max=self.num_tokens)]
        self._num_read[envs] += counts
        self._num_forwards += 1
        return self._cache.extend(envs, tokens, counts)

    def _choose(
        self, params: torch.Tensor, allowed: np.ndarray | None, noise: torch.Tensor | None, envs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the next tokens `[n]`, and the mask `[n, V]` that they were chosen from: grammar and nucleus.

        The learner applies the same mask, so that its log-probabilities are those of the policy that acted.
        """
        if allowed is not None and self.generation.top_p < 1.0 and noise is not None:
            allowed = nucleus(params.numpy(force=True), allowed, self.generation.top_p)
        mask = None if allowed is None else torch.from_numpy(allowed).to(self.device)
        policy = self.model.distribution(params, mask)
        if noise is None:
            return policy.mode().numpy(force=True), allowed
        drawn = noise[self._record.lengths[envs] - 1, envs]
        if self._samples_there and hasattr(policy, "sample_on_device"):
            return policy.sample_on_device(drawn.to(self.device)).numpy(force=True), allowed
        return policy.sample(drawn).numpy(), allowed


def _check_positions(config: Config, most: int | None) -> None:
    section, num_tokens = config.training.section, config.training.rollout_steps
    # One position is kept free: the value of a truncated episode is read behind its last token.
    if most is not None and num_tokens >= most:
        raise ConfigError(
            f"{section}.rollout_steps={num_tokens}, the tokens of an episode: the model knows {most} positions: "
            f"use a {section}.rollout_steps of at most {most - 1}"
        )


def _check_room(config: Config, num_opening: int) -> None:
    """Raise ConfigError if a prompt with an opening of so many tokens can fill an episode."""
    model, section, num_tokens = (
        text_settings(config.model),
        config.training.section,
        config.training.rollout_steps,
    )
    if num_opening and num_opening + model.obs_tokens >= num_tokens:
        raise ConfigError(
            f"model.obs_tokens={model.obs_tokens} and {num_opening} tokens of system message, tools and examples with "
            f"{section}.rollout_steps={num_tokens}, the tokens of an episode: a prompt may leave none to type: use a "
            f"{section}.rollout_steps of at least {num_opening + model.obs_tokens + model.turn_tokens}, or a smaller "
            "model.obs_tokens"
        )


def _own_turns(context: RankContext) -> Turns:
    return make_turns(
        context.env_config,
        context.env_indices,
        context.group.rank,
        context.env_timeout_s,
        context.max_restarts,
    )


def nucleus(logits: np.ndarray, allowed: np.ndarray, top_p: float) -> np.ndarray:
    """Return which of the allowed choices `[n, V]` bool are the likeliest ones that together reach a probability of
    top_p.

    p is the softmax of the logits `[n, V]` over the allowed choices. A choice is in if all likelier choices together
    have a probability below top_p. So the likeliest choice is always in, and choices of equal probability are in or
    out together. Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
    """
    masked = np.where(allowed, logits, -np.inf)
    p = np.exp(masked - masked.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    ordered = -np.sort(-p, axis=-1)
    likelier = np.cumsum(ordered, axis=-1) - ordered  # probability of all likelier choices
    least = np.where(likelier < top_p, ordered, np.inf).min(axis=-1, keepdims=True)
    return allowed & (p >= least)
