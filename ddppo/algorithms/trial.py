"""Try an algorithm on random numbers before a run: its class, its networks, act. Each mistake is one ConfigError.

`check_algorithm` is called before any process starts, for algorithms of ours and of users; `learn` is tried in
learning_trial.py. PPO and GRPO need no trial: they act and learn by code of the core, and the model is checked by
itself (models/model_check.py).
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.build import algorithm_class, build_networks
from ddppo.algorithms.contract import Acted, Algorithm, Part, in_words
from ddppo.algorithms.known import algorithm_setting
from ddppo.algorithms.learning_trial import LearningTrial, MakeSync
from ddppo.config.settings import Config
from ddppo.errors import ConfigError, NonFiniteError, TrainingError, in_one_line
from ddppo.models.actor_critic import ActorCritic, Obs, random_obs
from ddppo.models.model_check import listed
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec, each, leaves

_ACTED_ROWS = 8  # of the batch that acting is tried with
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-9}  # of outputs of a row alone and in a batch


def check_algorithm(config: Config, spec: EnvSpec, shape: BatchShape, make_sync: MakeSync) -> str | None:
    """Try the algorithm of `config`, which has no learner of its own.

    Returns a warning if results may depend on W, else None. Raises ConfigError.
    """
    kind = algorithm_class(config)
    with _no_trace():
        trial = AlgorithmTrial(kind, config, spec, shape)
        trial.check_class()
        trial.make()
        trial.check_parts()
        warnings = trial.check_acting()
        trial.check_evaluation()
        warnings += LearningTrial(trial, make_sync).check()
    return "; ".join(warnings) or None


@contextmanager
def _no_trace() -> Iterator[None]:
    """Restore the global random generators after the trial, which an algorithm may draw from."""
    threads = torch.get_num_threads()
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            torch.set_num_threads(1)  # several would cost more than these small tensors
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(of_python)
        np.random.set_state(of_numpy)


class AlgorithmTrial:
    """Calls the methods of one algorithm, and raises ConfigError for the first mistake."""

    def __init__(self, kind: type[Algorithm], config: Config, spec: EnvSpec, shape: BatchShape) -> None:
        self.kind = kind
        self.config = config
        self.settings = config.training
        self.spec = spec
        self.shape = shape
        self.subject = algorithm_setting(config)
        self.dtype = getattr(torch, config.dtype)
        self.generator = torch.Generator().manual_seed(0)
        self.algorithm: Algorithm
        self.model: ActorCritic

    def fails(self, method: str, what: str) -> ConfigError:
        return ConfigError(f"{self.subject}: {self.kind.__name__}.{method} {what}")

    def call(self, method: str, call: Callable[[], Any], where: str = "") -> Any:
        try:
            return call()
        except (ConfigError, NonFiniteError):
            raise
        except TrainingError as e:
            raise ConfigError(f"{self.subject}: {e}") from e
        except Exception as e:  # a user's algorithm may raise anything
            raise self.fails(method, f"raised{where} {in_one_line(e)}") from e

    # -- The class, its networks and their parts.

    def check_class(self) -> None:
        """Check what the class declares, and whether the algorithm can train on this task."""
        kind = self.kind
        if self.spec.is_text:
            raise ConfigError(
                f"{self.subject} with {self.config.env.id}, a task of text: only ppo and grpo learn from text: use "
                "algorithm=ppo"
            )
        if not _is_names(kind.synchronised):
            raise self.fails(
                "synchronised", f"is {kind.synchronised!r}: it must be a tuple of names of parameters"
            )
        if kind.records not in ((), ("logprobs",)):
            raise self.fails("records", f"is {kind.records!r}: it must be ('logprobs',), or () for nothing")
        if kind.max_lag is not None and (not isinstance(kind.max_lag, int) or kind.max_lag < 0):
            raise self.fails("max_lag", f"is {kind.max_lag!r}: it must be a number of updates, or None")
        self.call("check", lambda: kind.check(self.spec, self.settings))

    def make(self) -> None:
        """Build the networks, and the algorithm with them."""
        self.algorithm = self.made()
        self.model = self.algorithm.model

    def made(self) -> Algorithm:
        """Return the algorithm with networks of its own; their parameters are the same in every call."""
        model = build_networks(self.config, self.spec)
        if model.state_size and not self.kind.takes_memory:
            memory = getattr(self.config.model, "memory", "none")
            setting = f"model.name={self.config.model.name}" if memory == "none" else f"model.memory={memory}"
            raise ConfigError(
                f"{self.subject} with {setting}: {self.kind.__name__} has takes_memory=False, so it learns without "
                "memory: use a model without it"
            )
        if not any(p.requires_grad for p in model.parameters()):
            raise self.fails("networks", "returned networks without a parameter that can learn")
        algorithm: Algorithm = self.call("__init__", lambda: self.kind(self.spec, self.settings, model))
        if algorithm.replay is not None and self.config.on_nonfinite == "skip_batch":
            raise ConfigError(
                f"on_nonfinite=skip_batch with {self.subject}: the rows of the skipped batch would stay in the replay "
                "buffer and be drawn again: use on_nonfinite=stop, or restore with distributed=ddp"
            )
        kept = getattr(algorithm, "kept", None)
        if not isinstance(kept, dict) or not all(isinstance(x, torch.Tensor) for x in kept.values()):
            raise self.fails(
                "kept", "must be a dict of tensors by name: call super().__init__, and add to it"
            )
        return algorithm

    def check_parts(self) -> None:
        """Check that names in `parts` and `synchronised` are those of parameters, and that parts do not overlap."""
        parts = self.call("parts", self.algorithm.parts)
        if not (isinstance(parts, Mapping) and parts and all(isinstance(x, Part) for x in parts.values())):
            raise self.fails("parts", "must return at least one Part by name, as {'all': Part(1e-3)}")
        found: dict[str, set[str]] = {}
        for name, part in parts.items():
            if not _is_names(part.parameters):
                raise self.fails(
                    "parts",
                    f"has parameters={part.parameters!r} for {name}: it must be a tuple of names of parameters",
                )
            if not part.learning_rate >= 0:
                raise self.fails(
                    "parts", f"has learning_rate={part.learning_rate} for {name}: must be at least 0"
                )
            found[name] = set()
            for prefix in part.parameters:
                found[name] |= self._named(prefix, f"parts: {name}")
        for (a, of_a), (b, of_b) in combinations(found.items(), 2):
            if both := sorted(of_a & of_b):
                raise self.fails("parts", f"has {listed(both)} in both {a} and {b}: a parameter has one Adam")
        for prefix in self.kind.synchronised:
            self._named(prefix, "synchronised")

    def _named(self, prefix: str, where: str) -> set[str]:
        """Return the parameters with a prefix. Raises ConfigError if there are none."""
        names = [name for name, _ in self.model.named_parameters()]
        found = {name for name in names if prefix in ("", name) or name.startswith(f"{prefix}.")}
        if not found:
            has = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise self.fails(where, f"names {prefix}, and no parameter has a name that begins so: use {has}")
        return found

    # -- Acting.

    def check_acting(self) -> list[str]:
        """Act on a batch, on the same again, and on a half of it. Returns warnings."""
        n = _ACTED_ROWS
        inputs = self.inputs(n)
        first, again = self.acted(*inputs), self.acted(*inputs)

        def half(x: Any) -> Any:
            return None if x is None else each(lambda leaf: leaf[: n // 2].clone(), x)

        alone = self.acted(*map(half, inputs))
        self.algorithm.progress = 0.9
        self._check_extras(first, self.acted(*self.inputs(n)))
        self.algorithm.progress = 0.0
        self._check_extras(first, alone)
        # What results depend on, other than each row and its noise.
        if not self._equal(first, again):
            return [
                f"{self.subject}: {self.kind.__name__}.act returns other actions or extras for the same observations "
                "and noise, so that results depend on dist.world_size: draw nothing, and take randomness from noise "
                "alone"
            ]
        if not self._equal(first, alone):
            return [
                f"{self.subject}: {self.kind.__name__}.act lets observations of a batch mix, so that results depend on "
                "dist.world_size: compute each action from its own observation and noise alone"
            ]
        return []

    def inputs(self, n: int) -> tuple[Obs, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """Return random obs, mask, noise and memory of n environments."""
        noise_of = torch.randn if self.spec.action.kind == "box" else torch.rand
        noise = noise_of(n, self.model.num_noise, generator=self.generator, dtype=self.dtype)
        memory = torch.zeros(n, self.model.state_size, dtype=self.dtype) if self.model.state_size else None
        return random_obs(self.spec, n, self.dtype, self.generator), self.mask(n), noise, memory

    def mask(self, n: int) -> torch.Tensor | None:
        """Return a random mask `[n, mask_size]` that allows at least one choice of each component."""
        if self.spec.mask_size is None:
            return None
        parts = []
        for size in self.spec.action.sizes:
            mask = torch.rand(n, size, generator=self.generator) < 0.5
            mask[torch.arange(n), torch.randint(size, (n,), generator=self.generator)] = True
            parts.append(mask)
        return torch.cat(parts, dim=1)

    def acted(
        self, obs: Obs, mask: torch.Tensor | None, noise: torch.Tensor, memory: torch.Tensor | None
    ) -> Acted:
        """Call `act` and check what it returns."""
        n = len(noise)
        given = [each(torch.clone, x) for x in (obs, mask, noise, memory) if x is not None]
        with torch.inference_mode():
            acted = self.call(
                "act",
                lambda: self.algorithm.act(obs, mask, noise, memory),
                f" for {n} environments:",
            )
        now = [x for x in (obs, mask, noise, memory) if x is not None]
        if not all(
            map(torch.equal, (x for g in given for x in leaves(g)), (x for g in now for x in leaves(g)))
        ):
            raise self.fails(
                "act", "changes the observations, mask, noise or memory that it gets: compute on a copy"
            )
        if not isinstance(acted, Acted):
            raise self.fails(
                "act", f"returned {in_words(acted)}: it must return Acted(actions, extras, memory)"
            )
        self._check_actions("act", acted.actions, mask, n)
        for name, x in acted.extras.items():
            if not isinstance(x, torch.Tensor) or x.shape[:1] != (n,):
                raise self.fails(
                    "act",
                    f"returned {in_words(x)} as the extra {name} of {n} environments: it must be a tensor [{n}, ...]",
                )
        size = self.model.state_size
        if size and (not isinstance(acted.memory, torch.Tensor) or acted.memory.shape != (n, size)):
            raise self.fails(
                "act", f"returned {in_words(acted.memory)} as memory: it must be a tensor [{n}, {size}]"
            )
        return acted

    def _check_actions(self, method: str, actions: Any, mask: torch.Tensor | None, n: int) -> None:
        """Check the shape and type of actions, and that they are in the action space and allowed by the mask."""
        spec = self.spec.action
        wanted = (n, *spec.shape)
        if not isinstance(actions, torch.Tensor) or actions.shape != wanted:
            raise self.fails(
                method,
                f"returned {in_words(actions)} as actions of {n} environments: they must be a tensor {list(wanted)}",
            )
        if actions.is_floating_point() != (spec.kind == "box"):
            must = "floating-point numbers" if spec.kind == "box" else "integers"
            raise self.fails(
                method, f"returned actions of {actions.dtype}: {spec.kind} actions must be {must}"
            )
        if spec.kind == "box":
            if not actions.isfinite().all():
                raise self.fails(method, "returned actions that are not finite")
            return
        sizes = torch.tensor([2] * spec.sizes[0] if spec.kind == "multi_binary" else spec.sizes)
        columns = actions.reshape(n, -1)
        if ((columns < 0) | (columns >= sizes)).any():
            low, high = columns.min().item(), columns.max().item()
            has = f"{sizes.max().item()} choices, numbered from 0"
            raise self.fails(
                method, f"returned actions from {low} to {high}, outside the action space: it has {has}"
            )
        if mask is None:
            return
        for part, choice in zip(mask.split(list(spec.sizes), dim=1), columns.unbind(dim=1), strict=True):
            if not part.gather(1, choice.unsqueeze(1)).all():
                raise self.fails(
                    method, "returned actions that the mask forbids: pass it to model.distribution"
                )

    def _check_extras(self, first: Acted, other: Acted) -> None:
        """Check that names, shapes and types of extras are the same in two calls."""
        a, b = (
            {k: (tuple(x.shape[1:]), x.dtype) for k, x in acted.extras.items()} for acted in (first, other)
        )
        if a == b:
            return
        if a.keys() != b.keys():
            what = f"{', '.join(a) or 'no extras'} in one call and {', '.join(b) or 'none'} in another"
        else:
            name = next(k for k in a if a[k] != b[k])
            (shape, dtype), (other_shape, other_dtype) = a[name], b[name]
            what = f"{name} {['n', *shape]} of {dtype} in one call and {['n', *other_shape]} of {other_dtype}"
            what = f"{what} in another".replace("'", "")
        raise self.fails(
            "act", f"recorded {what}: extras have the same names, shapes and types in every call"
        )

    def _equal(self, a: Acted, b: Acted) -> bool:
        """Return whether the rows of b equal those of a, up to rounding."""
        pairs = [(a.actions, b.actions), *((x, b.extras[name]) for name, x in a.extras.items())]
        if a.memory is not None and b.memory is not None:
            pairs.append((a.memory, b.memory))
        for x, y in pairs:
            x, y = x[: len(y)].double(), y.double()
            close = _ROUNDING[self.dtype]
            if not torch.allclose(x, y, rtol=close, atol=close, equal_nan=True):
                return False
        return True

    def check_evaluation(self) -> None:
        """Act as an evaluation does: by the mode of the networks' distribution."""
        obs, mask, _, memory = self.inputs(_ACTED_ROWS)

        def mode() -> torch.Tensor:
            params = self.model.action_params(obs) if memory is None else self.model.step(obs, memory)[0]
            return self.model.distribution(params, mask).mode()

        where = "networks: distribution(action_params(obs), mask).mode()"
        with torch.inference_mode():
            actions = self.call("networks", mode, " in an evaluation:")
        self._check_actions(where, actions, mask, _ACTED_ROWS)


def _is_names(x: Any) -> bool:
    return isinstance(x, tuple) and bool(x) and all(isinstance(name, str) for name in x)
