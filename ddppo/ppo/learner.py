"""The learner: one rollout, K epochs of M minibatches, one gradient over all ranks per minibatch.

`Learner.update` is the whole story of an iteration's learning. The inner loop over minibatches is an `EpochStep`,
chosen once before the first iteration (loop/compute.py): `EagerStep` below, `CompiledStep` (compiled.py, by
torch.compile) or `CppStep` (cpp/learner.py). All three compute the same.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import SurrogateSettings
from ddppo.device import wide_dtype
from ddppo.errors import NonFiniteError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import part_of
from ddppo.plugins import imported
from ddppo.ppo.advantages import Estimates, Gae
from ddppo.ppo.losses import (
    STATISTICS,
    Coefficients,
    Samples,
    Surrogate,
    Term,
    loss_per_sample,
    nan_unless_finite,
    own_losses,
    ppo_surrogate,
    statistic_names,
    terms_of,
)
from ddppo.ppo.minibatches import (
    EpochPlan,
    MinibatchSource,
    SampleBatch,
    SequenceBatch,
    by_shard,
    local_minibatches,
    of_first,
    outputs,
)
from ddppo.ppo.nonfinite import NonFiniteGuard, UpdateNotFinite, all_finite, snapshot, where_not_finite
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.ppo.rollout_stats import MinibatchAdvantages, reduce_rollout_stats
from ddppo.scaling import BatchShape

BETAS = (0.9, 0.999)  # of Adam
NORM_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_: clip coefficient = max_norm / (norm + eps)
_APPROX_KL = STATISTICS.index("approx_kl")
_ADAPTIVE_LR_RANGE = (1e-6, 1e-2)  # of ppo.lr_schedule=adaptive, with rsl_rl's rule (`_adapt_learning_rate`)


class GradientSync(Protocol):
    """Runs the model and sums its gradients over ranks (distributed/gradient_sync.py)."""

    name: str  # flat, ordered or ddp
    parameters: Any  # FlatParameters: all parameters as one vector

    @property
    def model(self) -> torch.nn.Module:
        """An `EvaluateActions`: called with inputs, it returns action parameters and values to differentiate."""
        ...

    def backward_(self, loss: torch.Tensor) -> None:
        """Leave in `parameters.gradient` the sum over ranks of d loss / d parameters."""
        ...


@dataclass(frozen=True, slots=True)
class Update:
    """What an iteration's learning reports; equal on all ranks, except `local_sums`."""

    # This rank's sums of `statistic_names` `[n]`, each sample times its weight, over all epochs; with
    # dist.reduction=ordered those of each of its shards, `[S, n]`.
    local_sums: torch.Tensor
    num_samples: float  # the sum over ranks of `local_sums` divided by this is the mean
    steps: int  # of the optimizer
    epochs: int  # done; fewer than K if ppo.target_kl stopped them
    grad_norm: float  # before clipping, mean over steps
    learning_rate: float
    explained_variance: float | None  # None if the algorithm learns no values
    metrics: Mapping[str, float] = field(default_factory=dict)  # others, such as those of the advantages


@dataclass(slots=True)
class Normalizers:
    obs: ObsNormalizer | None = None  # ppo.normalize_obs
    rewards: RewardNormalizer | None = None  # ppo.normalize_rewards


class EpochStep(Protocol):
    """The loop over the minibatches of an epoch. Called as begin, epoch, ..., epoch, end in every iteration."""

    # This rank's sums of `statistic_names` since `begin`: `[S, n]` float64, a row for each of its S shards. S is 1 but
    # for dist.reduction=ordered.
    sums: torch.Tensor

    def begin(self, learning_rate: float, clip_coef: float, entropy_coef: float) -> None:
        """Begin an iteration with this step size, range of the ratio and weight of the entropy; the sums are 0."""
        ...

    def epoch(
        self, batch: MinibatchSource, order: torch.Tensor, bounds: list[int], counts: list[float]
    ) -> None:
        """Move the parameters by the gradient of every minibatch: the units in `order` `[n]`, cut at `bounds`.

        bounds: M * S + 1 offsets; a minibatch has a part for each shard. counts: what divides the loss of each of the M
        minibatches, over all ranks; a minibatch that counts 0 is passed over on every rank. From the first gradient on
        that is not finite, the parameters and Adam's moments stay as they are.
        """
        ...

    def end(self) -> float:
        """Return the sum over steps of the gradients' norms before clipping. Raises UpdateNotFinite."""
        ...


class Learner:
    """Improves the parameters by PPO. It knows no processes: `sync` and `group` sum and gather over ranks."""

    surrogate: Surrogate = staticmethod(ppo_surrogate)  # the loss of the policy

    def __init__(
        self,
        config: SurrogateSettings,
        shape: BatchShape,  # of the ranks that learn
        model: ActorCritic,
        sync: GradientSync,
        group: Group,  # the ranks that learn, each from an equal share of the environments
        normalizers: Normalizers,
        seed: int,
    ) -> None:
        self.config = config
        self.shape = shape
        self.model = model
        self.sync = sync
        self.parameters: torch.nn.Parameter = sync.parameters.vector
        self.gather = group.gather  # values `[...]` of every rank as `[W, ...]`
        self.rank = group.rank
        self.seed = seed
        self.obs_normalizer = normalizers.obs
        self.reward_normalizer = normalizers.rewards
        self.coefficients = config.coefficients(shape.learning_rate_scale)
        self.learning_rate = config.learning_rate * shape.learning_rate_scale
        self.optimizer = Adam([self.parameters], lr=self.learning_rate, eps=config.adam_eps)
        self.scale = step_scale(model, config)
        self.estimator: Any = Gae(config, num_shards=shape.local_num_shards)  # rollout, rewards -> Estimates
        self.reference: Any = None  # the policy that ppo.kl_coef holds this one to (algorithms/grpo.py)
        self.guard = NonFiniteGuard()
        # Minibatches are made of samples, or of this many sequences of each environment (1: all T steps).
        self.num_sequences = int(model.minibatch_class is not None or model.state_size > 0)
        if model.state_size and config.sequence_length is not None:
            self.num_sequences = shape.rollout_steps // config.sequence_length
        self.step: EpochStep = EagerStep(self)
        # Beside an accelerator, threads draw the minibatches of the next iteration, an epoch each, while it computes.
        self._planner = ThreadPoolExecutor(4) if self.parameters.device.type != "cpu" else None
        self._planned: tuple[int, list[Future[EpochPlan]]] | None = None  # of which iteration

    def update(self, rollout: Rollout, iteration: int, progress: float) -> Update:
        """Learn from the rollout of `iteration`; `progress` in [0, 1) is the share of total_steps done before it.

        Raises NonFiniteError on all ranks at once if a loss or gradient is not finite, unless on_nonfinite=skip_batch
        allows to undo the update.
        """
        config, step, is_ordered = self.config, self.step, self.shape.num_shards > 0
        undo = snapshot(self) if self.guard.mode == "skip_batch" else None

        # 1. This iteration's coefficients, by their schedules.
        warmth = self._warmup(progress)
        now = {name: coefficient.at(progress) for name, coefficient in self.coefficients.items()}
        if config.lr_schedule != "adaptive":
            self.learning_rate = now["learning_rate"]
        learning_rate = self.learning_rate * warmth * self.guard.step_factor

        # 2. Advantages and returns of this rank's environments.
        estimates: Estimates = self.estimator(rollout, self._scaled_rewards(rollout))

        # 3. The samples of every minibatch, which all ranks derive alike, and one collective: what divides the losses,
        #    and the moments that normalise advantages and observations.
        plan = self._plan(rollout, iteration)
        estimates, stats, plan = reduce_rollout_stats(
            rollout,
            estimates,
            plan,
            config,
            self.gather,
            num_shards=self.shape.local_num_shards,
            in_units=self._in_units,
            obs_normalizer=self.obs_normalizer,
        )
        if is_ordered:
            plan = [by_shard(*epoch, self._shape_of_units) for epoch in plan]
        batch = self._batch(rollout, estimates, apart=is_ordered)
        by_minibatch = None
        if config.normalize_advantages == "minibatch":
            by_minibatch = MinibatchAdvantages(batch, plan, self.shape.local_num_shards, self.gather)

        # 4. K epochs: forward, loss, backward, sum over ranks, clip, Adam for each minibatch (EagerStep.epoch).
        step.begin(learning_rate, now["clip_coef"], now["entropy_coef"])
        sums, num_steps, num_epochs, kl = step.sums, 0, 0, math.nan
        watches_kl = now["target_kl"] < math.inf or config.lr_schedule == "adaptive"
        for (order, bounds), counts in zip(plan, stats.counts, strict=True):
            if by_minibatch is not None:
                by_minibatch.begin_epoch(num_epochs)
            kl_before = sums[:, _APPROX_KL].clone() if watches_kl else None
            on_device = torch.from_numpy(order).to(sums.device, non_blocking=True)
            step.epoch(batch, on_device, bounds, counts)
            num_steps += sum(count > 0 for count in counts)
            num_epochs += 1
            if kl_before is not None and stats.weight:
                # The mean over all ranks, so all ranks stop after the same epoch.
                local_kl = sums[:, _APPROX_KL] - kl_before
                kl = self.gather(local_kl.cpu()).flatten().sum().item() / stats.weight
            if kl > now["target_kl"]:
                break

        # 5. A gradient that was not finite is seen only here, once per iteration, so that no GPU waits in step 4.
        try:
            norms = step.end()
            if not all_finite(self):
                raise UpdateNotFinite(0.0, "a parameter or normaliser, though no gradient,")
        except UpdateNotFinite as e:
            if undo is None or not self.guard.may_skip():
                self._fail(e, iteration)
            undo()
            return self._skipped()
        self.guard.in_row = 0

        # 6. The report. An adaptive step size follows the divergence of the last epoch.
        if config.lr_schedule == "adaptive" and warmth == 1.0:
            self._adapt_learning_rate(kl)
        return Update(
            local_sums=(sums if is_ordered else sums[0]).cpu().double().clone(),
            num_samples=num_epochs * stats.weight,
            steps=num_steps,
            epochs=num_epochs,
            grad_norm=norms / num_steps if num_steps else math.nan,
            learning_rate=learning_rate,
            explained_variance=stats.explained_variance,
            metrics={**estimates.metrics, **self.guard.metrics, **self._reported(now)},
        )

    def _reported(self, now: Mapping[str, float]) -> dict[str, float]:
        """Return the coefficients that have changed since the settings; the step size is reported in any case."""
        names = [
            name for name, each in self.coefficients.items() if each.is_reported and name != "learning_rate"
        ]
        return {f"train/{name}": now[name] for name in names}

    def values_of_coefficients(self, progress: float) -> dict[str, float]:
        """Return the coefficients after this share of total_steps, as `set_coefficient` takes them."""
        found = {name: each.at(progress) for name, each in self.coefficients.items()}
        if self.config.lr_schedule == "adaptive":
            found["learning_rate"] = self.learning_rate
        return found | {"learning_rate": found["learning_rate"] / self.shape.learning_rate_scale}

    def set_coefficient(self, name: str, value: float) -> None:
        """Let a coefficient have this value from the next iteration on, in place of its schedule."""
        self.coefficients[name].set(value)
        if name == "learning_rate":  # an adaptive one goes on from here
            self.learning_rate = value * self.shape.learning_rate_scale

    def carried(self) -> list[torch.Tensor]:
        """Return the tensors beside the parameters that an update changes: Adam's number of steps and moments."""
        return adam_state(self.optimizer, self.parameters)

    def state(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "learning_rate": self.learning_rate,
            "nonfinite": self.guard.state(),
            "coefficients": {
                name: each.set_to for name, each in self.coefficients.items() if each.set_to is not None
            },
        }
        if self.reward_normalizer is not None:
            state["return_moments"] = self.reward_normalizer.state
        if self.reference is not None:
            state["reference"] = self.reference.vector
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the value of `state`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.learning_rate = state["learning_rate"]
        self.guard.load(state.get("nonfinite", [0, 0, 0]))
        for name, value in state.get("coefficients", {}).items():
            self.coefficients[name].set(value)
        if self.reward_normalizer is not None:
            self.reward_normalizer.state = state["return_moments"]
        if self.reference is not None:
            self.reference.vector.copy_(state["reference"])

    # -- 1. Schedules.

    def _warmup(self, progress: float) -> float:
        """Return the share of the full step size: that of ppo.warmup_steps done after this iteration."""
        config = self.config
        num_steps = round(progress * config.total_steps) + self.shape.batch_size
        return min(1.0, num_steps / config.warmup_steps) if config.warmup_steps else 1.0

    def _adapt_learning_rate(self, kl: float) -> None:
        """Divide the step size by 1.5 above twice the target divergence, multiply it by 1.5 below half of it."""
        target = self.config.adaptive_kl or 0.01
        start = self.config.learning_rate * self.shape.learning_rate_scale
        low, high = min(_ADAPTIVE_LR_RANGE[0], start), max(_ADAPTIVE_LR_RANGE[1], start)
        if kl > 2 * target:
            self.learning_rate = max(low, self.learning_rate / 1.5)
        elif kl < target / 2:
            self.learning_rate = min(high, self.learning_rate * 1.5)

    # -- 2. Rewards.

    def _scaled_rewards(self, rollout: Rollout) -> torch.Tensor:
        """Return rewards `[T, E]` as the estimator reads them: scaled, clipped and normalised as the settings say."""
        rewards, config = rollout.rewards, self.config
        if not self.estimator.reads_float64:
            rewards = rewards.to(rollout.values.dtype)
        rewards = scaled_and_clipped(rewards, config)
        if self.reward_normalizer is not None:
            ended = rollout.terminated | rollout.truncated
            rewards = self.reward_normalizer(rewards, ended, rollout.valid, self.gather)
        return rewards

    # -- 3. Minibatches. Their unit is a sample, or a sequence of L steps: C = num_sequences of each environment.

    @property
    def _shape_of_units(self) -> BatchShape:
        return replace(self.shape, rollout_steps=self.num_sequences) if self.num_sequences else self.shape

    def _in_units(self, x: torch.Tensor) -> np.ndarray:
        """Return x `[T, E]` by unit: `[T * E]` for samples, or summed over each sequence `[C * E]`."""
        if self.num_sequences:
            x = x.unflatten(0, (self.num_sequences, -1)).sum(dim=1)
        return x.flatten().cpu().numpy()

    def _plan(self, rollout: Rollout, iteration: int) -> list[EpochPlan]:
        """Return this rank's units in the order of every epoch."""
        shape, planned = self._shape_of_units, self._planned
        is_drawn = planned is not None and planned[0] == iteration
        epochs = range(self.config.num_epochs)
        if planned is not None and is_drawn:
            plan = [epoch.result() for epoch in planned[1]]
        else:
            plan = [local_minibatches(self.seed, iteration, epoch, shape, self.rank) for epoch in epochs]
        if self._planner is not None:
            draw = functools.partial(local_minibatches, self.seed, iteration + 1, shape=shape, rank=self.rank)
            self._planned = iteration + 1, [self._planner.submit(draw, epoch) for epoch in epochs]
        if not self.num_sequences and len(rollout.rewards) < shape.rollout_steps:
            # ddp_preempt ended this rollout early: the same minibatches, without the samples that are missing.
            plan = [of_first(rollout.rewards.numel(), *epoch) for epoch in plan]
        return plan

    def _batch(self, rollout: Rollout, estimates: Estimates, *, apart: bool) -> MinibatchSource:
        batch = self._source(rollout, estimates, apart=apart)
        if self.reference is not None:
            batch.fields["ref_logprobs"] = self.reference.logprobs(batch)
        return batch

    def _source(self, rollout: Rollout, estimates: Estimates, *, apart: bool) -> MinibatchSource:
        if self.model.minibatch_class is not None:
            batch: MinibatchSource = imported(self.model.minibatch_class)(rollout, estimates)
            return batch
        if self.model.state_size:
            return SequenceBatch(rollout, estimates)
        return SampleBatch(rollout, estimates, apart=apart)

    # -- 5. and 6. Faults and sums.

    def _fail(self, error: UpdateNotFinite, iteration: int) -> NoReturn:
        """Raise NonFiniteError, the same on all ranks, naming the ranks with a loss that is not finite."""
        local = torch.tensor([error.loss, *error.terms.values()], dtype=torch.float64)
        losses_by_rank, *to_blame = self.gather(local).T.tolist()
        where = where_not_finite(error, losses_by_rank, to_blame)
        stopped = "no rank moved its parameters from then on" if error.is_gradient else "all ranks stopped"
        raise NonFiniteError(
            f"{where} is not finite in iteration {iteration}; {stopped}. Losses by rank: {losses_by_rank}. A smaller "
            "ppo.learning_rate, ppo.normalize_rewards=true or ppo.normalize_obs=true often helps"
            f"{self.guard.exhausted()}"
        )

    def _skipped(self) -> Update:
        """Return the report of an update that was undone."""
        return Update(
            local_sums=torch.zeros_like(self.step.sums[0], device="cpu"),
            num_samples=0,
            steps=0,
            epochs=0,
            grad_norm=math.nan,
            learning_rate=self.learning_rate * self.guard.step_factor,
            explained_variance=math.nan if self.estimator.learns_values else None,
            metrics=self.guard.metrics,
        )


class EagerStep:
    """The loop over minibatches in PyTorch, one operation after another."""

    def __init__(self, learner: Learner) -> None:
        config, self.parameters = learner.config, learner.parameters
        self.sync = learner.sync
        self.distribution = learner.model.distribution
        self.surrogate = learner.surrogate
        self.optimizer = learner.optimizer
        self.scale = learner.scale
        self.own_terms = terms_of(config.losses)  # of the user's own
        device, num_shards = self.parameters.device, learner.shape.local_num_shards
        num_statistics, wide = len(statistic_names(config)), wide_dtype(device)
        self.sums = torch.zeros(num_shards, num_statistics, dtype=wide, device=device)
        self._coefficients = self._start = Coefficients.of(config)
        self._max_norm = config.max_grad_norm
        self._norms = torch.zeros((), dtype=wide, device=device)
        self._loss = torch.zeros_like(self._norms)  # of the step that made the norms NaN

    def begin(self, learning_rate: float, clip_coef: float, entropy_coef: float) -> None:
        self.sums.zero_()
        self._norms.zero_()
        self.optimizer.param_groups[0]["lr"] = learning_rate
        # A schedule changes the ranges below and above 1 by the same factor.
        start = self._start
        high = None if start.clip_high is None else start.clip_high * (clip_coef / start.clip)
        self._coefficients = start._replace(clip=clip_coef, clip_high=high, entropy=entropy_coef)

    def epoch(
        self, batch: MinibatchSource, order: torch.Tensor, bounds: list[int], counts: list[float]
    ) -> None:
        parts = iter(batch.minibatches(order, bounds))
        for count in counts:
            shards = list(itertools.islice(parts, len(self.sums)))
            if count == 0:  # no rank has a sample in this minibatch
                continue

            # Forward, loss and backward. The loss is a local sum over a global count, so gradients are summed.
            losses: list[torch.Tensor] = []  # of each shard
            for minibatch, sums in zip(shards, self.sums, strict=True):
                params, values = outputs(self.sync.model, minibatch)
                weights = minibatch["weights"]
                per_sample, terms = loss_per_sample(
                    params, values, minibatch, self.distribution, self._coefficients, self.surrogate
                )
                own: list[torch.Tensor] = []
                if self.own_terms:
                    added, own = own_losses(
                        self.own_terms, Samples(minibatch, params, values, self.distribution)
                    )
                    per_sample = per_sample + added
                local_loss = torch.dot(weights, per_sample) / count
                # The one collective of a minibatch: afterwards every rank holds the same gradient.
                self.sync.backward_(local_loss * nan_unless_finite(local_loss))
                with torch.no_grad():
                    sums += torch.stack([*terms.statistics(), *own]) @ weights
                losses.append(local_loss.detach().to(self._loss.dtype))

            # Clip by the norm over all parameters, then Adam.
            gradient = self.parameters.grad
            assert gradient is not None
            with torch.no_grad():
                loss = sum(losses[1:], losses[0])
                self._loss.copy_(torch.where(self._norms.isfinite(), loss, self._loss))
                norm = gradient.norm()
                self._norms += norm.to(self._norms.dtype)
                gradient.mul_((self._max_norm / (norm + NORM_EPS)).clamp(max=1.0))
                # Adam does nothing while found_inf is 1. The norms' sum stays NaN from the first NaN on, so nothing
                # moves for the rest of the iteration; `end` tells the learner.
                self.optimizer.found_inf = 1.0 - self._norms.isfinite().float()
                with scaled_step(self.parameters, self.scale):
                    self.optimizer.step()

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise UpdateNotFinite(self._loss.item(), terms=terms_to_blame(self.own_terms, self.sums))
        return norms


def scaled_and_clipped(rewards: torch.Tensor, config: SurrogateSettings) -> torch.Tensor:
    """Return the rewards times ppo.reward_scale, then cut to ppo.reward_clip."""
    if config.reward_scale != 1.0:
        rewards = rewards * config.reward_scale
    if config.reward_clip is not None:
        rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
    return rewards


# -- Parts of a step that all implementations share.


def terms_to_blame(own_terms: Sequence[Term], sums: torch.Tensor) -> dict[str, bool]:
    """Return which of the user's terms were not finite although the rest of the loss was, from an EpochStep's sums."""
    is_finite = sums.isfinite().all(dim=0).tolist()
    num_ours = len(is_finite) - len(own_terms)
    of_terms = zip(own_terms, is_finite[num_ours:], strict=True)
    return {term.name: not finite and all(is_finite[:num_ours]) for term, finite in of_terms}


def _unwrapped(method: Any) -> Any:
    return getattr(method, "__wrapped__", method)


class Adam(torch.optim.Adam):
    """torch's fused Adam without torch's compiler, which torch.optim loads at the first step: that takes a second.

    torch wraps these methods so that compiled functions leave them alone. No compiled function calls them here.
    """

    found_inf: torch.Tensor | None = None  # 1: the step changes nothing (torch.amp.GradScaler's switch)

    def __init__(self, params: Any, *, lr: float, eps: float) -> None:
        super().__init__(params, lr=lr, betas=BETAS, eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all parameters by the operation in which torch.optim.Adam(fused=True).step ends."""
        for group in self.param_groups:
            own, (beta1, beta2) = group["params"], group["betas"]
            steps, means, squares = map(list, zip(*(adam_state(self, p) for p in own), strict=True))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                own, [p.grad for p in own], means, squares, [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
                weight_decay=0.0, eps=group["eps"], amsgrad=False, maximize=False, found_inf=self.found_inf,
            )  # fmt: skip
            if self.found_inf is not None:
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))

    step.hooked = True  # type: ignore[attr-defined]  # no hooks around a step: torch wraps it with those of its profiler

    add_param_group = _unwrapped(torch.optim.Optimizer.add_param_group)
    state_dict = _unwrapped(torch.optim.Optimizer.state_dict)
    load_state_dict = _unwrapped(torch.optim.Optimizer.load_state_dict)


def adam_state(optimizer: torch.optim.Adam, parameters: torch.nn.Parameter) -> list[torch.Tensor]:
    """Return Adam's number of steps and its two moments; zeros before the first step, as Adam itself begins."""
    state = optimizer.state[parameters]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameters.device)
        state["exp_avg"] = torch.zeros_like(parameters.data)
        state["exp_avg_sq"] = torch.zeros_like(parameters.data)
    return [state["step"], state["exp_avg"], state["exp_avg_sq"]]


def step_scale(model: torch.nn.Module, config: SurrogateSettings) -> torch.Tensor | None:
    """Return the step size of each parameter relative to ppo.learning_rate `[num_parameters]`; None if all are 1."""
    if not config.learning_rates:
        return None
    scales = []
    for name, p in model.named_parameters():
        part = part_of(name, config.learning_rates)
        rate = config.learning_rate if part is None else config.learning_rates[part]
        scales.append(torch.full_like(p.detach(), rate / config.learning_rate).reshape(-1))
    return torch.cat(scales)


@contextmanager
def scaled_step(parameters: torch.nn.Parameter, scale: torch.Tensor | None) -> Iterator[None]:
    """Multiply the change that Adam makes in this context by `scale` `[num_parameters]`: a step size of each."""
    if scale is None:
        yield
        return
    before = parameters.detach().clone()
    yield
    parameters.data.copy_(before.lerp_(parameters.data, scale))


CLIP, ENTROPY = (
    0,
    2,
)  # the places of ppo.clip_coef and ppo.entropy_coef in `constants`, which schedules change


def constants(config: SurrogateSettings, device: torch.device) -> torch.Tensor:
    """Return the settings that a compiled step reads, `[6]` float64."""
    values = [
        config.clip_coef,
        config.value_coef,
        config.entropy_coef,
        config.clip_value_coef or math.inf,
        config.max_grad_norm,
        config.adam_eps,
    ]
    return torch.tensor(values, dtype=torch.float64, device=device)
