"""Learning: one rollout, K epochs of M minibatches, one gradient over all ranks per minibatch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.errors import NonFiniteError
from ddppo.models.distributions import ActionDistribution
from ddppo.ppo.advantages import Estimates, Estimator, Gae
from ddppo.ppo.cpp.learner import NativeStep
from ddppo.ppo.losses import Reference
from ddppo.ppo.minibatches import (
    AdvantagesByMinibatch,
    Agreement,
    Batch,
    Histories,
    Minibatches,
    OfRollout,
    Plan,
    by_shard,
    local_minibatches,
    of_first,
)
from ddppo.ppo.nonfinite import Tolerance, all_finite, remembered, where_not_finite
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.ppo.step import BETAS, STATISTICS, At, EagerStep, NotFinite, Step
from ddppo.scaling import BatchShape

_ADAPTIVE_LR_RANGE = (1e-6, 1e-2)  # and a factor of 1.5 at 2x and 1/2 of the target: rsl_rl's rule


@dataclass(frozen=True, slots=True)
class Update:
    """What one iteration's learning was like; equal on all ranks except `local_sums`.

    local_sums: this rank's sums of `statistics` over the samples of all epochs done, each by its
    weight; the mean divides the sum over ranks by num_samples, that of weights. explained_variance: None where no value
    is learned. metrics: others, of how advantages were estimated.
    """

    local_sums: torch.Tensor
    num_samples: float
    steps: int
    epochs: int
    grad_norm: float
    learning_rate: float
    explained_variance: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner:
    """Improves parameters by PPO. Knows neither ranks nor processes: it is handed sums and gathers over them.

    gather: values `[...]` of every rank as `[W, ...]`. backward_: leaves the gradient over all ranks in
    `parameters.grad`. at, distribution: the model's; minibatch_class: of minibatches of its own, whose units are whole
    rows; remembers: it has memory, so minibatches are of steps in a row. scale: of the step size of each parameter,
    all 1 if None. estimator: of advantages, Gae if None. reference: the policy that ppo.kl_coef holds this one to.
    tolerance: of what is not finite; none if None.
    """

    def __init__(
        self,
        config: AlgorithmSettings,
        shape: BatchShape,
        distribution: Callable[[torch.Tensor, torch.Tensor | None], ActionDistribution],
        parameters: torch.nn.Parameter,
        *,
        at: At,
        backward_: Callable[[torch.Tensor], None],
        gather: Callable[[torch.Tensor], torch.Tensor],
        rank: int,
        seed: int,
        obs_normalizer: ObsNormalizer | None,
        reward_normalizer: RewardNormalizer | None,
        scale: torch.Tensor | None = None,
        estimator: Estimator | None = None,
        minibatch_class: Callable[[Rollout, Estimates], Minibatches] | None = None,
        remembers: bool = False,
        reference: Reference | None = None,
        tolerance: Tolerance | None = None,
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
        self.estimator = estimator or Gae(config)
        self.minibatch_class = minibatch_class
        self.remembers = remembers
        self.reference = reference
        self.tolerance = tolerance or Tolerance()
        self.learning_rate = config.learning_rate * shape.learning_rate_scale
        self.optimizer = torch.optim.Adam(
            [parameters], lr=self.learning_rate, betas=BETAS, eps=config.adam_eps, fused=True
        )
        # Into how many sequences the rows of an environment are cut, of which minibatches are made; 0: of samples.
        self._num_sequences = int(minibatch_class is not None or remembers)
        if remembers and config.sequence_length is not None:
            self._num_sequences = shape.rollout_steps // config.sequence_length
        self._agree = Agreement(config, shape.local_num_shards, self._num_sequences, gather, obs_normalizer)
        self.step: Step = EagerStep(
            config,
            distribution,
            parameters,
            self.optimizer,
            at=at,
            backward_=backward_,
            scale=scale,
            num_shards=shape.local_num_shards,
        )

    def update(self, rollout: Rollout, iteration: int, progress: float) -> Update:
        """Learn from the rollout of `iteration`; `progress` in [0, 1) is the share of total_steps done before it.

        A rollout may have fewer rows than others, by rank: minibatches are those of whole ones without what is missing.

        Raises NonFiniteError on all ranks alike, before the optimizer moves, if a loss or gradient is not finite,
        unless the batch may be skipped: then all is as it was before.
        """
        put_back = remembered(self) if self.tolerance.mode == "skip_batch" else None
        try:
            update = self._update(rollout, iteration, progress)
        except NotFinite as e:
            if put_back is None or not self.tolerance.may_skip():
                self._stop(e, iteration)
            put_back()
            return self._nothing_learned(rollout)
        self.tolerance.in_row = 0
        return update

    def _nothing_learned(self, rollout: Rollout) -> Update:
        values = None if self.config.algorithm == "grpo" else math.nan
        return Update(
            local_sums=torch.zeros_like(self.step.sums[0], device="cpu"),
            num_samples=0,
            steps=0,
            epochs=0,
            grad_norm=math.nan,
            learning_rate=self.learning_rate * self.tolerance.step_factor,
            explained_variance=values,
            metrics=self.tolerance.metrics,
        )

    def _update(self, rollout: Rollout, iteration: int, progress: float) -> Update:
        config, step = self.config, self.step
        if config.lr_schedule == "linear":
            self.learning_rate = config.learning_rate * self.shape.learning_rate_scale * (1.0 - progress)
        warmth = self._warmth(progress)
        learning_rate = self.learning_rate * warmth * self.tolerance.step_factor
        estimates = self._estimates(rollout)
        shape = self.shape
        if num_sequences := self._num_sequences:
            shape = replace(shape, rollout_steps=num_sequences)
        estimates, agreed, plan = self._agree(rollout, estimates, self._plan(rollout, iteration, shape))
        if is_ordered := shape.num_shards > 0:
            plan = [by_shard(*minibatches, shape) for minibatches in plan]
        batch = self._batch(rollout, estimates, apart=is_ordered)
        by_minibatch = None
        if config.normalize_advantages == "minibatch":
            by_minibatch = AdvantagesByMinibatch(batch, plan, shape.local_num_shards, self.gather)
        left = 1.0 - progress if config.clip_schedule == "linear" else 1.0
        step.begin(learning_rate, config.clip_coef * left)
        sums, num_steps, num_epochs = step.sums, 0, 0
        epoch_kl, kl_at = math.nan, STATISTICS.index("approx_kl")
        watches_kl = config.target_kl is not None or config.lr_schedule == "adaptive"
        for (order, bounds), epoch_counts in zip(plan, agreed.counts, strict=True):
            if by_minibatch is not None:
                by_minibatch.epoch(num_epochs)
            before = sums[:, kl_at].clone() if watches_kl else None
            step.epoch(batch, torch.from_numpy(order).to(sums.device), bounds, epoch_counts)
            num_steps += sum(count > 0 for count in epoch_counts)
            num_epochs += 1
            if before is not None and agreed.weight:
                local_kl = sums[:, kl_at] - before
                epoch_kl = self.gather(local_kl.cpu()).flatten().sum().item() / agreed.weight
            if config.target_kl is not None and epoch_kl > config.target_kl:
                break
        norms = step.end()
        if not all_finite(self):
            raise NotFinite(0.0, "what was learned, though no gradient,")
        update = Update(
            local_sums=self._summed(sums.cpu()) if is_ordered else sums[0].cpu().clone(),
            num_samples=num_epochs * agreed.weight,
            steps=num_steps,
            epochs=num_epochs,
            grad_norm=norms / num_steps if num_steps else math.nan,
            learning_rate=learning_rate,
            explained_variance=agreed.explained_variance,
            metrics={**estimates.metrics, **self.tolerance.metrics},
        )
        if config.lr_schedule == "adaptive" and warmth == 1.0:
            self._adapt_learning_rate(epoch_kl)
        return update

    def _batch(self, rollout: Rollout, estimates: Estimates, *, apart: bool) -> OfRollout:
        """Return what minibatches are taken from; apart: each has memory of its own, where it is samples."""
        batch: OfRollout
        if self.minibatch_class is not None:
            batch = self.minibatch_class(rollout, estimates)
        elif self.remembers:
            batch = Histories(rollout, estimates)
        else:
            batch = Batch(rollout, estimates, apart=apart)
        if self.reference is not None:
            batch.fields["ref_logprobs"] = self.reference.logprobs(batch)
        return batch

    def _summed(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sums `[n]` over all shards of all ranks on rank 0, zeros on others, of this rank's `[S, n]`."""
        of_all = self.gather(sums).flatten(0, 1).sum(dim=0)
        return of_all if self.rank == 0 else torch.zeros_like(of_all)

    def _plan(self, rollout: Rollout, iteration: int, shape: BatchShape) -> list[Plan]:
        """Return this rank's minibatches of every epoch."""
        num_epochs = self.config.num_epochs
        plan = [local_minibatches(self.seed, iteration, k, shape, self.rank) for k in range(num_epochs)]
        if not self._num_sequences and len(rollout.rewards) < shape.rollout_steps:
            plan = [of_first(rollout.rewards.numel(), *of_epoch) for of_epoch in plan]
        return plan

    def _warmth(self, progress: float) -> float:
        """Return the share of the full step size: that of ppo.warmup_steps done when this iteration is."""
        config = self.config
        num_steps = round(progress * config.total_steps) + self.shape.batch_size
        return min(1.0, num_steps / config.warmup_steps) if config.warmup_steps else 1.0

    def _estimates(self, rollout: Rollout) -> Estimates:
        rewards, config = rollout.rewards, self.config
        if config.algorithm == "ppo":  # of whole episodes they come in float64, which groups need
            rewards = rewards.to(rollout.values.dtype)
        if config.reward_scale != 1.0:
            rewards = rewards * config.reward_scale
        if config.reward_clip is not None:
            rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
        if self.reward_normalizer is not None:
            ended = rollout.terminated | rollout.truncated
            rewards = self.reward_normalizer(rewards, ended, rollout.valid, self.gather)
        return self.estimator(rollout, rewards, in_cpp=isinstance(self.step, NativeStep))

    def _stop(self, error: NotFinite, iteration: int) -> NoReturn:
        local = torch.tensor([error.loss, *error.terms.values()], dtype=torch.float64)
        losses_by_rank, *to_blame = self.gather(local).T.tolist()
        where = where_not_finite(error, losses_by_rank, to_blame)
        before = (
            "; all ranks stopped before the optimizer moved" if error.moves_nothing else "; all ranks stopped"
        )
        raise NonFiniteError(
            f"{where} is not finite in iteration {iteration}{before}. Losses by rank: {losses_by_rank}. A smaller "
            "ppo.learning_rate, ppo.normalize_rewards=true or ppo.normalize_obs=true often helps"
            f"{self.tolerance.exhausted()}"
        )

    def _adapt_learning_rate(self, kl: float) -> None:
        target = self.config.adaptive_kl or 0.01
        start = self.config.learning_rate * self.shape.learning_rate_scale
        low, high = min(_ADAPTIVE_LR_RANGE[0], start), max(_ADAPTIVE_LR_RANGE[1], start)
        if kl > 2 * target:
            self.learning_rate = max(low, self.learning_rate / 1.5)
        elif kl < target / 2:
            self.learning_rate = min(high, self.learning_rate * 1.5)
