"""GRPO: advantages relative to a group of rollouts of one task, instead of a value function.

A group is several rollouts of one task from one seed. K groups over all ranks have the same numbers on every rank; a
rank holds n rollouts, of at most T tokens each, of any of the groups. A token is what the policy chooses at once: an
action, if the task has no text.

    EpisodeCollector    collects one whole episode of each environment
    GroupRelative       estimates one advantage for each rollout from the returns of its group
    Reference           the policy that the run began with, for ppo.kl_coef
    GrpoLearner         the learner of PPO with these two

Sources: GRPO, Shao et al. 2024, arXiv:2402.03300; Dr. GRPO, Liu et al. 2025, arXiv:2503.20783; DAPO, Yu et al. 2025,
arXiv:2503.14476.
"""

from collections.abc import Callable

import numpy as np
import torch

from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.envs.vec_env import End
from ddppo.models.actor_critic import ActorCritic, EvaluateActions
from ddppo.models.distributions import ActionDistribution
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import GradientSync, Learner, Normalizers
from ddppo.ppo.minibatches import MinibatchSource, outputs
from ddppo.ppo.normalization import Gather, merge_moments
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.scaling import BatchShape
from ddppo.spaces import each

# -- Collecting whole episodes.


class EpisodeCollector(Collector):
    """Collects one episode of each environment, cut after T steps; rows after its end are not valid.

    An episode whose process was lost has no valid row. Values are 0, for nobody learns any. A batch steps all of its
    environments until the last episode is over; what others answer after their own counts for nothing.
    """

    whole_episodes = True

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        self._begin(noise)
        ends: list[End] = []
        is_over = np.zeros(self.env.num_envs, dtype=bool)
        last = np.full(self.env.num_envs, self.rollout_steps - 1)  # row of each episode's last step
        try:
            for t in range(self.rollout_steps):
                self.acting.act(t)
                self._step(t, ends)
                ended = [i for i in _ended_in(t, ends) if (t, i) not in self._life_losses and not is_over[i]]
                is_over[ended], last[ended] = True, t
                if is_over.all():
                    break
        except Exception:
            self._check(ends)  # perhaps an earlier step returned NaN: that is then the error to report
            raise
        self._check(ends)
        return self._finished(is_over, last)

    def _finished(self, is_over: np.ndarray, last: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        """Return the rollout of episodes whose last rows are `last` `[E]`, and those that were not lost."""
        envs, is_within = np.arange(self.env.num_envs), np.arange(self.rollout_steps)[:, None] <= last
        terminated, truncated, valid, episode_start = self.flags
        is_lost = is_over & ~valid[last, envs]  # a step that nobody answered ended it
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
        masks, _ = self._compute_logprobs(self.rollout_steps)
        nothing = torch.zeros_like(self.logprobs)
        flags = torch.from_numpy(self.flags).to(self.device)
        rollout = Rollout(
            obs=each(lambda x: x[:-1], self.obs),
            actions=self.actions,
            logprobs=self.logprobs,
            values=nothing,
            next_values=nothing,
            rewards=torch.from_numpy(rewards).to(self.device),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=masks,
            raw_obs=each(lambda x: x[:-1], self.raw_obs),
        )
        return rollout, sorted(episodes, key=lambda e: (e.step, e.env_index))


def _ended_in(t: int, ends: list[End]) -> list[int]:
    return ends[-1][1].tolist() if ends and ends[-1][0] == t else []


# -- Advantages within groups.


_SHARE, _SHARE_FLOAT32 = 1e-12, 1e-6  # of a reward, by which rounding may have moved it


def rounding_of_returns(rewards: torch.Tensor, as_told: torch.Tensor) -> torch.Tensor:
    """Return by how much rounding may have moved the return of each rollout, float64 `[n]`.

    rewards `[T, n]` float64: what is summed, 0 where nothing is. as_told `[T, n]` float64: the same before they were
    scaled. A sum of float64, the task's or ours, is off in its last digits. A reward that float32 holds, and that is
    no whole number, was computed in float32, perhaps, and is off in float32's.
    """
    is_float32 = (as_told == as_told.float()) & (as_told != as_told.round())
    return (rewards.abs() * torch.where(is_float32, _SHARE_FLOAT32, _SHARE)).sum(dim=0)


def group_statistics(
    returns: torch.Tensor, rounding: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """Return (count, mean, M2, min, max, rounding) of this rank's returns in each group, float64 `[6, K]`.

    returns, rounding, groups (whole numbers below K), valid `[n]`: a rollout that is not valid failed, and is in no
    group. M2 is the sum of squared deviations from the mean, rounding that of the return that it may have moved most.
    A group without rollouts here has count 0, min inf, max -inf and rounding 0.
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
    """Combine the ranks' statistics of their parts of K groups, `[W, 6, K]`, into those of the groups, `[6, K]`."""
    return torch.cat([merge_moments(parts[:, :3]), parts[:, 3:4].amin(dim=0), parts[:, 4:].amax(dim=0)])


def has_spread(merged: torch.Tensor) -> torch.Tensor:
    """Return for each group `[K]` bool whether its returns differ, so that there is something to learn from it.

    By min and max, and by more than rounding: sums of the same rewards, come at other steps, differ in their last
    digits, and dividing by such a deviation would make advantages of +-1 from nothing.
    """
    low, high, rounding = merged[3:]
    return high - low > rounding


def num_without_spread(merged: torch.Tensor) -> int:
    """Return how many groups have rollouts, but none from which to learn."""
    return int(((merged[0] > 0) & ~has_spread(merged)).sum())


def group_advantages(
    returns: torch.Tensor,
    groups: torch.Tensor,
    valid: torch.Tensor,
    merged: torch.Tensor,
    *,
    divide_by_std: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages `[n]` of this rank's rollouts, and `[n]` bool which of them are used; the others have 0.

    A_i = (r_i - mean(r)) / std(r) over the group of i (GRPO, section 4.1.2), std the population's; without
    `divide_by_std` A_i = r_i - mean(r) (Dr. GRPO, section 3: dividing favours tasks that are nearly always, or nearly
    never, achieved). Failed rollouts are not used, nor are groups without spread. merged: statistics `[6, K]` of all
    ranks.
    """
    count, mean, squares, *_ = merged
    used = valid & has_spread(merged)[groups]
    advantages = returns.double() - mean[groups]
    if divide_by_std:
        std = (squares / count.clamp(min=1)).sqrt()
        advantages = advantages / std[groups]
    return torch.where(used, advantages, 0.0).to(returns.dtype), used


def token_weights(
    own: torch.Tensor, used: torch.Tensor, dtype: torch.dtype, *, mean_over: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights `[T, n]` of tokens in the loss, and what each adds to the count that divides it, `[T, n]`.

    The loss is sum(weights * losses) / sum(counts), both over all ranks. own `[T, n]`, used `[n]` bool. mean_over:
    "tokens": of all tokens, whoever's (DAPO, section 3.3);
    "episodes": of the mean over each rollout's own tokens (GRPO, eq. 3), so tokens of long ones weigh less;
    "constant": over rollouts, of their tokens' sum / T, however long they are (Dr. GRPO, section 3: a mean over their
    own tokens would favour long wrong answers).
    A rollout without tokens of its own counts only where its sum, of 0, is a rollout's: "constant".
    """
    weights = (own & used).to(dtype)
    if mean_over == "tokens":
        return weights, weights
    if mean_over == "episodes":
        weights = weights / weights.sum(dim=0).clamp(min=1)
        return weights, weights
    assert mean_over == "constant", mean_over
    return weights, used.to(dtype).expand(own.shape)


class GroupRelative:
    """The return of a whole rollout against those of its group: one advantage for all of its tokens.

    Environment i of all ranks is in group i // ppo.group_size. A rollout that failed has no valid row.
    """

    learns_values = False
    reads_float64 = (
        True  # rewards, until advantages are known: float32 does not tell 30,000,000 from 30,000,001
    )

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
        config, valid = self.config, rollout.valid
        num_groups = self.num_envs // config.group_size
        envs = torch.arange(self.first_env, self.first_env + rewards.shape[1], device=rewards.device)
        groups, succeeded = envs // config.group_size, valid.any(dim=0)
        counted = torch.where(valid, rewards.double(), 0.0)
        returns = counted.sum(dim=0)
        rounding = rounding_of_returns(counted, rollout.rewards.double())
        own = group_statistics(returns, rounding, groups, succeeded, num_groups)
        of_ranks = self.gather(own.flatten().cpu()).unflatten(1, own.shape)
        merged = merge_group_statistics(of_ranks).to(rewards.device)
        advantages, used = group_advantages(
            returns, groups, succeeded, merged, divide_by_std=config.divide_by_std
        )
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


# -- The policy that ppo.kl_coef holds a run's policy to.


_ROWS = 8192  # of one forward; they bound memory, not results


class Reference:
    """A copy of the parameters that a run began with. at, distribution: the model's, whose parameters these are."""

    def __init__(
        self,
        parameters: torch.nn.Parameter,
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        model: EvaluateActions,
    ) -> None:
        self.vector = parameters.detach().clone()
        self._parameters = parameters
        self._distribution = distribution
        self._model = model

    @torch.no_grad()
    def logprobs(self, batch: MinibatchSource) -> torch.Tensor:
        """Return log pi_ref of what was done, in the shape of the batch's other fields; 0 for what weighs nothing."""
        weights = batch.fields["weights"]
        found = torch.zeros_like(weights)
        is_used = weights > 0 if weights.ndim == 1 else (weights > 0).any(dim=1)
        used = is_used.nonzero().squeeze(1)
        rows = max(1, _ROWS // weights[0].numel())
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
    """PPO's learner with group-relative advantages, no value function, and with ppo.kl_coef a reference policy."""

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
        first_env = group.rank * shape.local_num_envs
        self.estimator = GroupRelative(config, shape.num_envs, first_env, group.gather)
        if config.kl_coef:
            self.reference = Reference(self.parameters, model.distribution, EvaluateActions(model))
