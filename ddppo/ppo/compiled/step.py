"""The step compiled ahead of time into two libraries: one for the gradient, one for clipping and Adam.

Between them is the sum over ranks. Shapes of minibatches are free, so one pair serves every number of ranks, batch size
and coefficient; compiler.py makes it, in a process of its own. Loading it takes a millisecond and imports nothing.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ddppo.config import ModelConfig, PPOConfig
from ddppo.models import ActorCritic, random_obs
from ddppo.ppo.learning.minibatches import Minibatch
from ddppo.ppo.learning.step import (
    CLIP,
    STATISTICS,
    ByMinibatch,
    Coefficients,
    NotFinite,
    adam_state,
    constants,
    losses_and_statistics,
    poison,
    scaled_step,
)
from ddppo.ppo.native.step import NativeStep
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each, leaves

LIBRARIES = ("gradient", "optimizer")
_SOURCES = (
    "learning/step.py",
    "losses/per_sample.py",
    "compiled/compiler.py",
    "compiled/step.py",
    "../models/distributions.py",
    "../models/heads.py",
)
_TRIED_ROWS = 11
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What the libraries are made from, besides the model's and their own source."""

    spec: EnvSpec
    model: ModelConfig
    dtype: str
    clips_value: bool
    device: str = "cpu"
    threads: int = 1

    def to_json(self) -> str:
        spec = dataclasses.replace(self.spec, spaces=None)  # which no code follows from
        fields = dataclasses.asdict(dataclasses.replace(self, spec=spec))
        if isinstance(self.spec.obs, dict):
            fields["spec"]["obs"] = list(fields["spec"]["obs"].items())  # whose order is not to be sorted
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        fields = json.loads(text)
        spec = fields.pop("spec")
        kind, *numbers = (spec["action"][name] for name in ("kind", "sizes", "low", "high"))
        action = ActionSpec(kind, *map(tuple, numbers))
        obs = (
            each(_array_spec, dict(spec["obs"]))
            if isinstance(spec["obs"], list)
            else _array_spec(spec["obs"])
        )
        return cls(
            spec=EnvSpec(obs, action, spec["mask_size"]),
            model=ModelConfig(**fields.pop("model")),
            **fields,
        )

    def key(self, model: ActorCritic) -> str:
        """Return a name for the libraries, which is another whenever they would be."""
        here = Path(__file__).parents[1]
        kinds = {kind for module in model.modules() for kind in type(module).__mro__}
        files = {here / name for name in _SOURCES}
        for kind in kinds:
            with suppress(TypeError):  # built in, or without a file
                files.add(Path(inspect.getsourcefile(kind) or __file__))
        sources = [path.read_bytes() for path in sorted(files)]
        built = [f"{name} {tuple(p.shape)}" for name, p in model.named_parameters()]
        parts = [self.to_json(), torch.__version__, _machine(), *built]
        return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *sources])).hexdigest()[:16]


def _array_spec(fields: dict[str, Any]) -> ArraySpec:
    return ArraySpec(tuple(fields["shape"]), fields["dtype"], fields["high"])


def _machine() -> str:
    """Return what machine code depends on: a home folder may serve machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    gpu = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    return f"{torch.backends.cpu.get_cpu_capability()} {flags} {gpu}"


def is_made(folder: Path) -> bool:
    return all((folder / f"{name}.so").is_file() for name in LIBRARIES)


def example(spec: EnvSpec, model: ActorCritic, num_rows: int, generator: torch.Generator) -> Minibatch:
    """Return a minibatch of random numbers, of the types and in the order that the learner's have."""
    p = next(model.parameters())

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(num_rows, *shape, dtype=p.dtype, generator=generator)

    mask = None if spec.mask_size is None else torch.ones(num_rows, spec.mask_size, dtype=torch.bool)
    obs = each(lambda x: x.to(p.device), random_obs(spec, num_rows, p.dtype, generator))
    with torch.no_grad():
        actions = model.distribution(model.action_params(obs).cpu(), mask).sample(random(model.num_noise))
        params, values = (x.cpu() for x in model.at(obs, actions.to(p.device)))
        logprobs = model.distribution(params, mask).log_prob(actions)
    minibatch = {
        "obs": obs,
        "actions": actions,
        "logprobs": logprobs + 0.4 * (random() - 0.5),  # ratios on both sides of the clip
        "values": values,
        "advantages": random() - 0.5,
        "returns": values + random(),
        "weights": torch.ones(num_rows, dtype=p.dtype),
    }
    if mask is not None:
        minibatch["mask"] = mask
    return {name: each(lambda x: x.to(p.device), field) for name, field in minibatch.items()}


def tensors(minibatch: Minibatch) -> list[torch.Tensor]:
    """Return all tensors of a minibatch, those of obs first."""
    obs, *others = minibatch.values()
    return [*leaves(obs), *others]


class CompiledStep(ByMinibatch):
    """Takes the step by the libraries in `folder`. sum_: replaces the gradient by its sum over ranks.

    Of several shards, it is called for each and leaves the sum over all with the last.

    scale: of the step size of each parameter, all 1 if None.
    Raises RuntimeError where they cannot be loaded here.
    """

    def __init__(
        self,
        folder: Path,
        config: PPOConfig,
        model: ActorCritic,
        parameters: torch.nn.Parameter,
        optimizer: torch.optim.Adam,
        sum_: Callable[[torch.Tensor], torch.Tensor],
        scale: torch.Tensor | None = None,
        num_shards: int = 1,
    ) -> None:
        device = parameters.device
        self._parameters = parameters
        self._optimizer = optimizer
        self._sum_ = sum_
        self._scale = scale
        self._gradient_of, self._optimize = (_load(folder / f"{name}.so", device) for name in LIBRARIES)
        self._model_buffers = [x for _, x in model.named_buffers()]
        self._constants, self._clip_coef = constants(config, device), config.clip_coef
        self.sums = torch.zeros(num_shards, len(STATISTICS), dtype=torch.float64, device=device)
        self._sums_of_shards = self.sums.unbind()
        self._norms = torch.zeros((), dtype=torch.float64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._counts: dict[float, torch.Tensor] = {}
        self._learning_rate = torch.zeros((), dtype=torch.float64, device=device)
        self._moments: list[torch.Tensor] = []

    def begin(self, learning_rate: float, clip_coef: float) -> None:
        self._forget()
        self._learning_rate.fill_(learning_rate)
        if clip_coef != self._clip_coef:
            self._constants[CLIP] = self._clip_coef = clip_coef
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._moments = adam_state(self._optimizer, self._parameters)

    def take(self, shards: Sequence[Minibatch], count: float) -> None:
        for minibatch, sums in zip(shards, self._sums_of_shards, strict=True):
            gradient = self._gradient_(minibatch, count, sums)
            self._sum_(gradient)
        inputs = [self._parameters.data, gradient, *self._moments, self._norms, self._learning_rate]
        with scaled_step(self._parameters, self._scale):
            self._optimize.run([*inputs, self._constants])

    def end(self) -> float:
        norms = self._norms.item()
        if not math.isfinite(norms):
            raise NotFinite(self._loss.item())
        return norms

    def _forget(self) -> None:
        self.sums.zero_()
        self._norms.zero_()

    def _gradient_(self, minibatch: Minibatch, count: float, sums: torch.Tensor) -> torch.Tensor:
        """Leave this rank's gradient in the parameters' and return it."""
        gradient = self._parameters.grad
        assert gradient is not None
        fields = tensors(minibatch)
        if len(fields[-1]) < 2:  # no shape of its own is compiled for one row
            fields = tensors(_two_rows(minibatch))
        if count not in self._counts:
            self._counts[count] = torch.tensor(float(count), dtype=torch.float64, device=gradient.device)
        self._gradient_of.run(
            [self._parameters.data, gradient, sums, self._loss, self._norms, self._constants,
             self._counts[count], *fields, *self._model_buffers]
        )  # fmt: skip
        return gradient

    def gradient(self, minibatch: Minibatch) -> torch.Tensor:
        """Leave this rank's gradient of the mean loss over a minibatch in the parameters', and return it."""
        self._forget()
        return self._gradient_(minibatch, len(minibatch["weights"]), self._sums_of_shards[0])


def worst_error(
    step: "CompiledStep | NativeStep", spec: EnvSpec, model: ActorCritic, config: PPOConfig
) -> float:
    """Return how far a gradient of `step` is from autograd's, relative to the longest component; nothing moves."""
    minibatch = example(spec, model, _TRIED_ROWS, torch.Generator().manual_seed(0))
    gradient = step.gradient(minibatch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    params, values = model.at(minibatch["obs"], minibatch["actions"])
    per_sample, *_ = losses_and_statistics(
        params, values, minibatch, model.distribution, Coefficients.of(config)
    )
    loss = per_sample.mean()
    found = torch.autograd.grad(loss * poison(loss), parameters, materialize_grads=True)
    expected = iter(found)
    whole = [next(expected) if p.requires_grad else torch.zeros_like(p) for p in model.parameters()]
    flat = torch.cat([g.reshape(-1) for g in whole])
    return ((gradient - flat).abs().max() / flat.abs().max()).item()


def agrees(step: "CompiledStep | NativeStep", spec: EnvSpec, model: ActorCritic, config: PPOConfig) -> bool:
    """Return whether the gradient of `step` is autograd's, up to rounding."""
    return worst_error(step, spec, model, config) <= _TOLERANCE[next(model.parameters()).dtype]


def _load(library: Path, device: torch.device) -> Any:
    if device.type == "cuda":
        return torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1, str(device), str(library.parent))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)


def _two_rows(minibatch: Minibatch) -> Minibatch:
    """Return a minibatch of none or one row with rows of weight 0 added."""

    def padded(x: torch.Tensor, *, with_zeros: bool) -> torch.Tensor:
        padding = x.new_zeros((2, *x.shape[1:])) if len(x) == 0 or with_zeros else torch.cat([x, x])
        padding[: len(x)] = x
        return padding

    return {
        name: each(functools.partial(padded, with_zeros=name == "weights"), field)
        for name, field in minibatch.items()
    }


def remove(folder: Path) -> None:
    """Remove libraries that do not compute what they should."""
    shutil.rmtree(folder, ignore_errors=True)
