"""device: W equal workers, each of which computes its environments and its learning in C++, or does not start.

An iteration is 2 + K calls of C++ (ddppo/native/src), T = rollout_steps, K = num_epochs:

1. the rollout: T steps of all environments of the rank, with policy, draws, ends, resets, values and bootstraps;
2. advantages, returns and their moments;
3. K times an epoch: its minibatches gathered, gradients, their sum over ranks through shared memory, clipping, Adam.

Python draws noise and permutations before the calls and exchanges moments between 2 and 3. Reward normalisation is
torch's. The code is that of ddp, which takes it too where it can; here what stands against it ends the run before the
start, where ddp goes a slower way. On a GPU it would be a CUDA graph, which does not exist yet. Idea: Zhu et al. 2023,
"MSRL", USENIX ATC, its distribution policy "GPU only".
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
    """A worker that takes no slower way."""

    def __init__(self, context: RankContext) -> None:
        check(dataclasses.replace(context.config, env=context.env_config), context.spec, context.device)
        super().__init__(context)

    def reset(self, sample: TaskSample) -> None:
        if not isinstance(self.learner.step, CppStep):
            topology = self._context.config.dist.topology
            raise TrainingError(
                f"distributed={topology}: a gradient in C++ was not torch's on one rank or more, or its library is "
                "missing there: use distributed=ddp"
            )
        super().reset(sample)


def check(config: Config, spec: EnvSpec, device: torch.device) -> None:
    """Raise ConfigError, in a sentence, if environments and learning cannot both be computed in C++ on this machine."""
    if why := _of_settings(config, device) or _of_task(config) or _of_model(config, spec):
        raise ConfigError(
            f"{why}: distributed={config.dist.topology} computes environments and learning in C++ on a CPU, "
            "or not at all; change that, or use distributed=ddp"
        )


def _of_settings(config: Config, device: torch.device) -> str | None:
    dist = config.dist
    if device.type != "cpu":
        return f"device={config.device} takes a GPU"
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile} keeps learning in torch"
    if dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={dist.threads_per_rank}, and C++ takes 1 thread of a rank"
    if dist.grad_sync == "ddp" and dist.world_size > 1:
        return "dist.grad_sync=ddp sums gradients inside torch's backward"
    if config.ppo.learning_rates:
        return (
            f"ppo.learning_rates={config.ppo.learning_rates}, and C++ knows one step size for all parameters"
        )
    if config.ppo.losses:
        return f"ppo.losses={config.ppo.losses}, which torch computes"
    if config.env.slow_ranks:
        return f"env.slow_ranks={config.env.slow_ranks} slows steps that Python takes"
    return None


def _of_task(config: Config) -> str | None:
    if (why := native.why_not()) is not None:
        return f"there is no C++ here, for {why}"
    if why_not_batched(config.env) is None:
        env = dataclasses.replace(config.env, backend="batched")
        with closing(make_vec_env(env, range(1), rank=0, cores=1)) as envs:
            if isinstance(envs, CppEnvs):
                return None
    known = ", ".join(task.dynamics.__name__ for task in TASKS)
    return f"env.id={config.env.id} is not stepped in C++, which has {known}, where it gives NumPy's bits"


def _of_model(config: Config, spec: EnvSpec) -> str | None:
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    why = why_not_native(model, torch.device("cpu"))
    return None if why is None else f"model.name={config.model.name} is not computed in C++, for {why}"
