"""Acting in text: whole episodes, generated in one batch for all environments that wait for their turn.

`TextCollector` plays the episodes of an iteration and `nucleus` limits what it samples from; token_rollout.py keeps the
tokens and makes the rollout of them.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ddppo.config.settings import Config
from ddppo.distributed.topologies.base import RankContext
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.settings import text_settings
from ddppo.domains.text.token_rollout import EpisodeRecord
from ddppo.domains.text.tokenizers import Dialogue, Tokenizer, make_tokenizer
from ddppo.domains.text.turns import Turn, Turns, make_turns
from ddppo.errors import ConfigError, EnvOutputError, TrainingError
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.scaling import BatchShape


class TextCollector:
    """Plays one episode in each of E environments, of L tokens at most, prompt and answers included.

    The model generates the turns of all environments that have answered in one batch, token by token, while the other
    environments step. After the first answer the collector waits `wait_s` for further ones (None: for all). The tokens
    depend on neither: the token at position l of environment i has noise of its own.

    An episode is truncated when its L tokens are spent (a turn that this cuts short is not played), or after
    `max_turns`. An episode that failed has no valid row.
    """

    whole_episodes = True

    def __init__(
        self,
        turns: Turns,
        model: TokenActorCritic,
        tokenizer: Tokenizer,
        *,
        num_tokens: int,
        first_env: int,
        device: torch.device,
        dtype: torch.dtype,
        wait_s: float | None = None,
        max_turns: int | None = None,
        top_p: float = 1.0,
    ) -> None:
        self.turns = turns
        self.model = model
        self.tokenizer = tokenizer
        self.num_tokens = num_tokens
        self.first_env = first_env
        self.device, self.dtype = device, dtype
        self.wait_s, self.max_turns, self.top_p = wait_s, max_turns, top_p
        self._forget()

    @classmethod
    def make(cls, context: RankContext) -> "TextCollector":
        """Return the collector of a rank, in environments that it makes. Raises ConfigError as `of_config` does."""
        turns = make_turns(
            context.env_config,
            context.env_indices,
            context.group.rank,
            context.env_timeout_s,
            context.max_restarts,
        )
        assert isinstance(context.model, TokenActorCritic)
        return cls.of_config(
            context.config, turns, context.model, first_env=context.env_indices.start, device=context.device
        )

    @staticmethod
    def check(config: Config, shape: BatchShape) -> None:
        """Raise ConfigError where episodes leave nothing to type, or are too few for minibatches."""
        ppo, model = config.ppo, text_settings(config.model)
        if model.obs_tokens >= ppo.rollout_steps:
            raise ConfigError(
                f"model.obs_tokens={model.obs_tokens} with ppo.rollout_steps={ppo.rollout_steps}, the tokens of an "
                "episode: a prompt may leave none to type: use a ppo.rollout_steps of at least "
                f"{model.obs_tokens + model.turn_tokens}, or a smaller model.obs_tokens"
            )
        if shape.num_minibatches > shape.num_envs:
            raise ConfigError(
                f"ppo.num_minibatches={shape.num_minibatches} exceeds the {shape.num_envs} episodes of an iteration, "
                f"of which minibatches are made with {config.env.id}, of text: use at most {shape.num_envs}"
            )

    @classmethod
    def of_config(
        cls, config: Config, turns: Turns, model: TokenActorCritic, *, first_env: int, device: torch.device
    ) -> "TextCollector":
        """Return the collector of these environments, the first of which has the global index `first_env`.

        Raises ConfigError where episodes would be longer than the model can read.
        """
        num_tokens, most = config.ppo.rollout_steps, model.most_tokens
        if most is not None and num_tokens >= most:  # the value behind the last token is that of another
            raise ConfigError(
                f"ppo.rollout_steps={num_tokens}, the tokens of an episode: the model knows {most} positions: use a "
                f"ppo.rollout_steps of at most {most - 1}"
            )
        wait_ms = config.env.batch_wait_ms
        return cls(
            turns,
            model,
            make_tokenizer(turns.spec, config.model),
            num_tokens=num_tokens,
            first_env=first_env,
            device=device,
            dtype=getattr(torch, config.dtype),
            wait_s=None if wait_ms is None else wait_ms / 1000,
            max_turns=config.env.max_turns,
            top_p=text_settings(config.model).top_p,
        )

    @property
    def env(self) -> Turns:
        return self.turns

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Have every environment begin the episode of the next `play`, from its own seed."""
        self._forget()
        self._began_from = list(zip(seeds, options or [{}] * len(seeds), strict=True))
        for i, (seed, option) in enumerate(self._began_from):
            self.turns.begin(i, seed, option)

    def collect(self, noise: np.ndarray | None) -> tuple[Rollout, list[FinishedEpisode]]:
        """Play all episodes as `play` does; return them with what learning needs of every token."""
        episodes = self.play(noise)
        return self._record.rollout(self.model, self.device, self.dtype), episodes

    def play(self, noise: np.ndarray | None) -> list[FinishedEpisode]:
        """Play all episodes with noise `[L, E, num_noise]`, or without by the likeliest tokens.

        Returns those that did not fail. Raises EnvError as `Turns.ready` does.
        """
        drawn = None if noise is None else torch.from_numpy(noise).to(self.dtype)
        self._cache = self.model.cache(self.turns.num_envs, self.num_tokens)
        began = time.perf_counter()
        while answers := self.turns.ready(self.wait_s):
            self._t_waited += time.perf_counter() - began
            waiting = [turn.env for turn in answers if self._is_heard(turn)]
            if waiting:
                self._type(np.array(sorted(waiting)), drawn)
            began = time.perf_counter()
        del self._cache
        return self._record.episodes(self.first_env)

    @property
    def achieved(self) -> np.ndarray:
        """Whether the episodes just played achieved their tasks `[E]`, 1 or 0; NaN where that is not known."""
        return self._record.achieved

    def measured(self) -> dict[str, float]:
        """Return what the last `play` took, by names of TOPOLOGY_METRICS."""
        num_tokens, seconds = int(self._record.own.sum()), self._t_typed
        return {
            "rollout/inference_batch": num_tokens / max(self._num_forwards, 1),
            "rollout/turns": float(self._num_turns.sum()),
            "rollout/tokens_per_s": num_tokens / seconds if seconds else 0.0,
            "rollout/t_generate": seconds,
            "rollout/t_answers": self._t_waited,
        }

    def _forget(self) -> None:
        num_envs = self.turns.num_envs
        self._record = EpisodeRecord(self.num_tokens, num_envs, self.tokenizer.pad)
        self._dialogues: list[Dialogue | None] = [None] * num_envs
        self._num_read = np.zeros(num_envs, np.int64)  # tokens that the model remembers
        self._num_turns = np.zeros(num_envs, np.int64)
        self._num_forwards, self._t_typed, self._t_waited = 0, 0.0, 0.0

    def _is_heard(self, turn: Turn) -> bool:
        """Record what an environment answered; return whether it is the policy's turn."""
        record, i, dialogue = self._record, turn.env, self._dialogues[turn.env]
        if turn.failed:
            record.failed[i] = True
            return False
        self._num_turns[i] += dialogue is not None
        if (is_success := turn.info.get("is_success")) is not None:
            if isinstance(is_success, str) or not 0 <= is_success <= 1:
                said = f'{is_success!r} as info["is_success"]'
                raise self._wrong(turn, said, "it says whether the task is achieved, so return True or False")
            record.achieved[i] = float(is_success)
        if dialogue is None:
            self._dialogues[i] = dialogue = self.tokenizer.begin(turn.obs)
            if not record.read(i, dialogue.prompt_tokens):
                raise TrainingError(
                    f"{self.turns.names(i)}: its tokenizer made a prompt of {len(dialogue.prompt_tokens)} tokens, and "
                    f"ppo.rollout_steps={self.num_tokens} leaves none to type: have it keep to model.obs_tokens, or "
                    "set a larger ppo.rollout_steps"
                )
            return True
        row = record.last[i]
        if not abs(turn.reward) <= torch.finfo(self.dtype).max:  # nor is NaN
            more = f", more than {self.dtype} holds," if math.isfinite(turn.reward) else ""
            remedy = (
                "nothing can be learned from it; mend the task, or wrap it so that it returns finite numbers"
            )
            raise self._wrong(turn, f"{turn.reward:g}{more} as the reward", remedy)
        record.rewards[row, i] = turn.reward
        if turn.terminated:
            record.terminated[row, i] = True
            return False
        goes_on = record.read(i, dialogue.observe(turn.obs))
        record.truncated[row, i] = turn.truncated or not goes_on or self._num_turns[i] == self.max_turns
        return not record.truncated[row, i]

    def _wrong(self, turn: Turn, found: str, remedy: str) -> EnvOutputError:
        seed, options = self._began_from[turn.env]
        task = f" of the task {options['task']}" if "task" in options else ""
        return EnvOutputError(
            f"{self.turns.names(turn.env)} returned {found} in turn {self._num_turns[turn.env]} of the episode{task} "
            f"from seed {seed}: {remedy}"
        )

    @torch.inference_mode()
    def _type(self, envs: np.ndarray, noise: torch.Tensor | None) -> None:
        """Generate the turns of these environments; each environment steps as soon as its turn is over."""
        began, record = time.perf_counter(), self._record
        while len(envs):
            allowed = np.array([self._dialogue(i).allowed() for i in envs])
            chosen, allowed = self._chosen(self._read(envs), allowed, noise, envs)
            record.typed(envs, chosen, allowed)
            going_on = []
            for i, token in zip(envs.tolist(), chosen.tolist(), strict=True):
                dialogue = self._dialogue(i)
                dialogue.push(token)
                if dialogue.is_over:
                    self.turns.act(i, dialogue.action())
                elif record.is_full(i):
                    record.truncated[record.last[i], i] = True
                else:
                    going_on.append(i)
            envs = np.array(going_on, np.int64)
        self._t_typed += time.perf_counter() - began

    def _dialogue(self, env: int) -> Dialogue:
        dialogue = self._dialogues[env]
        assert dialogue is not None, f"environment {env} has no prompt"
        return dialogue

    def _read(self, envs: np.ndarray) -> torch.Tensor:
        """Have the model read what it has not yet; return action parameters `[n, V]` of what follows."""
        counts = self._record.lengths[envs] - self._num_read[envs]
        columns = self._num_read[envs, None] + np.arange(counts.max())
        tokens = self._record.tokens[envs[:, None], columns.clip(max=self.num_tokens)]
        self._num_read[envs] += counts
        self._num_forwards += 1
        return self._cache.extend(envs, tokens, counts)

    def _chosen(
        self, params: torch.Tensor, allowed: np.ndarray, noise: torch.Tensor | None, envs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next tokens `[n]`, and what they were chosen from `[n, V]`: grammar and nucleus."""
        if self.top_p < 1.0 and noise is not None:
            allowed = nucleus(params.numpy(force=True), allowed, self.top_p)
        policy = self.model.distribution(params, torch.from_numpy(allowed).to(self.device))
        if noise is None:
            return policy.mode().numpy(force=True), allowed
        return policy.sample(noise[self._record.lengths[envs] - 1, envs]).numpy(), allowed


def nucleus(logits: np.ndarray, allowed: np.ndarray, top_p: float) -> np.ndarray:
    """Return which of the allowed choices `[n, V]` bool are the likeliest whose probabilities reach top_p.

    p = softmax of the logits `[n, V]` of what is allowed. A choice is in if all likelier choices together have a
    probability below top_p; so the likeliest choice is in, and choices of equal probability are in or out together.
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
    """
    masked = np.where(allowed, logits, -np.inf)
    p = np.exp(masked - masked.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    ordered = -np.sort(-p, axis=-1)
    likelier = np.cumsum(ordered, axis=-1) - ordered
    least = np.where(likelier < top_p, ordered, np.inf).min(axis=-1, keepdims=True)
    return allowed & (p >= least)
