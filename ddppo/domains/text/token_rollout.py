"""From typed tokens to minibatches, for tasks of text.

`EpisodeRecord` collects the tokens of an iteration's episodes and turns them into a `Rollout`; `TokenMinibatches`
cuts that rollout into minibatches of whole episodes.

Index convention: row l of a rollout is the decision after tokens 0 to l. Its action is the token at position l + 1.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from ddppo.domains.text.policy import TokenActorCritic
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.minibatches import Minibatch, fields_of
from ddppo.ppo.rollout import ENDS, FinishedEpisode, Rollout

# They bound the memory of a forward pass over whole episodes. Results differ by rounding alone.
_TOKENS_PER_FORWARD = 2**15
_LOGITS_PER_FORWARD = 2**26


class EpisodeRecord:
    """The tokens of E episodes, each of L + 1 tokens at most."""

    def __init__(self, num_tokens: int, num_envs: int, pad: int) -> None:
        self.tokens = np.full((num_envs, num_tokens + 1), pad, np.int64)  # `pad` behind the end of an episode
        self.lengths = np.zeros(num_envs, np.int64)
        self.own = np.zeros((num_tokens, num_envs), bool)  # rows with a token that the policy typed
        self.last = np.full(num_envs, -1)  # the last own row, -1 before the first
        self.allowed: np.ndarray | None = (
            None  # [L, E, V] bool: the mask of each token; None while no token is masked
        )
        self.rewards = np.zeros((num_tokens, num_envs))
        self.terminated = np.zeros((num_tokens, num_envs), bool)
        self.truncated = np.zeros((num_tokens, num_envs), bool)
        self.ended_by: list[str | None] = [
            None
        ] * num_envs  # one of ENDS; None while the episode is under way
        self.parts: list[dict[str, float]] = [
            {} for _ in range(num_envs)
        ]  # of rewards, summed over the episode
        self.tool_failures = np.zeros(num_envs, np.int64)
        self.tells_failures = np.zeros(num_envs, bool)  # whether the task says if a tool failed
        self.achieved = np.full(num_envs, np.nan)  # 1 or 0; NaN until the environment reports it

    @property
    def failed(self) -> np.ndarray:
        """Whether each episode failed `[E]`."""
        return np.array([word == "failed" for word in self.ended_by])

    def end(self, env: int, ended_by: str) -> None:
        """End an episode by one of ENDS: the flag of its last own row, if it has one, says whether it was truncated."""
        self.ended_by[env] = ended_by
        if (row := self.last[env]) >= 0 and ended_by != "failed":
            flags = self.terminated if ended_by == "terminated" else self.truncated
            flags[row, env] = True

    def room(self, env: int) -> int:
        """Return how many tokens the row still holds."""
        return int(self.tokens.shape[1] - self.lengths[env])

    def is_full(self, env: int) -> bool:
        """Return whether there is no room for another token."""
        return self.room(env) == 0

    def read(self, env: int, tokens: list[int]) -> bool:
        """Append tokens of the environment, cut to the room that is left; return whether the policy can still type."""
        start = self.lengths[env]
        end = min(start + len(tokens), self.tokens.shape[1])
        self.tokens[env, start:end] = tokens[: end - start]
        self.lengths[env] = end
        return not self.is_full(env)

    def typed(self, envs: np.ndarray, tokens: np.ndarray, allowed: np.ndarray | None) -> None:
        """Append the token that the policy typed in each environment.

        Args:
            envs: indices of the environments `[n]`.
            tokens: the typed tokens `[n]`.
            allowed: the masks `[n, V]` that they were chosen from; None for all tokens.
        """
        rows = self.lengths[envs] - 1
        # The array of masks is V times as large as the tokens: allocate it only if a grammar or a nucleus forbids any.
        if self.allowed is None and allowed is not None and not allowed.all():
            self.allowed = np.ones((*self.own.shape, allowed.shape[1]), bool)
        if self.allowed is not None:
            self.allowed[rows, envs] = True if allowed is None else allowed
        self.tokens[envs, rows + 1] = tokens
        self.own[rows, envs] = True
        self.last[envs] = rows
        self.lengths[envs] += 1

    def episodes(self, first_env: int) -> list[FinishedEpisode]:
        """Return the episodes that did not fail. Their length counts the tokens that the policy typed."""
        found = []
        for env in np.flatnonzero(~self.failed).tolist():
            total, length = float(self.rewards[:, env].sum()), int(self.own[:, env].sum())
            found.append(FinishedEpisode(int(self.last[env]), first_env + env, total, length))
        return sorted(found, key=lambda episode: (episode.step, episode.env_index))

    @torch.no_grad()
    def rollout(self, model: TokenActorCritic, device: torch.device, dtype: torch.dtype) -> Rollout:
        """Return the episodes as a rollout.

        Log-probabilities and values are computed from whole episodes, exactly as the learner will compute them, and not
        from the cache of acting: the first ratio of an update is 1, and differences of rounding do not enter it.
        """
        # 1. A token counts if the policy typed it and its episode did not fail.
        valid = self.own & ~self.failed
        tokens = torch.from_numpy(self.tokens).to(device)
        allowed = None if self.allowed is None else torch.from_numpy(self.allowed).to(device)
        own = torch.from_numpy(valid).to(device)
        # 2. Evaluate the model once over all episodes.
        logprobs, values = self._evaluate(model, tokens, own, allowed, dtype)
        # 3. Flags: an episode starts at its first own row.
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
            # V of the policy's next own token, which may lie many rows further on, behind an answer.
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
            ended_by=torch.tensor(
                [ENDS.index(word or "failed") for word in self.ended_by], dtype=torch.int8
            ).to(device),
        )

    def _evaluate(
        self,
        model: TokenActorCritic,
        tokens: torch.Tensor,
        own: torch.Tensor,
        allowed: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities `[L, E]` of own tokens, and values `[L + 1, E]` of own rows and of last tokens.

        All other entries are 0.
        """
        num_rows, num_envs = own.shape
        logprobs = torch.zeros(num_rows, num_envs, dtype=dtype, device=own.device)
        values = torch.zeros(num_rows + 1, num_envs, dtype=dtype, device=own.device)
        length = int(self.lengths.max(initial=1))
        actions = torch.nn.functional.pad(tokens[:, 1:], (0, 1))
        # Select the positions to evaluate: own rows, and the last token of each episode: its value bootstraps the
        # return of a truncated episode. Prompts and answers need no output of the model's heads.
        typed = torch.nn.functional.pad(own, (0, 0, 0, 1))  # [L + 1, E], as values are
        selected = typed[:length].T.contiguous()  # [L + 1, E] -> [E, length]
        selected[range(num_envs), (self.lengths - 1).clip(min=0)] = True
        # Evaluate some episodes at a time, to bound memory.
        most_selected = int(selected.sum(dim=1).max())
        most = min(_TOKENS_PER_FORWARD // length, _LOGITS_PER_FORWARD // (most_selected * model.num_params))
        for envs in torch.arange(num_envs, device=own.device).split(max(1, most)):
            places = selected[envs].flatten().nonzero().squeeze(1)
            params, found_values = model.at_own(tokens[envs, :length], actions[envs, :length], places)
            columns, steps = envs[places // length], places % length
            values[steps, columns] = found_values
            # Last tokens have a value and no log-probability.
            is_typed = typed[steps, columns]
            steps, columns = steps[is_typed], columns[is_typed]
            mask = None if allowed is None else allowed[steps, columns]
            policy = model.distribution(params[is_typed], mask)
            logprobs[steps, columns] = policy.log_prob(actions[columns, steps])
        return logprobs, values

    def _next_rows(self) -> np.ndarray:
        """Return, for each row `[L, E]`, the row of the next value of its environment.

        That is the next own row. Behind the last own row it is the row of the episode's last token: its value
        bootstraps the return of a truncated episode.
        """
        num_rows = len(self.own)
        ends = np.maximum(self.lengths - 1, 0)
        # A running minimum from the end: the nearest own row at or behind each row, num_rows if there is none.
        later = np.where(self.own, np.arange(num_rows)[:, None], num_rows)
        nearest = np.minimum.accumulate(later[::-1], axis=0)[::-1]
        after = np.concatenate([nearest[1:], np.full((1, len(ends)), num_rows)])
        return np.where(after == num_rows, ends, after)


class TokenMinibatches:
    """Minibatches of whole episodes.

    A minibatch holds the own rows of some episodes, flattened to samples. Its "inputs" are the arguments of
    `TokenActorCritic.at_own`: obs and actions `[m, L]` of these episodes, cut behind the last own row, and the places
    of own rows among the m * L.
    """

    def __init__(self, rollout: Rollout, estimates: Estimates) -> None:
        fields = fields_of(rollout, estimates)
        self.fields = {name: x.transpose(0, 1) for name, x in fields.items()}  # [T, E, ...] -> [E, T, ...]

    def minibatches(self, order: torch.Tensor, bounds: list[int]) -> Iterator[Minibatch]:
        """Yield the episodes in `order` `[n]`, cut at `bounds`."""
        for start, end in itertools.pairwise(bounds):
            # A rank without an episode in this minibatch still runs the model, on an episode with all samples left
            # out: the other ranks wait for its gradient.
            yield self._minibatch(
                order[start:end] if end > start else order.new_zeros(1), is_empty=end == start
            )

    def _minibatch(self, chosen: torch.Tensor, *, is_empty: bool) -> Minibatch:
        is_own = self.fields["weights"][chosen] > 0
        if is_empty:
            is_own = torch.zeros_like(is_own)
        # Cut the padding: no token behind the last own row can change the outputs of a causal model.
        length = int(is_own.any(dim=0).nonzero().max()) + 1 if is_own.any() else 1
        own = is_own[:, :length].flatten().nonzero().squeeze(1)
        minibatch = {name: x[chosen, :length] for name, x in self.fields.items()}
        inputs = (minibatch.pop("obs"), minibatch["actions"], own)
        samples = {name: x.flatten(0, 1)[own] for name, x in minibatch.items()}
        places = chosen[own // length], own % length
        return {**samples, "inputs": inputs, "places": places}
