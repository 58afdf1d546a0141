"""device: W equal workers; each computes its environments and its learning in C++, or the run does not start.

With env.backend=device the environments are tensors on the rank's device, which also acts and learns there: then this
is distributed=ddp, and the rest of this file is about C++.

An iteration is 2 + K calls of C++ (ddppo/native/src), T = rollout_steps, K = num_epochs:

1. the rollout: T steps of all environments of the rank, with policy, sampling, resets, values and bootstraps;
2. advantages, returns and their moments;
3. K times, one epoch: gather minibatches, compute gradients, sum them over ranks in shared memory, clip, Adam.

Python draws noise and permutations before the calls and gathers moments between 2 and 3. Rewards are normalised in
torch. distributed=ddp runs the same C++ wherever it can, and falls back to torch elsewhere. device promises
that nothing falls back: `check` refuses a run before the start and names the reason. It does not run on a GPU;
that would need a CUDA graph. Idea: Zhu et al. 2023, "MSRL", USENIX ATC, distribution policy "GPU only".
"""

import dataclasses
from contextlib import closing

import torch

from ddppo import native
from ddppo.algorithms.task_sampler import TaskSample
from ddppo.config.settings import Config
from ddppo.distributed.topologies.base import RankContext
from ddppo.distributed.topologies.ddp import Ddp
from ddppo.envs.backends.classic_cpp import TASKS, CppEnvs, why_not_batched
from ddppo.envs.make import make_vec_env
from ddppo.errors import ConfigError, TrainingError
from ddppo.models.build import build_model
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.cpp.network import why_not_native
from ddppo.spaces import EnvSpec


class Device(Ddp):
    """A worker that computes everything in C++."""

    def __init__(self, context: RankContext) -> None:
        check(dataclasses.replace(context.config, env=context.env_config), context.spec, context.device)
        super().__init__(context)

    def reset(self, sample: TaskSample) -> None:
        # The loop chooses the step after this topology is made, by a gradient check on all ranks: look again now.
        is_elsewhere = self._context.env_config.backend == "device"
        if not is_elsewhere and not isinstance(self.learner.step, CppStep):
            topology = self._context.config.dist.topology
            raise TrainingError(
                f"distributed={topology}: on one rank or more, the gradient in C++ differs from torch's, or the C++ "
                "library is missing: use distributed=ddp"
            )
        super().reset(sample)


def check(config: Config, spec: EnvSpec, device: torch.device) -> None:
    """Raise ConfigError if environments and learning cannot both be computed in C++ on this machine."""
    if config.env.backend == "device":
        return
    if why := _why_not_settings(config, device) or _why_not_task(config) or _why_not_model(config, spec):
        raise ConfigError(
            f"{why}: distributed={config.dist.topology} computes environments and learning in C++ on a CPU, "
            "or not at all; change that, or use distributed=ddp"
        )


# -- Each function returns the reason that stands against C++, or None.


def _why_not_settings(config: Config, device: torch.device) -> str | None:
    dist = config.dist
    if device.type != "cpu":
        return f"device={config.device} takes a GPU"
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile} keeps learning in torch"
    if dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={dist.threads_per_rank}, but C++ uses 1 thread per rank"
    if dist.grad_sync == "ddp" and dist.world_size > 1:
        return "dist.grad_sync=ddp sums gradients inside torch's backward"
    if config.training.learning_rates:
        return f"ppo.learning_rates={config.training.learning_rates}, but C++ has one learning rate for all parameters"
    if config.training.losses:
        return f"ppo.losses={config.training.losses} are computed in torch"
    if config.env.slow_ranks:
        return f"env.slow_ranks={config.env.slow_ranks} slows down steps in Python"
    return None


def _why_not_task(config: Config) -> str | None:
    if (why := native.why_not()) is not None:
        return f"ddppo's C++ is missing here: {why}"
    if why_not_batched(config.env) is None:
        env = dataclasses.replace(config.env, backend="batched")
        with closing(make_vec_env(env, range(1), rank=0, cores=1)) as envs:
            if isinstance(envs, CppEnvs):
                return None
    known = ", ".join(task.dynamics.__name__ for task in TASKS)
    return (
        f"env.id={config.env.id} is not stepped in C++, which has {known} and Gymnasium's robots of MuJoCo (-v5), if "
        "its results equal NumPy's to the bit"
    )


def _why_not_model(config: Config, spec: EnvSpec) -> str | None:
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    why = why_not_native(model, torch.device("cpu"))
    return None if why is None else f"model.name={config.model.name} is not computed in C++: {why}"
