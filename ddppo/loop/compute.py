"""Which code acts and learns: C++, torch.compile or eager PyTorch. All three compute the same.

`choose_compute` decides once, before the first iteration, in this order:

    1. C++             compile=auto|on        if every rank can, and a trial shows that its gradient is autograd's
    2. torch.compile   compile=on|torch       if every rank can, else the run ends with an error
                       compile=auto           if enough steps are left to repay 5 to 30 s of compiling
    3. eager           compile=off, or all else

Each rank finds out whether it can, and one gather tells all ranks. So all take the same decision: ranks that learn by
different code would end with different parameters. The setting itself is in ddppo/config/settings.py, the steps are in
ddppo/ppo/{learner,compiled}.py and ddppo/ppo/cpp/learner.py.
"""

from collections.abc import Callable
from typing import Any

import torch

from ddppo import native
from ddppo.algorithms.contract import Algorithm
from ddppo.collectives.group import Group, OrderedSum
from ddppo.device import has_graphs
from ddppo.distributed.topologies.base import RankContext
from ddppo.errors import TrainingError
from ddppo.loop.build import TrainState
from ddppo.models.actor_critic import MLP, flat_obs, random_obs
from ddppo.models.recurrent import Core
from ddppo.ppo.advantages import Gae
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import (
    CppActing,
    CppNetwork,
    Differentiable,
    is_as_in_torch,
    is_faster_in_torch,
    rows_are_independent,
    why_not_cpp,
    why_not_cpp_network,
)
from ddppo.ppo.gradient_check import agrees
from ddppo.ppo.learner import EpochStep
from ddppo.terminal import warn

# compile=auto compiles from so many steps on: a step of a small model takes 0.4 ms compiled and 1.1 ms eager.
_PAYS_FROM_STEPS = 100_000
# Rows of observations in the trial: whole SIMD tiles and a remainder, in more than one block of rows (mlp.hpp).
_TRIAL_ROWS = 111
_HOW_MUCH_SLOWER = "Small networks take 3 to 8 times as long (docs/performance.md)"


def choose_compute(context: RankContext, progress: TrainState, *, only_cpp: bool = False) -> None:
    """Choose the code of this rank, and set it in the learner and the collector.

    All ranks that learn together call it together. only_cpp: for a rank that only acts, so that torch need not compile
    a step. Raises TrainingError if compile=on or torch asks for a step that cannot be made.
    """
    if context.algorithm.learner_class is None:  # an algorithm of its own computes its loss in PyTorch
        context.derived["step"] = "eager"
        _choose_network(context, warns=_could_be_faster(context))
        _choose_acting(context)
        _record(context, None)
        return
    # 1. Recurrent layers have C++ of their own, whichever step is taken.
    _choose_recurrence(context)

    # 2. C++, then torch.compile, then eager. step is None if the choice is eager, and on a rank that needs no step.
    step: EpochStep | None
    all_can, step = _cpp_step(context, progress)
    if not all_can and not only_cpp:
        all_can, step = _compiled_step(context, progress)
    if not all_can:
        progress.compiled_from = None
    context.derived["step"] = "eager"

    # 3. The learner takes the step, or keeps the EagerStep that it was made with.
    if step is not None:
        _take(step, context, progress)
    elif not all_can:
        _choose_network(context)
    # 4. What the device can start by one or two calls.
    _record(context, step)


def _take(step: EpochStep, context: RankContext, progress: TrainState) -> None:
    """Let the learner take the step. With C++ it also computes advantages in C++, and the collector acts in C++."""
    learner, collector = context.topology.learner, context.topology.collector
    learner.step = step
    if isinstance(step, CppStep) and isinstance(learner.estimator, Gae):
        estimator = learner.estimator
        learner.estimator = CppGae(estimator.config, estimator.correction, num_shards=estimator.num_shards)
    progress.compiled_from = progress.compiled_from or progress.iteration + 1
    # summary.json keeps the word "native" for C++, so that reports compare runs of all versions.
    context.derived["step"] = "native" if isinstance(step, CppStep) else "compiled"
    use_cpp = getattr(collector, "use_cpp", None)  # those of text and of a model's own act in torch
    if use_cpp is not None and isinstance(step, CppStep):
        use_cpp(step.network)


def _record(context: RankContext, step: EpochStep | None) -> None:
    """Record the kernels of acting in environments on the device, and those of the environments; say what is recorded.

    Those of a minibatch are recorded by the step (ppo/compiled.py), the others here (ppo/recorded_rollout.py), also if
    the step is eager: it takes a second.
    """
    recorded = ["minibatches"] if getattr(step, "is_recorded", False) else []
    collector: Any = context.topology.collector  # only the one of environments on a device can record
    ways: dict[str, Callable[[], None]] = {}
    can = not isinstance(step, CppStep) and has_graphs(context.device) and context.config.compile != "off"
    if can and hasattr(collector, "record_acting"):
        if context.model.stays_eager is None:
            ways["acting"] = collector.record_acting
        if getattr(collector.env.envs, "is_recordable", False):
            ways["environments"] = collector.record_env
    for name, record in ways.items():
        from ddppo.ppo.compiled import CannotRecord  # loads torch's compiler

        try:
            record()
        except CannotRecord as e:  # this rank alone may start single kernels: the numbers are the same
            warn(f"compile={context.config.compile}: the kernels of {name} are not recorded: {e}")
        else:
            recorded.append(name)
    if recorded:
        context.derived["graphs"] = ", ".join(recorded)


# -- 1. C++.


def _cpp_step(context: RankContext, progress: TrainState) -> tuple[bool, CppStep | None]:
    """Return whether every rank can learn in C++, and the step of this rank; None if it neither acts nor learns."""
    config, model, learner = context.config, context.model, context.topology.learner
    if config.compile not in ("auto", "on"):
        return False, None
    step, why_not = None, None
    if is_active := _is_active(context):
        why_not = why_not_cpp(config, model, learner.parameters.device, context.topology.sync.name)
    if is_active and why_not is None:
        network = CppNetwork(model, context.spec, learner.parameters)
        shape = learner.shape
        num_shards = shape.local_num_shards if shape.num_shards else 0
        step = CppStep(network, config.ppo, learner.optimizer, context.topology.learners, num_shards)
        why_not = _fault_of(step, context)

    # The gather stands outside of every branch that only some ranks take.
    can = _by_rank(context.group, why_not is None)
    if all(can):
        return True, step
    if context.group.rank == can.index(False) and _could_be_faster(context):
        has_network = step is None and (
            why_not_cpp_network(config, model, learner.parameters.device, context.topology.sync.name) is None
        )
        what = "acting and the loss run in PyTorch, only the network in C++"
        warn(
            f"{what if has_network else 'acting and learning run in PyTorch, not in C++'}: {why_not}. "
            f"{_HOW_MUCH_SLOWER}{_remedy(context, progress)}"
        )
    return False, None


def _fault_of(step: CppStep, context: RankContext) -> str | None:
    """Try the step on random samples; return what it computes wrongly on this machine, or None."""
    spec, model = context.spec, context.model
    if not agrees(step, spec, model, context.config.ppo):
        return "its gradient is not autograd's on this machine"
    p, generator = next(model.parameters()), torch.Generator().manual_seed(0)
    obs = random_obs(spec, _TRIAL_ROWS, p.dtype, generator)
    if not all(step.network.computes(obs, method) for method in ("forward", "action_params", "value")):
        return "its outputs are not the model's on this machine"
    if not rows_are_independent(step.network, flat_obs(obs, spec, p.dtype)):
        return (
            "its result for an observation depends on the batch on this machine, so results would depend on W"
        )
    return None


def _could_be_faster(context: RankContext) -> bool:
    """Return whether a run without C++ deserves a warning.

    It does if the compiler or a setting is the reason. A built-in model other than the MLP never learns in C++.
    """
    if context.topology.learner.parameters.device.type != "cpu" or context.config.compile != "auto":
        return False
    model = context.model
    is_mlp_or_own = type(model) is MLP or not type(model).__module__.startswith("ddppo.")
    return native.why_not() is not None or (is_mlp_or_own and not is_faster_in_torch(model))


def _choose_network(context: RankContext, *, warns: bool = False) -> None:
    """Let an eager step's model call its network in C++, forward and backward, if all ranks can."""
    config, learner, model = context.config, context.topology.learner, context.model
    found, why_not = None, None
    has_others = sum(p.numel() for p in model.parameters()) != learner.parameters.numel()
    if has_others:
        why_not = "the algorithm has other networks beside the model"
    elif _is_active(context):
        why_not = why_not_cpp_network(config, model, learner.parameters.device, context.topology.sync.name)
        if why_not is None:
            found = Differentiable(model, context.spec, learner.parameters)
            obs = random_obs(
                context.spec, _TRIAL_ROWS, learner.parameters.dtype, torch.Generator().manual_seed(0)
            )
            if not is_as_in_torch(found, model, obs):
                why_not = "its gradient is not autograd's on this machine"
    can = _by_rank(context.group, why_not is None)
    if all(can):
        if found is not None:
            model.in_cpp = found
        context.derived["network"] = "C++"
    elif warns and not has_others and context.group.rank == can.index(False):
        warn(f"the network runs in PyTorch, not in C++: {why_not}. {_HOW_MUCH_SLOWER}")


def _choose_acting(context: RankContext) -> None:
    """Let the collector of an algorithm that acts as PPO does act in C++, if the network is in C++."""
    collector: Any = context.topology.collector
    network, has_own = context.model.in_cpp, type(context.algorithm).act is not Algorithm.act
    if network is None or has_own or not hasattr(collector, "use_cpp"):
        return
    collector.use_cpp(network.network)
    # With central inference the algorithm goes on acting for the observers that have come.
    if isinstance(getattr(collector, "acting", None), CppActing):
        context.derived["network"] = "C++, also in acting"


def _remedy(context: RankContext, progress: TrainState) -> str:
    """Return how a network of a user's own gets a faster step, as the end of a sentence; "" if it has one or cannot."""
    model, config = context.model, context.config
    is_own = not type(model).__module__.startswith("ddppo.")
    can = native.why_not() is None and model.stays_eager is None and not config.training.losses
    if not (is_own and can) or _is_worth_compiling(context, progress):
        return ""
    return "; compile=torch compiles learning, in 10 to 30 s at the start, and 4 s from the next run on"


# -- 2. torch.compile.


def _compiled_step(context: RankContext, progress: TrainState) -> tuple[bool, EpochStep | None]:
    """Return whether torch can compile the step on every rank, and the step of this rank.

    The step is None on a rank that neither acts nor learns. Raises TrainingError if compile=on or torch asks for it
    and a rank cannot.
    """
    config, model = context.config, context.model
    is_asked_for = config.compile in ("on", "torch")
    if not is_asked_for and not _is_worth_compiling(context, progress):
        return False, None
    step, why_not = None, model.stays_eager
    if why_not is not None and not is_asked_for:
        return False, None
    if config.training.losses:
        why_not = "torch would have to compile the terms of ppo.losses, which may be any code"
    if context.topology.sync.name == "ddp":
        why_not = "dist.grad_sync=ddp sums inside backward"
    if why_not is None and _is_active(context):
        step, why_not = _compile(context)

    can = _by_rank(context.group, why_not is None)
    if all(can):
        return True, step
    if is_asked_for:
        reason = why_not or f"see the message of rank {can.index(False)}"
        raise TrainingError(
            f"compile={config.compile}: the step cannot be compiled: {reason}; use compile=auto"
        )
    if context.group.rank == can.index(False):
        warn(f"compile=auto: the step stays eager: {why_not}")
    return False, None


def _is_worth_compiling(context: RankContext, progress: TrainState) -> bool:
    """Return whether compile=auto compiles the step. The answer is the same on all ranks."""
    config, shape = context.config, context.shape
    if config.compile == "off" or config.ppo.algorithm == "grpo" or config.training.losses:
        return False
    if not context.model.compiles_by_itself or shape.num_shards:
        return False
    iterations = -(-(config.training.total_steps - progress.env_steps) // shape.batch_size)
    num_steps = iterations * shape.num_epochs * shape.num_minibatches
    # A resumed run that was compiled before goes on compiled, however few steps are left.
    return progress.compiled_from is not None or num_steps >= _PAYS_FROM_STEPS


def _compile(context: RankContext) -> tuple[EpochStep | None, str | None]:
    """Return the step compiled by torch and None, or None and why there is no such step."""
    from ddppo.ppo.compiled import CannotCompile, CompiledStep  # loads torch's compiler

    learner, topology = context.topology.learner, context.topology
    num_shards = learner.shape.local_num_shards
    summing: Group | OrderedSum = topology.learners
    if learner.shape.num_shards:  # dist.reduction=ordered
        summing = OrderedSum(topology.learners, num_shards, learner.parameters.data)
    ppo = context.config.ppo
    try:
        step = CompiledStep(
            ppo, context.model, learner.optimizer, summing.sum_, learner.scale, num_shards,
            num_rows=max(2, learner.shape.minibatch_size // (learner.shape.num_shards or topology.learners.world_size)),
            records=topology.learners.world_size == 1,
        )  # fmt: skip
    except CannotCompile as e:
        return None, str(e)
    if not agrees(step, context.spec, context.model, ppo):
        return None, "its gradient is not the eager step's"
    return step, None


# -- Recurrent layers, and the decisions of all ranks.


def _choose_recurrence(context: RankContext) -> None:
    """Let recurrent layers of the model, if it has any, learn in C++ if all ranks can.

    The rule is that of the learner's step: the same setting, CPU only, one thread.
    """
    cores = [module for module in context.model.modules() if isinstance(module, Core)]
    if not cores:
        return
    config = context.config
    can = (
        config.compile in ("auto", "on")
        and config.dist.threads_per_rank in (None, 1)
        and context.topology.learner.parameters.device.type == "cpu"
        and native.why_not() is None
    )
    all_can = all(_by_rank(context.group, can))
    for core in cores:
        core.learns_in_cpp = all_can
    context.derived["recurrence"] = "C++" if all_can else "torch"


def _is_active(context: RankContext) -> bool:
    """Return whether this rank acts or learns. A rank that only steps environments needs no step, and agrees to any."""
    role = context.layout.role(context.group.rank)
    return role.acts or role.learns


def _by_rank(group: Group, can: bool) -> list[bool]:
    """Return the value of `can` on every rank, in rank order; all ranks call it."""
    gathered = group.gather(torch.tensor([can], dtype=torch.float64)).flatten()
    return [x > 0 for x in gathered.tolist()]
