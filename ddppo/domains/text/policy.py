"""The contract of a policy over tokens, and the checks that such a model passes before a run begins.

`TokenActorCritic` is the base class, also of your own models. It names the collector, the minibatches and the check
that the core uses with such a model. `TokenModelCheck` calls a model on random tokens, to find mistakes before training
does.
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
from ddppo.models.model_check import ModelCheck
from ddppo.spaces import EnvSpec

# Of the check: tokens of a row, tokens of a prompt at most, and the width of an attention window.
_LENGTH, _LONGEST_PROMPT, _WINDOW, _MOST_ROWS = 14, 8, 4, 8


class TokenCache(Protocol):
    """Keys and values of E rows of tokens, each of its own length, so that no token is read twice."""

    def extend(self, rows: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Append tokens to some rows; return the action parameters `[n, P]` of the token that follows in each.

        Args:
            rows: indices `[n]` of the rows, ascending.
            tokens: `[n, k]`, as many as the longest part has.
            counts: `[n]`; the first counts[i] of tokens[i] are appended to row rows[i], the others are padding.
        """
        ...


class TokenActorCritic(ActorCritic):
    """An actor-critic over tokens, for tasks of text.

    The learner calls `evaluate_actions(obs, actions)` with the tokens of whole episodes, `[m, L]` int64, padded behind
    their ends. It returns action parameters `[m * L, P]` and values `[m * L]`; row l is for the token behind token l.
    """

    Settings = TextSettings
    collector_class = "ddppo.domains.text.collector:TextCollector"
    minibatch_class = "ddppo.domains.text.token_rollout:TokenMinibatches"
    check_class = "ddppo.domains.text.policy:TokenModelCheck"
    rollout_writer_class = "ddppo.domains.text.rollouts:RolloutWriter"
    takes_text = True
    stays_eager = "episodes are of other lengths in every minibatch"
    most_tokens: int | None = None  # tokens of a row that the model can read; None: any number
    # `distribution` masks tokens that the tokenizer never allows, its attribute `typed`, so rollouts need not keep that
    # mask for each token: [L, E, V] would be the largest array of a run with a large vocabulary.
    masks_typed = False
    rounds_by: float = (
        0.0  # logits of acting and learning may differ by this share of their spread, and by rounding
    )

    @abc.abstractmethod
    def cache(self, num_rows: int, num_tokens: int) -> TokenCache:
        """Return an empty cache of `num_rows` rows of `num_tokens` tokens each at most."""

    def at_own(self, obs: Obs, actions: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows `own` `[k]` of `evaluate_actions`. A model may override it to skip all other rows."""
        params, values = self.evaluate_actions(obs, actions)
        return params[own], values[own]

    def evaluate_minibatch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.at_own(*inputs)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self(obs)[0]

    def value(self, obs: Obs) -> torch.Tensor:
        return self(obs)[1]

    def narrowed(self, num_tokens: int) -> AbstractContextManager[None]:
        """Return a context in which sliding-window layers see `num_tokens` tokens back at most.

        The check uses rows of a few tokens, which would never reach the window that such a layer has in training.
        """
        return nullcontext()


class TokenModelCheck(ModelCheck):
    """Calls a model over tokens on rows of 14 random tokens, and compares acting with learning.

    Acting reads a row in parts, prompts and answers of other lengths in each row; learning reads whole rows. Both must
    give the same parameters. In particular, the padding of a short row must not change its outputs, not even in a
    layer that sees only the last 4 tokens.
    """

    model: TokenActorCritic

    def __init__(self, model: TokenActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__(model, spec, config)
        self.tokenizer = make_tokenizer(spec, config)
        self.brings_own_policy = False  # a distribution of the model's own is checked in `_check_rows`

    def check_outputs(self, size: int) -> None:
        """Compare whole rows, as learning reads them, with the same rows read in parts.

        8 rows at most: a language model takes seconds for more, and has other lengths in these as well.
        """
        size = min(size, _MOST_ROWS)
        with self.model.narrowed(_WINDOW):
            self._check_rows(self._obs(size), size)

    def _check_rows(self, tokens: torch.Tensor, size: int) -> None:
        # 1. Shapes of outputs, and a logit for each token of the vocabulary.
        params, values = self._alone(tokens)
        if self.num_params != self.tokenizer.size:
            raise self.fails(
                "num_params",
                f"is {self.num_params}, but there are {self.tokenizer.size} tokens: a logit of each is needed",
            )
        # 2. The distribution can be sampled, and has the log-probability of each sample.
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
        # 3. Acting and learning agree. A model that returns other outputs at each call cannot be compared.
        if self._is_repeatable(tokens):
            self._check_cache(tokens, params)
            self._check_own(tokens, params, values)

    def _check_own(self, tokens: torch.Tensor, params: torch.Tensor, values: torch.Tensor) -> None:
        """Check that `at_own` returns the given rows of `evaluate_actions`."""
        # Every third row, counted through the batch.
        own = torch.arange(1, tokens.numel(), 3, device=tokens.device)
        found = self._call_or_fail("at_own", lambda: self.model.at_own(tokens, self._actions(tokens), own))
        for x, whole in zip(found, (params, values), strict=True):
            wanted = whole.flatten(0, 1)[own]
            close = self._close(wanted)
            if x.shape != wanted.shape or not torch.allclose(x, wanted, rtol=close, atol=close):
                raise self.fails(
                    "at_own",
                    f"returned {list(x.shape)} other than rows {own[:3].tolist()}, ... of evaluate_actions",
                )

    def _check_cache(self, tokens: torch.Tensor, params: torch.Tensor) -> None:
        # Read the rows in parts, and compare the parameters behind each part with those of the whole row.
        size, given = len(tokens), tokens.numpy(force=True)
        lengths, rounds = np.zeros(size, np.int64), 0
        with torch.inference_mode():
            cache = self._call_or_fail("cache", lambda: self.model.cache(size, _LENGTH))
            while (lengths < _LENGTH).any():
                # Prompts of 1 to 8 tokens; then each row grows in two rounds of three, by 1 or 2 tokens.
                rows = np.arange(size)
                counts = 1 + (3 * rows) % _LONGEST_PROMPT if rounds == 0 else 1 + (rows + rounds) % 2
                grows = (lengths < _LENGTH) & ((rounds == 0) | ((rows + rounds) % 3 > 0))
                rows, counts = rows[grows], np.minimum(counts, _LENGTH - lengths)[grows]
                rounds += 1
                if len(rows) == 0:
                    continue
                # The parts of these rows as one array, each padded to the longest with tokens that follow it.
                columns = lengths[rows, None] + np.arange(counts.max())
                part = given[rows[:, None], columns.clip(max=_LENGTH - 1)]
                lengths[rows] += counts
                read = partial(cache.extend, rows, part, counts)
                ends = torch.from_numpy(lengths[rows] - 1).to(params.device)
                wanted = params[torch.from_numpy(rows).to(params.device), ends]
                self._check_extended(self._call_or_fail("cache(...).extend", read), wanted)

    def _check_extended(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if found.shape != wanted.shape:
            raise self.fails(
                "cache(...).extend",
                f"returned action parameters {list(found.shape)}: they must be {list(wanted.shape)}",
            )
        close = self._close(wanted)
        if not torch.allclose(found, wanted, rtol=close, atol=close):
            off = (found - wanted).abs().max().item()
            raise self.fails(
                "cache(...).extend",
                f"returned action parameters that differ by {off:.2g} from those of evaluate_actions for the whole "
                "row: acting and learning must compute the same, and a token must not depend on later tokens",
            )

    def _close(self, x: torch.Tensor) -> float:
        return max(super()._close(x), self.model.rounds_by * float(x.detach().std()))

    def unused_parameters(self, size: int) -> list[str]:
        return super().unused_parameters(min(size, _MOST_ROWS))

    def _alone(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[m, L, P]` and values `[m, L]`, after checking their shapes."""
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
