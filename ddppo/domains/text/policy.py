"""What a policy over tokens is, for models of one's own too, and how it is tried before a run.

`TokenActorCritic` names what the core uses with such a model: its collector, its minibatches and this trial.
"""

import abc
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

import numpy as np
import torch

from ddppo.config.model_settings import ModelSettings
from ddppo.domains.text.settings import TextSettings
from ddppo.domains.text.tokenizers import make_tokenizer
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.models.model_check import ModelCheck, rounding
from ddppo.spaces import EnvSpec

_LENGTH, _LONGEST_PROMPT, _WINDOW = 14, 8, 4  # of the trial


class TokenCache(Protocol):
    """What a model remembers of E rows of tokens, each of its own length, so that it need not read them again."""

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Append counts[i] of tokens[i] `[k]` to row rows[i], ascending; return params `[n, P]` of what follows."""
        ...


class TokenActorCritic(ActorCritic):
    """An actor-critic over tokens, for tasks of text.

    obs of learning are the tokens of whole episodes, `[m, L]` int64 with pad behind their ends, and row l of
    `evaluate_actions(obs, actions)`, action parameters `[m * L, P]` and values `[m * L]`, belongs to the
    token that follows l.
    most_tokens: a row may have; None for any number.
    """

    Settings = TextSettings
    collector_class = "ddppo.domains.text.collector:TextCollector"
    minibatch_class = "ddppo.domains.text.token_rollout:TokenMinibatches"
    check_class = "ddppo.domains.text.policy:TokenModelCheck"
    takes_text = True
    stays_eager = "episodes are of other lengths in every minibatch"
    most_tokens: int | None = None

    @abc.abstractmethod
    def cache(self, num_rows: int, num_tokens: int) -> TokenCache:
        """Return the memory of as many rows, empty, of as many tokens each at most, to type in."""

    def at_own(self, obs: Obs, actions: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows `own` `[k]` of `evaluate_actions`; a model may leave out what others cost."""
        params, values = self.evaluate_actions(obs, actions)
        return params[own], values[own]

    def evaluate_minibatch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.at_own(*inputs)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        return self(obs)[1]

    def narrowed(self, num_tokens: int) -> AbstractContextManager[None]:
        """Return a context in which tokens see at most as many back, in layers that have a limit.

        A model is tried before a run in rows of a few tokens: without this they would never reach such a limit.
        """
        return nullcontext()


class TokenModelCheck(ModelCheck):
    """One model over tokens; what it is tried on are random tokens, 14 in a row.

    They are read in parts as acting reads them: prompts and answers of other lengths in each row. A row that is some
    tokens shorter than another must not notice, not even a layer that sees only the last 4.
    """

    model: TokenActorCritic

    def __init__(self, model: TokenActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__(model, spec, config)
        self.tokenizer = make_tokenizer(spec, config)
        self.brings_own_policy = False  # what it brings is tried with the outputs

    def check_outputs(self, size: int) -> None:
        """Learn from `size` rows, read the same in parts, and compare."""
        with self.model.narrowed(_WINDOW):
            self._check_rows(self._obs(size), size)

    def _check_rows(self, tokens: torch.Tensor, size: int) -> None:
        params, values = self._alone(tokens)
        if self.num_params != self.tokenizer.size:
            raise self.fails(
                "num_params",
                f"is {self.num_params}, but there are {self.tokenizer.size} tokens: a logit of each is needed",
            )
        noise = torch.rand(*params.shape[:2], self.model.num_noise, dtype=params.dtype)
        policy = self._policy(params.detach())
        drawn = self._call_or_fail("distribution(...).sample", lambda: policy.sample(noise))
        logprobs = self._call_or_fail(
            "distribution(...).log_prob", lambda: policy.log_prob(drawn.to(params.device))
        )
        if logprobs.shape != (size, _LENGTH):
            raise self.fails(
                "distribution(...).log_prob",
                f"returned {list(logprobs.shape)} for parameters {list(params.shape)}: it must be [{size}, {_LENGTH}]",
            )
        if self._is_repeatable(tokens):
            self._check_cache(tokens, params)
            self._check_own(tokens, params, values)

    def _check_own(self, tokens: torch.Tensor, params: torch.Tensor, values: torch.Tensor) -> None:
        """See that rows asked for by themselves, as learning does, are those of all."""
        own = torch.arange(1, tokens.numel(), 3, device=tokens.device)
        found = self._call_or_fail("at_own", lambda: self.model.at_own(tokens, self._actions(tokens), own))
        for x, whole in zip(found, (params, values), strict=True):
            wanted = whole.flatten(0, 1)[own]
            close = rounding(wanted)
            if x.shape != wanted.shape or not torch.allclose(x, wanted, rtol=close, atol=close):
                raise self.fails(
                    "at_own", f"returned {list(x.shape)} other than rows {own[:3].tolist()}, ... of at"
                )

    def _check_cache(self, tokens: torch.Tensor, params: torch.Tensor) -> None:
        size, given = len(tokens), tokens.numpy(force=True)
        lengths, rounds = np.zeros(size, np.int64), 0
        with torch.inference_mode():
            cache = self._call_or_fail("cache", lambda: self.model.cache(size, _LENGTH))
            while (lengths < _LENGTH).any():
                # Prompts of 1 to 8 tokens; then each row goes on in two rounds of three, by 1 or 2 tokens.
                rows = np.arange(size)
                counts = 1 + (3 * rows) % _LONGEST_PROMPT if rounds == 0 else 1 + (rows + rounds) % 2
                goes_on = (lengths < _LENGTH) & ((rounds == 0) | ((rows + rounds) % 3 > 0))
                rows, counts = rows[goes_on], np.minimum(counts, _LENGTH - lengths)[goes_on]
                rounds += 1
                if len(rows) == 0:
                    continue
                columns = lengths[rows, None] + np.arange(counts.max())
                part = given[rows[:, None], columns.clip(max=_LENGTH - 1)]
                lengths[rows] += counts
                read = partial(cache.extend, rows, part, counts)
                ends = torch.from_numpy(lengths[rows] - 1).to(params.device)
                wanted = params[torch.from_numpy(rows).to(params.device), ends]
                self._check_typed(self._call_or_fail("cache(...).extend", read), wanted)

    def _check_typed(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        said = "returned action parameters"
        if found.shape != wanted.shape:
            shapes = f"{list(found.shape)}: they must be {list(wanted.shape)}"
            raise self.fails("cache(...).extend", f"{said} {shapes}")
        close = rounding(found)
        if not torch.allclose(found, wanted, rtol=close, atol=close):
            off = (found - wanted).abs().max().item()
            raise self.fails(
                "cache(...).extend",
                f"{said} that differ by {off:.2g} from those that at returned for the whole row: what is typed must be "
                "what is learned, and depend on nothing that follows",
            )

    def _alone(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(obs, torch.Tensor)
        size, num_rows = len(obs), obs.numel()
        both = self._call("evaluate_actions", obs, self._actions(obs))
        if not (isinstance(both, tuple) and len(both) == 2):
            raise self.fails(
                "evaluate_actions",
                "must return two, action parameters of every token and values of every token",
            )
        params, values = both
        self._check_tensor("evaluate_actions", "action parameters", params, obs, (num_rows, self.num_params))
        self._check_tensor("evaluate_actions", "values", values, obs, (num_rows,))
        return params.unflatten(0, (size, _LENGTH)), values.unflatten(0, (size, _LENGTH))

    def _obs(self, size: int) -> torch.Tensor:
        kept = [token for token in range(self.tokenizer.size) if token != self.tokenizer.pad]
        tokens = torch.tensor(kept)[torch.randint(len(kept), (size, _LENGTH))]
        return tokens.to(next(self.model.parameters()).device)

    def _actions(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, torch.Tensor)
        return obs.roll(-1, dims=1)
