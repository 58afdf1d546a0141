"""The learner of an algorithm: it calls `Algorithm.learn`, and is the `step` that the algorithm calls back.

`AlgorithmLearner.update` is an iteration's learning, `LearnerStep.__call__` one step of an optimizer: backward, one sum
over learners, clip, Adam. The same for any number of learners, because a loss is a local sum over a global count. PPO
and GRPO have a learner of their own (ddppo/ppo/learner.py), with the same methods.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.contract import Algorithm, MinibatchRows, Part, Share, in_words
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import TrainingSettings
from ddppo.config.schedules import Coefficient
from ddppo.device import wide_dtype
from ddppo.errors import NonFiniteError, TrainingError
from ddppo.ppo.learner import NORM_EPS, Adam, GradientSync, Normalizers, Update, adam_state
from ddppo.ppo.losses import STATISTICS, nan_unless_finite
from ddppo.ppo.minibatches import local_minibatches, of_first
from ddppo.ppo.nonfinite import NonFiniteGuard, UpdateNotFinite, all_finite, snapshot, where_not_finite
from ddppo.ppo.normalization import merge_moments, moments, variance
from ddppo.ppo.rollout import Transitions
from ddppo.scaling import BatchShape
from ddppo.seeding import stream
from ddppo.spaces import each

_STANDARD = {
    name: f"train/{name}" for name in STATISTICS
}  # metrics that have a row of their own in the table
_EPS = 1e-8  # added to the deviation


class AlgorithmLearner:
    """Improves the parameters by an algorithm's `learn`."""

    def __init__(
        self,
        algorithm: Algorithm,
        config: TrainingSettings,
        shape: BatchShape,  # of the ranks that learn
        sync: GradientSync,
        group: Group,  # the ranks that learn
        normalizers: Normalizers,
        seed: int,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.obs_normalizer = normalizers.obs
        self.reward_normalizer = None
        self.guard = NonFiniteGuard()
        self.parameters: torch.nn.Parameter = sync.parameters.vector
        self.step = LearnerStep(algorithm, shape, sync, group, seed)
        self.learning_rate = max(part.learning_rate for part in algorithm.parts().values())
        self.coefficients: dict[str, Coefficient] = getattr(config, "coefficients", dict)()

    def update(self, rollout: Transitions, iteration: int, progress: float) -> Update:
        """Learn from the rollout of `iteration`. Raises NonFiniteError on all ranks at once."""
        undo = snapshot(self) if self.guard.mode == "skip_batch" else None
        # 1. What learning sees: rewards scaled and cut, tensors that autograd may keep.
        self.algorithm.progress = progress
        rollout = self._prepared(rollout)

        # 2. The algorithm learns, by calls of the step.
        parts = self._parts(progress)
        factor = self.guard.step_factor * self.shape.learning_rate_scale
        self.learning_rate = max(part.learning_rate for part in parts.values()) * factor
        self.step.begin(iteration, parts, factor)
        name = type(self.algorithm).__name__
        metrics = self._metrics(self.algorithm.learn(rollout, self.step))
        self._update_obs_normalizer(rollout)

        # 3. A gradient that was not finite is seen here, once per iteration, on all learners alike.
        try:
            norms = self.step.end()
            if not all_finite(self):
                raise UpdateNotFinite(0.0, "a parameter or normaliser, though no gradient,")
        except UpdateNotFinite as e:
            if undo is None or not self.guard.may_skip():
                losses = (
                    self.step.group.gather(torch.tensor([e.loss], dtype=torch.float64)).flatten().tolist()
                )
                raise NonFiniteError(
                    f"{where_not_finite(e, losses, [])} of algorithm {name} is not finite in iteration {iteration}; no "
                    f"rank moved its parameters from then on. Losses by rank: {losses}{self.guard.exhausted()}"
                ) from e
            undo()
            return self._report(0, math.nan, self.guard.metrics)
        self.guard.in_row = 0
        return self._report(self.step.num_steps, norms, {**metrics, **self.guard.metrics})

    def _parts(self, progress: float) -> Mapping[str, Part]:
        """Return the algorithm's parts, with its own step sizes or by the schedule."""
        coefficient = self.coefficients.get("learning_rate")
        if coefficient is None or not coefficient.is_reported:
            return self.algorithm.parts()
        self.algorithm.progress = 0.0
        at_start = self.algorithm.parts()
        self.algorithm.progress = progress
        factor = coefficient.at(progress) / getattr(self.config, "learning_rate")  # noqa: B009 (a setting of some)
        return {
            name: replace(part, learning_rate=part.learning_rate * factor) for name, part in at_start.items()
        }

    def values_of_coefficients(self, progress: float) -> dict[str, float]:
        """Return the coefficients after this share of total_steps, as `set_coefficient` takes them."""
        return {name: each.at(progress) for name, each in self.coefficients.items()}

    def set_coefficient(self, name: str, value: float) -> None:
        """Let a coefficient have this value from the next iteration on, in place of its schedule."""
        self.coefficients[name].set(value)

    @property
    def shape(self) -> BatchShape:
        """Sizes of an iteration over the ranks that learn."""
        return self.step.shape

    @shape.setter
    def shape(self, shape: BatchShape) -> None:
        self.step.shape = shape

    def carried(self) -> list[torch.Tensor]:
        """Return the tensors beside the parameters that an update changes: Adam's state and `kept`."""
        return [*self.step.adam_state(), *self.algorithm.kept.values()]

    def state(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint."""
        return {
            "optimizer": {name: part.optimizer.state_dict() for name, part in self.step.parts.items()},
            "learning_rate": self.learning_rate,
            "nonfinite": self.guard.state(),
            "kept": dict(self.algorithm.kept),
            "coefficients": {
                name: each.set_to for name, each in self.coefficients.items() if each.set_to is not None
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the value of `state`."""
        for name, part in self.step.parts.items():
            part.optimizer.load_state_dict(state["optimizer"][name])
        self.learning_rate = state["learning_rate"]
        self.guard.load(state["nonfinite"])
        for name, value in state.get("coefficients", {}).items():
            self.coefficients[name].set(value)
        for name, x in self.algorithm.kept.items():
            x.copy_(state["kept"][name])

    def _prepared(self, rollout: Transitions) -> Transitions:
        def usable(x: Any) -> Any:
            return x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x

        found = {f.name: getattr(rollout, f.name) for f in fields(rollout)}
        found = {
            name: each(usable, x) if isinstance(x, dict | torch.Tensor) else x for name, x in found.items()
        }
        rewards = found["rewards"] * self.config.reward_scale
        if self.config.reward_clip is not None:
            rewards = rewards.clamp(-self.config.reward_clip, self.config.reward_clip)
        return replace(rollout, **found | {"rewards": rewards.to(self.parameters.dtype)})

    def _update_obs_normalizer(self, rollout: Transitions) -> None:
        if self.obs_normalizer is not None:
            own = self.obs_normalizer.moments(rollout.raw_obs, rollout.valid.cpu())
            self.obs_normalizer.update_(merge_moments(self.step.group.gather(own)))

    def _metrics(self, found: Any) -> dict[str, float]:
        """Return what `learn` returned, by the names of the table. Raises TrainingError unless these are numbers."""
        subject = f"{type(self.algorithm).__name__}.learn returned"
        if not isinstance(found, Mapping):
            raise TrainingError(
                f"{subject} {in_words(found)}: it must return numbers by name, as {{'policy_loss': 0.1}}, or {{}}"
            )
        numbers = {}
        for name, x in found.items():
            try:
                if isinstance(x, str) or not isinstance(name, str):
                    raise TypeError
                numbers[_STANDARD.get(name, f"algorithm/{name}")] = float(x)
            except (TypeError, ValueError, RuntimeError) as e:
                raise TrainingError(
                    f"{subject} {in_words(x)} as {name}: it must return numbers by name"
                ) from e
        return numbers

    def _report(self, num_steps: int, norms: float, metrics: Mapping[str, float]) -> Update:
        return Update(
            local_sums=torch.zeros(0, dtype=torch.float64),
            num_samples=0,
            steps=num_steps,
            epochs=1,
            grad_norm=norms / num_steps if num_steps else math.nan,
            learning_rate=self.learning_rate,
            explained_variance=None,
            metrics=metrics,
        )


class _PartState:
    """The parameters of a part as slices of the flat vector, and their Adam."""

    def __init__(
        self,
        part: Part,
        slices: list[tuple[int, int]],
        own: list[torch.nn.Parameter],  # the model's parameters in these slices
        vector: torch.nn.Parameter,
    ) -> None:
        assert vector.grad is not None
        self.part, self.own = part, own
        self.parameters = []
        for start, end in slices:  # views: they share the memory of the model's parameters and gradients
            p = torch.nn.Parameter(vector.data[start:end])
            p.grad = vector.grad[start:end]
            self.parameters.append(p)
        self.optimizer = Adam(self.parameters, lr=part.learning_rate, eps=part.adam_eps)

    def sum_gradient_(self, group: Group) -> torch.Tensor:
        """Sum the part's gradient over learners in place; return its norm."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if len(gradients) == 1:
            return group.sum_(gradients[0]).norm()
        flat = group.sum_(torch.cat(gradients))
        for gradient, summed in zip(gradients, flat.split([len(g) for g in gradients]), strict=True):
            gradient.copy_(summed)
        return flat.norm()


class LearnerStep:
    """The `Step` of a learner (contract.py): the one place where its algorithm meets the other learners."""

    def __init__(
        self, algorithm: Algorithm, shape: BatchShape, sync: GradientSync, group: Group, seed: int
    ) -> None:
        self.group = group
        self.shape = shape
        self._name = type(algorithm).__name__
        self.iteration = 0
        self.envs = torch.tensor(list(shape.env_indices(group.rank)))
        self.share = Share(self.envs, shape.num_envs, torch.ones(len(self.envs), dtype=torch.bool))
        self.num_steps = 0  # of all optimizers, in this iteration
        self._seed = seed
        vector, named = sync.parameters.vector, dict(algorithm.model.named_parameters())
        self.parts: dict[str, _PartState] = {}
        for name, part in algorithm.parts().items():
            slices = sync.parameters.slices(part.parameters)
            if not slices:
                raise TrainingError(
                    f"{self._name}.parts: no parameter has a name that begins with {' or '.join(part.parameters)}, for "
                    f"the part {name}"
                )
            # Frozen parameters have no gradient.
            own = [named[p] for p in sync.parameters.names(part.parameters) if named[p].requires_grad]
            self.parts[name] = _PartState(part, slices, own, vector)
        self._norms = torch.zeros((), dtype=wide_dtype(vector.device), device=vector.device)
        self._loss = torch.zeros_like(self._norms)  # of the step that made norms NaN

    def begin(self, iteration: int, parts: Mapping[str, Part], step_factor: float) -> None:
        """Begin an iteration with the learning rates of `parts` times `step_factor`."""
        self.iteration, self.num_steps = iteration, 0
        self._norms.zero_()
        for name, part in parts.items():
            self.parts[name].part = part
            self.parts[name].optimizer.param_groups[0]["lr"] = part.learning_rate * step_factor

    def expect(self, envs: Sequence[int], follows: Sequence[bool], run_envs: int) -> None:
        """Name the columns of the next rollout, for a learner that gets rollouts of any environments of the run."""
        self.envs = torch.tensor(envs)
        self.share = Share(torch.arange(run_envs), run_envs, torch.tensor(follows))

    def end(self) -> float:
        """Return the sum over steps of the gradients' norms before clipping. Raises UpdateNotFinite."""
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise UpdateNotFinite(self._loss.item())
        return norms

    def adam_state(self) -> list[torch.Tensor]:
        return [
            x for part in self.parts.values() for p in part.parameters for x in adam_state(part.optimizer, p)
        ]

    # -- What the contract promises.

    @property
    def num_envs(self) -> int:
        return self.shape.num_envs

    def __call__(self, loss: torch.Tensor | None, count: float, part: str = "all") -> None:
        state = self._part(part)
        if loss is not None:
            self._check_loss(loss)
        if count == 0:  # no learner has a sample
            return
        for p in state.parameters:
            p.grad.zero_()  # type: ignore[union-attr]
        if loss is not None:
            # The gradient of loss / count, by this part alone: backward skips what only other parameters need.
            local_loss = loss.detach() / count
            (loss * (nan_unless_finite(local_loss).to(loss.dtype) / count)).backward(inputs=state.own)
        with torch.no_grad():
            norm = state.sum_gradient_(self.group)
            if loss is not None:
                self._loss = torch.where(self._norms.isfinite(), local_loss, self._loss)
            self._norms += norm
            if state.part.max_grad_norm < math.inf:
                scale = (state.part.max_grad_norm / (norm + NORM_EPS)).clamp(max=1.0)
                for p in state.parameters:
                    p.grad.mul_(scale)  # type: ignore[union-attr]
            # As in EagerStep: Adam does nothing from the first gradient that is not finite on.
            state.optimizer.found_inf = 1.0 - self._norms.isfinite().float()
            state.optimizer.step()
        self.num_steps += 1

    def _part(self, name: str) -> _PartState:
        if name not in self.parts:
            raise TrainingError(
                f"{self._name}.learn moved the part {name}, and {self._name}.parts has {', '.join(self.parts)}"
            )
        return self.parts[name]

    def _check_loss(self, loss: Any) -> None:
        """Raise TrainingError unless the loss is a scalar with a gradient."""
        if not isinstance(loss, torch.Tensor) or loss.shape != ():
            raise TrainingError(
                f"{self._name}.learn gave step {in_words(loss)} as its loss: it must be a scalar tensor, the sum of "
                "the losses of this learner's samples"
            )
        if not loss.requires_grad:
            raise TrainingError(
                f"{self._name}.learn gave step a loss without a gradient: it must depend on the parameters, outside "
                "torch.no_grad() and without .detach()"
            )

    def sum(self, x: torch.Tensor | float) -> torch.Tensor:
        x = x.detach().cpu() if isinstance(x, torch.Tensor) else x
        value = torch.as_tensor(x, dtype=torch.float64)
        return self.group.gather(value.reshape(-1)).sum(dim=0).reshape(value.shape)

    def normalized(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        merged = merge_moments(self.group.gather(moments(x[valid]).cpu()))
        if merged[0] <= 1:
            return x
        mean, std = merged[1].item(), variance(merged).sqrt().item()
        return (x - mean) / (std + _EPS)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        # Learners may have unequal shares of the environments: pad to the largest, and drop the padding.
        local = x.detach().cpu()
        padded = local.new_zeros(self.shape.local_num_envs, *local.shape[1:])
        padded[: len(local)] = local
        of_all = self.group.gather(padded)  # [W, most, ...]
        shares = [len(self.shape.env_indices(place)) for place in range(self.group.world_size)]
        return torch.cat([of_rank[:num_envs] for of_rank, num_envs in zip(of_all, shares, strict=True)])

    def minibatches(
        self, rollout: Transitions, num_epochs: int, num_minibatches: int
    ) -> Iterator[MinibatchRows]:
        # The same plan as PPO's: a permutation of the batch of all learners, of which each keeps its own rows.
        shape = replace(self.shape, num_epochs=num_epochs, num_minibatches=num_minibatches)
        plan = [
            local_minibatches(self._seed, self.iteration, epoch, shape, self.group.rank)
            for epoch in range(num_epochs)
        ]
        if rollout.valid.numel() < len(self.envs) * shape.rollout_steps:
            plan = [of_first(rollout.valid.numel(), *epoch) for epoch in plan]
        valid = rollout.valid.flatten().cpu().numpy()
        parts = [
            order[start:end][valid[order[start:end]]]
            for order, bounds in plan
            for start, end in itertools.pairwise(bounds)
        ]
        # One collective for all epochs: what divides the loss of each minibatch.
        counts = self.sum(torch.tensor([float(len(part)) for part in parts]))
        device = rollout.rewards.device
        for part, count in zip(parts, counts.tolist(), strict=True):
            yield MinibatchRows(torch.from_numpy(np.ascontiguousarray(part)).to(device), count)

    def stream(self, *numbers: int) -> np.random.Generator:
        key = 0
        for number in numbers:
            key = key * 1_000_003 + number + 1
        return stream(self._seed, "learn", key, self.iteration)
