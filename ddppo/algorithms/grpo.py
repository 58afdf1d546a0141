"""GRPO: advantages relative to a group of rollouts of one task, instead of a value function.

A group is several rollouts of one task from one seed. There are K groups over all ranks, numbered alike on every rank.
A rank holds n rollouts of at most T tokens each, which may belong to any groups. A token is one choice of the policy;
if the task has no text, it is an action.

    EpisodeCollector    collects one whole episode of each environment
    GroupRelative       estimates one advantage for each rollout from the returns of its group
    Reference           the policy that the run began with, for ppo.kl_coef
    GrpoLearner         the learner of PPO with these two
    GRPO                the algorithm, made of the above

Sources: GRPO, Shao et al. 2024, arXiv:2402.03300; Dr. GRPO, Liu et al. 2025, arXiv:2503.20783; DAPO, Yu et al. 2025,
arXiv:2503.14476; GSPO, Zheng et al. 2025, arXiv:2507.18071. The loss of a sample is in ppo/losses.py.
"""

from collections.abc import Callable

import numpy as np
import torch

from ddppo.algorithms.contract import Algorithm
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.envs.vec_env import End
from ddppo.errors import TrainingError
from ddppo.models.actor_critic import ActorCritic, EvaluateActions
from ddppo.models.distributions import ActionDistribution
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import GradientSync, Learner, Normalizers
from ddppo.ppo.losses import (
    Coefficients,
    PolicyLoss,
    cispo_loss,
    clipped_surrogate_loss,
    is_clipped,
    sequence_log_ratio,
)
from ddppo.ppo.minibatches import EpisodeBatch, Minibatch, MinibatchSource, outputs
from ddppo.ppo.normalization import Gather, merge_moments
from ddppo.ppo.rollout import CUTS, ENDS, FinishedEpisode, Rollout, Transitions
from ddppo.scaling import BatchShape
from ddppo.spaces import each

# -- Collecting whole episodes.


class EpisodeCollector(Collector):
    """Collects one episode of each environment, cut after T steps.

    All environments are stepped until the last episode is over. Rows after the end of an environment's own episode are
    not valid, and an episode of a lost process has no valid row. Values are 0: GRPO learns none.
    """

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Transitions, list[FinishedEpisode]]:
        self._begin(noise)
        ends: list[End] = []
        is_over = np.zeros(self.env.num_envs, dtype=bool)
        last = np.full(self.env.num_envs, self.rollout_steps - 1)  # row in which each episode ends
        try:
            for t in range(self.rollout_steps):
                self.acting.act(t)
                self._step(t, ends)
                # A lost life (Atari) ends an episode for learning only; the game goes on.
                ended = [i for i in _ended_in(t, ends) if (t, i) not in self._life_losses and not is_over[i]]
                is_over[ended], last[ended] = True, t
                if is_over.all():
                    break
        except Exception:  # NaN from an environment may be the cause: then `_check` raises a better error
            self._check(ends)
            raise
        self._check(ends)
        return self._finished(is_over, last, ends)

    def _finished(
        self, is_over: np.ndarray, last: np.ndarray, ends: list[End]
    ) -> tuple[Transitions, list[FinishedEpisode]]:
        """Return the rollout of episodes that end in rows `last` `[E]`, and the episodes that were not lost."""
        envs, is_within = np.arange(self.env.num_envs), np.arange(self.rollout_steps)[:, None] <= last
        terminated, truncated, valid, episode_start = self.flags
        # An episode is lost if its last row is a pseudo-step: the process was lost, and did not answer.
        is_lost = is_over & ~valid[last, envs]
        # Clear the flags of rows after the end, and of lost lives. An episode that is cut after T steps is truncated.
        for t, i in self._life_losses:
            terminated[t, i] = False
        terminated &= is_within
        truncated &= is_within
        truncated[last, envs] |= ~is_over
        valid &= is_within & ~is_lost
        episode_start[:] = False
        episode_start[0] = valid[0]
        rewards = np.where(valid, self.rewards, 0.0)
        episodes = [
            FinishedEpisode(
                int(last[i]), self.first_env + i, float(rewards[:, i].sum()), int(valid[:, i].sum())
            )
            for i in np.flatnonzero(~is_lost).tolist()
        ]
        episodes.sort(key=lambda e: (e.step, e.env_index))
        if self.by_algorithm is not None:
            final = self._final(_ends_of(is_over & ~is_lost, last, ends))
            return self.transitions(self.rollout_steps, final, torch.from_numpy(rewards)), episodes
        masks, _ = self._compute_logprobs(self.rollout_steps)
        no_values = torch.zeros_like(self.logprobs)
        flags = torch.from_numpy(self.flags).to(self.device)
        rollout = Rollout(
            obs=each(lambda x: x[:-1], self.obs),
            actions=self.actions,
            logprobs=self.logprobs,
            values=no_values,
            next_values=no_values,
            rewards=torch.from_numpy(rewards).to(self.device),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=masks,
            raw_obs=each(lambda x: x[:-1], self.raw_obs),
            ended_by=torch.from_numpy(_places(is_over, is_lost, terminated)).to(self.device),
        )
        return rollout, episodes


def _places(is_over: np.ndarray, is_lost: np.ndarray, terminated: np.ndarray) -> np.ndarray:
    """Return why each episode ended, `[E]` int8 places in ENDS. An episode that is not over was cut after T steps."""
    words = [(is_lost, "failed"), (~is_over, "tokens"), (terminated.any(axis=0), "terminated")]
    conditions, places = zip(*((which, ENDS.index(word)) for which, word in words), strict=True)
    return np.select(conditions, places, ENDS.index("time_limit")).astype(np.int8)


def _ended_in(t: int, ends: list[End]) -> list[int]:
    return ends[-1][1].tolist() if ends and ends[-1][0] == t else []


def _ends_of(is_whole: np.ndarray, last: np.ndarray, ends: list[End]) -> list[End]:
    """Return the ends of whole episodes in rows `last`: not those of later episodes, lost lives or lost processes."""
    own = [(t, envs, is_whole[envs] & (last[envs] == t), final_obs) for t, envs, final_obs in ends]
    return [(t, envs[of], each(lambda x, of=of: x[of], obs)) for t, envs, of, obs in own if of.any()]


# -- Advantages within groups.


_ROUNDING, _ROUNDING_FLOAT32 = 1e-12, 1e-6  # relative errors of a reward by rounding


def rounding_of_returns(rewards: torch.Tensor, unscaled: torch.Tensor) -> torch.Tensor:
    """Return a bound on the rounding error of each rollout's return, float64 `[n]`.

    rewards `[T, n]` float64: the summands, 0 in rows that are not valid. unscaled `[T, n]` float64: the rewards of the
    task, before scaling. A sum in float64 is wrong in its last digits. A reward that float32 can hold, and that is no
    whole number, was perhaps computed in float32, and is wrong in the last digits of float32.
    """
    is_float32 = (unscaled == unscaled.float()) & (unscaled != unscaled.round())
    return (rewards.abs() * torch.where(is_float32, _ROUNDING_FLOAT32, _ROUNDING)).sum(dim=0)


def group_statistics(
    returns: torch.Tensor, rounding: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """Return (count, mean, M2, min, max, rounding) of this rank's returns in each group, float64 `[6, K]`.

    returns, rounding, groups (numbers below K) and valid are `[n]`. A rollout that is not valid has failed, and counts
    in no group. M2 is the sum of squared deviations from the mean; rounding is the largest bound in the group. A group
    without rollouts on this rank has count 0, min inf, max -inf and rounding 0.
    """
    x, index = returns[valid].double(), groups[valid]
    zeros = x.new_zeros(num_groups)
    count = zeros.index_add(0, index, torch.ones_like(x))
    mean = zeros.index_add(0, index, x) / count.clamp(min=1)
    squares = zeros.index_add(0, index, (x - mean[index]).square())
    low = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, x, "amin")
    high = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, x, "amax")
    most = zeros.scatter_reduce(0, index, rounding[valid], "amax")
    return torch.stack([count, mean, squares, low, high, most])


def merge_group_statistics(parts: torch.Tensor) -> torch.Tensor:
    """Combine the statistics of W ranks, `[W, 6, K]`, into those of whole groups, `[6, K]`."""
    return torch.cat([merge_moments(parts[:, :3]), parts[:, 3:4].amin(dim=0), parts[:, 4:].amax(dim=0)])


def has_spread(merged: torch.Tensor) -> torch.Tensor:
    """Return for each group `[K]` bool whether its returns differ, by max - min > rounding.

    The same rewards at other steps add up to other last digits. Without the bound, dividing by such a deviation would
    turn rounding into advantages of +-1.
    """
    low, high, rounding = merged[3:]
    return high - low > rounding


def num_without_spread(merged: torch.Tensor) -> int:
    """Return the number of groups of equal returns, from which nothing can be learned."""
    return int(((merged[0] > 0) & ~has_spread(merged)).sum())


def group_advantages(
    returns: torch.Tensor,
    groups: torch.Tensor,
    valid: torch.Tensor,
    merged: torch.Tensor,
    *,
    scale_by: str = "group",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages `[n]` of this rank's rollouts, and `[n]` bool whether each is used; unused ones have 0.

    A_i = (r_i - mean(r)) / scale, with the mean over the group of i. Deviations are of the population, divided by n.
    scale_by is one of

    "group": scale = std(r) over the group of i (GRPO, section 4.1.2);
    "batch": scale = std(r) over the rollouts of all groups, which are not centred by group (Liu et al. 2025,
    arXiv:2508.08221, and TRL's scale_rewards="batch");
    "none": scale = 1 (Dr. GRPO, section 3: dividing favours tasks that are nearly always, or nearly never, achieved).

    Failed rollouts and groups without spread are not used. merged: statistics `[6, K]` of all ranks.
    """
    count, mean, squares, *_ = merged
    used = valid & has_spread(merged)[groups]
    advantages = returns.double() - mean[groups]
    if scale_by == "group":
        std = (squares / count.clamp(min=1)).sqrt()
        advantages = advantages / std[groups]
    elif scale_by == "batch":
        num, _, of_all = merge_moments(merged[:3].T.unsqueeze(2))  # [K, 3, 1] -> [3, 1]
        advantages = advantages / (of_all / num.clamp(min=1)).sqrt()
    else:
        assert scale_by == "none", scale_by
    return torch.where(used, advantages, 0.0).to(returns.dtype), used


def token_weights(
    own: torch.Tensor, used: torch.Tensor, dtype: torch.dtype, *, mean_over: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of tokens in the loss and their contributions to its divisor, both `[T, n]`.

    The loss is sum(weights * losses) / sum(counts), over all ranks. own `[T, n]` bool: tokens that the policy chose.
    used `[n]` bool: rollouts with an advantage. mean_over is one of

    "tokens": the mean over all tokens of all rollouts (DAPO, section 3.3);
    "episodes": the mean over rollouts of the mean over a rollout's tokens (GRPO, eq. 3): tokens of long rollouts weigh
    less;
    "constant": the mean over rollouts of the sum over a rollout's tokens / T (Dr. GRPO, section 3: the mean over a
    rollout's own tokens would favour long wrong answers). Only here a rollout without tokens counts, with a sum of 0.
    """
    weights = (own & used).to(dtype)
    if mean_over == "tokens":
        return weights, weights
    if mean_over == "episodes":
        weights = weights / weights.sum(dim=0).clamp(min=1)
        return weights, weights
    assert mean_over == "constant", mean_over
    return weights, used.to(dtype).expand(own.shape)


_CUTS = tuple(ENDS.index(word) for word in CUTS)


def is_cut(rollout: Rollout) -> torch.Tensor:
    """Return whether each rollout was cut by the limits of training, `[n]` bool. A time limit of the task cuts none."""
    if rollout.ended_by is None:
        raise TrainingError(
            "ppo.mask_truncated=true: the model's collector does not say why its rollouts ended (Rollout.ended_by): "
            "leave it out, or let the collector say so"
        )
    return torch.isin(rollout.ended_by, torch.tensor(_CUTS, device=rollout.ended_by.device))


class GroupRelative:
    """Compares the return of a whole rollout with the returns of its group: one advantage for all its tokens.

    The environment with global index i is in group i // ppo.group_size. A failed rollout has no valid row. With
    ppo.mask_truncated, rollouts that were cut have no weight in the loss, and count in their groups (as TRL's
    mask_truncated_completions; DAPO, section 3.4, "overlong filtering").
    """

    learns_values = False
    reads_float64 = True  # of rewards: float32 does not distinguish 30,000,000 from 30,000,001

    def __init__(
        self,
        config: GrpoSettings,
        num_envs: int,  # of all ranks
        first_env: int,  # global index of this rank's first environment
        gather: Gather,  # values `[n]` of every rank as `[W, n]`
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        self.first_env = first_env
        self.gather = gather

    def __call__(self, rollout: Rollout, rewards: torch.Tensor) -> Estimates:
        # 1. The return of each rollout, and its group.
        config, valid = self.config, rollout.valid
        num_groups = self.num_envs // config.group_size
        envs = torch.arange(self.first_env, self.first_env + rewards.shape[1], device=rewards.device)
        groups, succeeded = envs // config.group_size, valid.any(dim=0)
        counted = torch.where(valid, rewards.double(), 0.0)
        returns = counted.sum(dim=0)
        rounding = rounding_of_returns(counted, rollout.rewards.double())
        # 2. Statistics of whole groups; a group may lie on several ranks: one collective.
        own = group_statistics(returns, rounding, groups, succeeded, num_groups)
        all_ranks = self.gather(own.flatten().cpu()).unflatten(1, own.shape)  # [W, 6 * K] -> [W, 6, K]
        merged = merge_group_statistics(all_ranks).to(rewards.device)
        # 3. Advantages, and the weight of each token in the loss.
        advantages, used = group_advantages(returns, groups, succeeded, merged, scale_by=config.scale_by)
        if config.mask_truncated:
            used = used & ~is_cut(rollout)
        dtype = rollout.logprobs.dtype
        weights, counts = token_weights(valid, used, dtype, mean_over=config.token_mean)
        return Estimates(
            advantages.to(dtype).expand(rewards.shape),
            weights,
            counts=counts,
            metrics=self._metrics(merged),
        )

    def _metrics(self, merged: torch.Tensor) -> dict[str, float]:
        count, mean, squares, *_ = merged[:, merged[0] > 0]
        num_failed = self.num_envs - merged[0].sum().item()
        if len(count) == 0:
            return {"rollout/failed": num_failed}
        return {
            "rollout/failed": num_failed,
            "rollout/group_return_mean": mean.mean().item(),
            "rollout/group_return_std": (squares / count).sqrt().mean().item(),
            "train/groups_without_spread": num_without_spread(merged) / len(count),
        }


# -- The reference policy of the KL penalty, ppo.kl_coef.


_ROWS = 8192  # rows of one forward pass; they bound memory, not results


class Reference:
    """A copy of the parameters at the start of the run."""

    def __init__(
        self,
        parameters: torch.nn.Parameter,  # the model's, as one vector
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        model: EvaluateActions,
    ) -> None:
        self.vector = parameters.detach().clone()
        self._parameters = parameters
        self._distribution = distribution
        self._model = model

    @torch.no_grad()
    def logprobs(self, batch: MinibatchSource) -> torch.Tensor:
        """Return log pi_ref of the actions, in the shape of the batch's other fields; 0 for samples of weight 0."""
        weights = batch.fields["weights"]
        found = torch.zeros_like(weights)
        is_used = weights > 0 if weights.ndim == 1 else (weights > 0).any(dim=1)
        used = is_used.nonzero().squeeze(1)
        rows = max(1, _ROWS // weights[0].numel())
        # Put the reference parameters into the model for a moment; it is one vector, so this is one copy.
        now = self._parameters.detach().clone()
        self._parameters.data.copy_(self.vector)
        try:
            for part in used.split(rows):
                (minibatch,) = batch.minibatches(part, [0, len(part)])
                params, _ = outputs(self._model, minibatch)
                policy = self._distribution(params, minibatch.get("mask"))
                logprobs = policy.log_prob(minibatch["actions"])
                if "places" in minibatch:
                    found[minibatch["places"]] = logprobs
                else:
                    found[part] = logprobs
        finally:
            self._parameters.data.copy_(now)
        return found


class GrpoLearner(Learner):
    """PPO's learner with group-relative advantages and no value function; with ppo.kl_coef, a reference policy."""

    config: GrpoSettings

    def __init__(
        self,
        config: GrpoSettings,
        shape: BatchShape,
        model: ActorCritic,
        sync: GradientSync,
        group: Group,
        normalizers: Normalizers,
        seed: int,
    ) -> None:
        super().__init__(config, shape, model, sync, group, normalizers, seed)
        first_env = shape.env_indices(group.rank).start
        self.estimator = GroupRelative(config, shape.num_envs, first_env, group.gather)
        if config.kl_coef:
            self.reference = Reference(self.parameters, model.distribution, EvaluateActions(model))
        if config.ratio == "sequence":  # minibatches are made of whole rollouts
            self.num_sequences = 1

    def surrogate(
        self,
        logprobs: torch.Tensor,
        log_ratio: torch.Tensor,
        minibatch: Minibatch,
        coefficients: Coefficients,
    ) -> PolicyLoss:
        """Return the loss of the policy by ppo.ratio and ppo.loss, and how many samples are clipped on either side.

        A clipped sample has no gradient: w < 1 - eps with A < 0, or w > 1 + eps_high with A > 0. With cispo
        every sample has one, and the second number counts samples with a weight that was cut.
        """
        advantages, low, high = minibatch["advantages"], coefficients.clip, coefficients.clip_high
        if self.config.ratio == "sequence":
            rollouts, _ = minibatch["places"]
            log_ratio = sequence_log_ratio(log_ratio, rollouts, self.shape.local_num_envs)
        above = log_ratio.expm1() > (low if high is None else high)
        if self.config.loss == "cispo":
            loss = cispo_loss(log_ratio, logprobs, advantages, clip_coef_high=low if high is None else high)
            is_low, is_high = torch.zeros_like(above), above
            clipped = above
        else:
            loss = clipped_surrogate_loss(log_ratio, advantages, clip_coef=low, clip_coef_high=high)
            is_low, is_high = (log_ratio.expm1() < -low) & (advantages < 0), above & (advantages > 0)
            clipped = is_clipped(log_ratio, clip_coef=low, clip_coef_high=high)
        return PolicyLoss(loss, clipped, (is_low.to(loss.dtype), is_high.to(loss.dtype)))

    def _source(self, rollout: Rollout, estimates: Estimates, *, apart: bool) -> MinibatchSource:
        if self.config.ratio == "sequence" and self.model.minibatch_class is None:
            return EpisodeBatch(rollout, estimates)
        return super()._source(rollout, estimates, apart=apart)


class GRPO(Algorithm):
    """Groups of whole episodes, learned from by the parameters that acted in them."""

    settings_class = GrpoSettings
    hands_over = "groups"
    learner_class = GrpoLearner
