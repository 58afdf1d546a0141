"""Learning: one rollout, K epochs of M minibatches, one gradient over all ranks per minibatch."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch

from ddppo.config import PPOConfig
from ddppo.errors import NonFiniteError
from ddppo.models import ActionDistribution, Obs
from ddppo.ppo.minibatches import Batch, local_minibatches
from ddppo.ppo.native.returns import returns_and_moments
from ddppo.ppo.native.step import NativeStep
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer, merge_moments, moments
from ddppo.ppo.returns import gae
from ddppo.ppo.rollout import Rollout
from ddppo.ppo.step import BETAS, STATISTICS, EagerStep, NotFinite, Step
from ddppo.scaling import BatchShape

_ADAPTIVE_LR_RANGE = (1e-6, 1e-2)  # and a factor of 1.5 at 2x and 1/2 of the target: rsl_rl's rule


@dataclass(frozen=True, slots=True)
class Update:
    """What one iteration's learning was like; equal on all ranks except `local_sums`.

    local_sums: this rank's sums of STATISTICS over the samples of all epochs done; the mean divides the sum over
    ranks by num_samples.
    """

    local_sums: torch.Tensor
    num_samples: int
    steps: int
    epochs: int
    grad_norm: float
    learning_rate: float
    explained_variance: float


class Learner:
    """Improves parameters by PPO. Knows neither ranks nor processes: it is handed sums and gathers over them.

    gather: values `[n]` of every rank as `[W, n]`. backward_: leaves the gradient over all ranks in
    `parameters.grad`. at, distribution: the model's. scale: of the step size of each parameter, all 1 if None.
    """

    def __init__(
        self,
        config: PPOConfig,
        shape: BatchShape,
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        parameters: torch.nn.Parameter,
        *,
        at: Callable[[Obs, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
        backward_: Callable[[torch.Tensor], None],
        gather: Callable[[torch.Tensor], torch.Tensor],
        rank: int,
        seed: int,
        obs_normalizer: ObsNormalizer | None,
        reward_normalizer: RewardNormalizer | None,
        scale: torch.Tensor | None = None,
    ) -> None:
        self.config = config
        self.shape = shape
        self.parameters = parameters
        self.scale = scale
        self.gather = gather
        self.rank = rank
        self.seed = seed
        self.obs_normalizer = obs_normalizer
        self.reward_normalizer = reward_normalizer
        self.correction = "vtrace"  # of rollouts that another policy acted: vtrace, or clip
        self.learning_rate = config.learning_rate * shape.learning_rate_scale
        self.optimizer = torch.optim.Adam(
            [parameters], lr=self.learning_rate, betas=BETAS, eps=config.adam_eps, fused=True
        )
        self.step: Step = EagerStep(
            config, distribution, parameters, self.optimizer, at=at, backward_=backward_, scale=scale
        )

    def update(self, rollout: Rollout, iteration: int, progress: float) -> Update:
        """Learn from the rollout of `iteration`; `progress` in [0, 1) is the share of total_steps done before it.

        Raises NonFiniteError on all ranks alike, before the optimizer moves, if a loss or gradient is not finite.
        """
        try:
            return self._update(rollout, iteration, progress)
        except NotFinite as e:
            self._stop(e.loss, iteration)

    def _update(self, rollout: Rollout, iteration: int, progress: float) -> Update:
        config, step = self.config, self.step
        if config.lr_schedule == "linear":
            self.learning_rate = config.learning_rate * self.shape.learning_rate_scale * (1.0 - progress)
        warmth = self._warmth(progress)
        advantages, returns, local_moments = self._returns(rollout)
        plan = [
            local_minibatches(self.seed, iteration, epoch, self.shape, self.rank)
            for epoch in range(config.num_epochs)
        ]
        counts, explained_variance, advantages = self._agree(rollout, advantages, local_moments, plan)
        batch = Batch(rollout, advantages, returns)
        step.begin(self.learning_rate * warmth)
        sums, num_steps, num_samples = step.sums, 0, 0
        epoch_kl = math.nan
        for (order, bounds), epoch_counts in zip(plan, counts, strict=True):
            before = sums[STATISTICS.index("approx_kl")].clone()
            step.epoch(batch, torch.from_numpy(order).to(advantages.device), bounds, epoch_counts)
            num_steps += sum(count > 0 for count in epoch_counts)
            epoch_count = sum(epoch_counts)
            num_samples += epoch_count
            if config.target_kl is not None or config.lr_schedule == "adaptive":
                local_kl = sums[STATISTICS.index("approx_kl")] - before
                epoch_kl = self.gather(local_kl.reshape(1).cpu()).sum().item() / epoch_count
            if config.target_kl is not None and epoch_kl > config.target_kl:
                break
        norms = step.end()
        update = Update(
            local_sums=sums.cpu().clone(),
            num_samples=num_samples,
            steps=num_steps,
            epochs=num_samples // sum(counts[0]),
            grad_norm=norms / num_steps,
            learning_rate=self.learning_rate * warmth,
            explained_variance=explained_variance,
        )
        if config.lr_schedule == "adaptive" and warmth == 1.0:
            self._adapt_learning_rate(epoch_kl)
        return update

    def _warmth(self, progress: float) -> float:
        """Return the share of the full step size: that of ppo.warmup_steps done when this iteration is."""
        config = self.config
        num_steps = round(progress * config.total_steps) + self.shape.batch_size
        return min(1.0, num_steps / config.warmup_steps) if config.warmup_steps else 1.0

    def _returns(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return advantages and returns `[T, E]`, and this rank's moments `[3, 3]` of these and of returns - values."""
        rewards, config = rollout.rewards, self.config
        if config.reward_clip is not None:
            rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
        if self.reward_normalizer is not None:
            ended = rollout.terminated | rollout.truncated
            rewards = self.reward_normalizer(rewards, ended, rollout.valid, self.gather)
        if isinstance(self.step, NativeStep) and rollout.ratios is None:
            return returns_and_moments(rollout, rewards, gamma=config.gamma, gae_lambda=config.gae_lambda)
        weights = None if rollout.ratios is None else rollout.ratios.clamp(max=1.0)
        advantages = gae(
            rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            weights=weights if self.correction == "vtrace" else None,
        )
        returns, valid = advantages + rollout.values, rollout.valid
        if weights is not None and self.correction == "clip":
            advantages = advantages * weights
        samples = torch.stack([advantages[valid], returns[valid], (returns - rollout.values)[valid]], dim=-1)
        return advantages, returns, moments(samples).cpu()

    def _agree(
        self, rollout: Rollout, advantages: torch.Tensor, local_moments: torch.Tensor, plan: list
    ) -> tuple[list[list[int]], float, torch.Tensor]:
        """Agree with all ranks, in one collective, on what learning divides by.

        Returns the number of valid samples of all ranks in each minibatch `[K][M]`, the explained variance
        1 - Var(returns - values) / Var(returns), and the normalised advantages.
        """
        valid = rollout.valid
        is_valid = valid.flatten().cpu().numpy()
        all_are = is_valid.all()
        local_counts = [
            float(end - start if all_are else is_valid[order[start:end]].sum())
            for order, bounds in plan
            for start, end in itertools.pairwise(bounds)
        ]
        # In NumPy and Python's own numbers: after an epoch in C++ every small operation of torch costs some 10 us.
        mine = [np.array(local_counts), local_moments.numpy().ravel()]
        if self.obs_normalizer is not None:
            mine.append(self.obs_normalizer.moments(rollout.raw_obs, valid.cpu()).numpy().ravel())
        gathered = self.gather(torch.from_numpy(np.concatenate(mine)))
        ranks, num_counts = len(gathered), len(local_counts)
        counts_of_all = gathered[:, :num_counts].numpy().sum(axis=0).astype(int)
        merged = merge_moments(gathered[:, num_counts : num_counts + 9].reshape(ranks, 3, 3))
        if self.obs_normalizer is not None:
            self.obs_normalizer.update_(merge_moments(gathered[:, num_counts + 9 :].reshape(ranks, 3, -1)))
        used = merged if self.config.normalize_advantages == "global" else local_moments
        (count, *_), (mean, *_), (squares, *_) = used.tolist()
        _, _, (_, of_returns, of_errors) = (
            merged.tolist()
        )  # sums of squares: their ratio is that of variances
        explained = 1.0 - of_errors / of_returns if of_returns > 0 else math.nan
        if self.config.normalize_advantages != "none":
            std = math.sqrt(squares / max(count, 1.0))
            advantages = advantages.sub(mean).div_(std + 1e-8)
        counts = counts_of_all.reshape(self.config.num_epochs, -1).tolist()
        return counts, explained, advantages

    def _stop(self, local_loss: float, iteration: int) -> NoReturn:
        local = torch.tensor([local_loss], dtype=torch.float64)
        losses_by_rank = self.gather(local).flatten().tolist()
        bad = [rank for rank, value in enumerate(losses_by_rank) if not math.isfinite(value)]
        where = f"the loss of rank {', '.join(map(str, bad))}" if bad else "the gradient, though no loss,"
        raise NonFiniteError(
            f"{where} is not finite in iteration {iteration}; all ranks stopped before the optimizer moved. "
            f"Losses by rank: {losses_by_rank}. A smaller ppo.learning_rate, ppo.normalize_rewards=true or "
            "ppo.normalize_obs=true often helps"
        )

    def _adapt_learning_rate(self, kl: float) -> None:
        target = self.config.adaptive_kl or 0.01
        start = self.config.learning_rate * self.shape.learning_rate_scale
        low, high = min(_ADAPTIVE_LR_RANGE[0], start), max(_ADAPTIVE_LR_RANGE[1], start)
        if kl > 2 * target:
            self.learning_rate = max(low, self.learning_rate / 1.5)
        elif kl < target / 2:
            self.learning_rate = min(high, self.learning_rate * 1.5)
