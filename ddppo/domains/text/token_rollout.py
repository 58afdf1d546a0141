"""The tokens of whole episodes, the rollout that is made of them, and its minibatches."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from ddppo.domains.text.policy import TokenActorCritic
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.minibatches import Minibatch, fields_of
from ddppo.ppo.rollout import FinishedEpisode, Rollout

_TOKENS = 2**15  # of one forward pass over whole rows; they bound memory, not results


class EpisodeRecord:
    """The tokens of E episodes, L + 1 at most. Row l describes the token at position l + 1, chosen after tokens 0 to l.

    tokens `[E, L + 1]`, with pad behind `lengths` `[E]`. own `[L, E]`: rows whose token the policy typed. last `[E]`:
    the last own row, -1 before the first. allowed `[L, E, V]`: the tokens allowed there, None while all were. achieved
    `[E]`: 1 or 0, NaN until the environment says.
    """

    def __init__(self, num_tokens: int, num_envs: int, pad: int) -> None:
        self.tokens = np.full((num_envs, num_tokens + 1), pad, np.int64)
        self.lengths = np.zeros(num_envs, np.int64)
        self.own = np.zeros((num_tokens, num_envs), bool)
        self.last = np.full(num_envs, -1)
        self.allowed: np.ndarray | None = None
        self.rewards = np.zeros((num_tokens, num_envs))
        self.terminated = np.zeros((num_tokens, num_envs), bool)
        self.truncated = np.zeros((num_tokens, num_envs), bool)
        self.failed = np.zeros(num_envs, bool)
        self.achieved = np.full(num_envs, np.nan)

    def is_full(self, env: int) -> bool:
        """Return whether no token can follow."""
        return bool(self.lengths[env] == self.tokens.shape[1])

    def read(self, env: int, tokens: list[int]) -> bool:
        """Append tokens that the policy is given, as many as there is room for; return whether it can type another."""
        start = self.lengths[env]
        end = min(start + len(tokens), self.tokens.shape[1])
        self.tokens[env, start:end] = tokens[: end - start]
        self.lengths[env] = end
        return not self.is_full(env)

    def typed(self, envs: np.ndarray, tokens: np.ndarray, allowed: np.ndarray) -> None:
        """Append to each environment of `[n]` the token `[n]` that the policy typed, one of `[n, V]` allowed."""
        rows = self.lengths[envs] - 1
        if self.allowed is None and not allowed.all():
            self.allowed = np.ones((*self.own.shape, allowed.shape[1]), bool)
        if self.allowed is not None:
            self.allowed[rows, envs] = allowed
        self.tokens[envs, rows + 1] = tokens
        self.own[rows, envs] = True
        self.last[envs] = rows
        self.lengths[envs] += 1

    def episodes(self, first_env: int) -> list[FinishedEpisode]:
        """Return the episodes that did not fail; their length is in tokens that the policy typed."""
        found = []
        for env in np.flatnonzero(~self.failed).tolist():
            total, length = float(self.rewards[:, env].sum()), int(self.own[:, env].sum())
            found.append(FinishedEpisode(int(self.last[env]), first_env + env, total, length))
        return sorted(found, key=lambda episode: (episode.step, episode.env_index))

    @torch.no_grad()
    def rollout(self, model: TokenActorCritic, device: torch.device, dtype: torch.dtype) -> Rollout:
        """Return the episodes with log-probabilities and values from the whole of each, as learning computes them."""
        valid = self.own & ~self.failed
        tokens = torch.from_numpy(self.tokens).to(device)
        allowed = None if self.allowed is None else torch.from_numpy(self.allowed).to(device)
        own = torch.from_numpy(valid).to(device)
        logprobs, values = self._computed(model, tokens, own, allowed, dtype)
        starts = np.zeros_like(valid)
        starts[np.argmax(valid, axis=0), np.arange(len(self.last))] = True
        flags = (self.terminated & valid, self.truncated & valid, starts & valid)
        terminated, truncated, episode_start = (torch.from_numpy(flag).to(device) for flag in flags)
        obs = tokens[:, :-1].T  # [E, L] -> [L, E]
        return Rollout(
            obs=obs,
            actions=tokens[:, 1:].T,
            logprobs=logprobs,
            values=values[:-1] * own,
            next_values=values.gather(0, torch.from_numpy(self._next_rows()).to(device)) * own,
            rewards=torch.from_numpy(np.where(valid, self.rewards, 0.0)).to(device),
            terminated=terminated,
            truncated=truncated,
            valid=own,
            episode_start=episode_start,
            action_mask=allowed,
            raw_obs=obs,
            has_gaps=True,
            achieved=torch.from_numpy(np.where(self.failed, np.nan, self.achieved)).to(device, dtype),
        )

    def _computed(
        self,
        model: TokenActorCritic,
        tokens: torch.Tensor,
        own: torch.Tensor,
        allowed: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities `[L, E]` of own tokens and values `[L + 1, E]` there and at the last; else 0."""
        num_rows, num_envs = own.shape
        logprobs = torch.zeros(num_rows, num_envs, dtype=dtype, device=own.device)
        values = torch.zeros(num_rows + 1, num_envs, dtype=dtype, device=own.device)
        length = int(self.lengths.max(initial=1))
        actions = torch.nn.functional.pad(tokens[:, 1:], (0, 1))
        typed = torch.nn.functional.pad(own, (0, 0, 0, 1))  # [L + 1, E], as values are
        asked = typed[:length].T.contiguous()  # [L + 1, E] -> [E, length]
        asked[range(num_envs), (self.lengths - 1).clip(min=0)] = True
        for envs in torch.arange(num_envs, device=own.device).split(max(1, _TOKENS // length)):
            places = asked[envs].flatten().nonzero().squeeze(1)
            params, of_places = model.at_own(tokens[envs, :length], actions[envs, :length], places)
            columns, steps = envs[places // length], places % length
            values[steps, columns] = of_places
            is_typed = typed[steps, columns]
            steps, columns = steps[is_typed], columns[is_typed]
            mask = None if allowed is None else allowed[steps, columns]
            policy = model.distribution(params[is_typed], mask)
            logprobs[steps, columns] = policy.log_prob(actions[columns, steps])
        return logprobs, values

    def _next_rows(self) -> np.ndarray:
        """Return for each row `[L, E]` the next own one of its environment; behind the last, that of the last token.

        Its value is what a truncated episode would have been worth.
        """
        num_rows = len(self.own)
        ends = np.maximum(self.lengths - 1, 0)
        later = np.where(self.own, np.arange(num_rows)[:, None], num_rows)
        nearest = np.minimum.accumulate(later[::-1], axis=0)[::-1]  # from this row on
        after = np.concatenate([nearest[1:], np.full((1, len(ends)), num_rows)])
        return np.where(after == num_rows, ends, after)


class TokenMinibatches:
    """Minibatches of whole episodes: `fields` `[E, T, ...]`.

    A minibatch holds the policy's own rows of some episodes, flattened to samples. Its "inputs" are the obs and actions
    `[m, L]` that a model reads to say something of row l, up to the last own one, and the places of own ones among the
    m * L.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates) -> None:
        fields = fields_of(rollout, estimates)
        self.fields = {name: x.transpose(0, 1) for name, x in fields.items()}  # [T, E, ...] -> [E, T, ...]

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterator[Minibatch]:
        """Yield the sequences in `order` `[n]`, cut at `bounds`."""
        for start, end in itertools.pairwise(bounds):
            # A model is asked for something even where no sequence is here, for other ranks wait for its gradient.
            yield self._minibatch(
                order[start:end] if end > start else order.new_zeros(1), is_empty=end == start
            )

    def _minibatch(self, chosen: torch.Tensor, *, is_empty: bool) -> Minibatch:
        is_own = self.fields["weights"][chosen] > 0
        if is_empty:
            is_own = torch.zeros_like(is_own)
        length = int(is_own.any(dim=0).nonzero().max()) + 1 if is_own.any() else 1
        own = is_own[:, :length].flatten().nonzero().squeeze(1)
        minibatch = {name: x[chosen, :length] for name, x in self.fields.items()}
        inputs = (minibatch.pop("obs"), minibatch["actions"], own)
        samples = {name: x.flatten(0, 1)[own] for name, x in minibatch.items()}
        places = chosen[own // length], own % length
        return {**samples, "inputs": inputs, "places": places}
