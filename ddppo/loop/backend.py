"""Which code a rank computes with, chosen before its first iteration and alike on all ranks: C++, torch.compile or
eager torch.

    choose_backend(context, progress)     # after it, the learner has its step, and acting and recurrence follow
"""

import torch

from ddppo import native
from ddppo.collectives.group import Group, OrderedSum
from ddppo.distributed.topologies.base import RankContext
from ddppo.errors import TrainingError
from ddppo.loop.build import TrainState
from ddppo.models.actor_critic import MLP, flat_obs, random_obs
from ddppo.models.recurrent import Core
from ddppo.ppo.advantages import Gae
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import (
    CppNetwork,
    is_faster_in_torch,
    rows_are_independent,
    why_not_cpp,
)
from ddppo.ppo.gradient_check import agrees
from ddppo.ppo.learner import Step
from ddppo.terminal import warn

# Of compile=auto. A step of a small model takes .4 ms compiled and 1.1 ms eager; compiling takes 5 to 30 s of a core.
_PAYS_FROM_STEPS = 100_000
_TRIED_ROWS = 111  # whole tiles and their remainders, in one block of rows and the next
_HOW_MUCH_SLOWER = "Small networks take 3 to 8 times as long (docs/performance.md)"


def choose_backend(context: RankContext, progress: TrainState, *, only_cpp: bool = False) -> None:
    """Have this rank act and learn by the fastest code that `compile` allows and every rank can take.

    All ranks that learn together call it; only_cpp: of a rank that only acts, for which torch compiles nothing. Raises
    TrainingError where compile=on or torch asks for what cannot be.
    """
    _begin_recurrence(context)
    step: Step | None
    all_can, step = _cpp_step(context)
    if not all_can and not only_cpp:
        all_can, step = _compiled_step(context, progress)
    if not all_can:
        progress.compiled_from = None
    context.derived["step"] = "eager"
    if step is None:  # eager, or a rank that takes no steps
        return
    learner = context.topology.learner
    learner.step = step
    if isinstance(step, CppStep) and isinstance(learner.estimator, Gae):
        estimator = learner.estimator
        learner.estimator = CppGae(estimator.config, estimator.correction, num_shards=estimator.num_shards)
    progress.compiled_from = progress.compiled_from or progress.iteration + 1
    context.derived["step"] = "native" if isinstance(step, CppStep) else "compiled"
    collector = context.topology.collector
    if isinstance(collector, Collector) and isinstance(step, CppStep):
        collector.use_cpp(step.network)


def _cpp_step(context: RankContext) -> tuple[bool, CppStep | None]:
    """Return whether every rank can take ddppo's own step, and this rank's, which is None where it takes none."""
    config, model, learner = context.config, context.model, context.topology.learner
    if config.compile not in ("auto", "on"):
        return False, None
    step, why_not = None, None
    if is_active := _is_active(context):
        why_not = why_not_cpp(config, model, learner.parameters.device, context.topology.sync.name)
    if is_active and why_not is None:
        assert isinstance(model, MLP)
        network = CppNetwork(model, context.spec, learner.parameters)
        shape = learner.shape
        num_shards = shape.local_num_shards if shape.num_shards else 0
        step = CppStep(network, config.ppo, learner.optimizer, context.topology.learners, num_shards)
        why_not = _fault_of(step, context)
    can = _of_all(context.group, why_not is None)
    if all(can):
        return True, step
    if context.group.rank == can.index(False) and _is_slower_for_it(context):
        warn(f"acting and learning run in PyTorch, not in C++: {why_not}. {_HOW_MUCH_SLOWER}")
    return False, None


def _fault_of(step: CppStep, context: RankContext) -> str | None:
    """Return what ddppo's own step computes wrongly on this machine, or None."""
    spec, model = context.spec, context.model
    if not agrees(step, spec, model, context.config.ppo):
        return "its gradient is not autograd's here"
    p, generator = next(model.parameters()), torch.Generator().manual_seed(0)
    obs = flat_obs(random_obs(spec, _TRIED_ROWS, p.dtype, generator), spec, p.dtype)
    if not rows_are_independent(step.network, obs):
        return "what it computes of an observation depends on the batch here, so results would depend on W"
    return None


def _is_slower_for_it(context: RankContext) -> bool:
    """Whether this run is slower for want of a step in C++: another built-in network never has one."""
    if context.topology.learner.parameters.device.type != "cpu" or context.config.compile != "auto":
        return False
    model = context.model
    is_mlp_or_own = type(model) is MLP or not type(model).__module__.startswith("ddppo.")
    return native.why_not() is not None or (is_mlp_or_own and not is_faster_in_torch(model))


def _compiled_step(context: RankContext, progress: TrainState) -> tuple[bool, Step | None]:
    """Return whether every rank can take torch.compile's step, and this rank's, which is None where it takes none."""
    config, model = context.config, context.model
    is_asked_for = config.compile in ("on", "torch")
    if not is_asked_for and not _pays(context, progress):
        return False, None
    step, why_not = None, model.stays_eager
    if why_not is not None and not is_asked_for:
        return False, None
    if context.topology.sync.name == "ddp":
        why_not = "dist.grad_sync=ddp sums inside backward"
    if why_not is None and _is_active(context):
        step, why_not = _compiled(context)
    can = _of_all(context.group, why_not is None)
    if all(can):
        return True, step
    if is_asked_for:
        reason = why_not or f"rank {can.index(False)} says why"
        raise TrainingError(
            f"compile={config.compile}: the step cannot be compiled: {reason}; use compile=auto"
        )
    if context.group.rank == can.index(False):
        warn(f"compile=auto: the step stays eager: {why_not}")
    return False, None


def _pays(context: RankContext, progress: TrainState) -> bool:
    """Whether compile=auto has torch compile the step: the same on all ranks."""
    config, shape = context.config, context.shape
    if config.compile == "off" or config.ppo.algorithm == "grpo" or config.ppo.losses:
        return False
    if not context.model.compiles_by_itself or shape.num_shards:
        return False
    iterations = -(-(config.ppo.total_steps - progress.env_steps) // shape.batch_size)
    num_steps = iterations * shape.num_epochs * shape.num_minibatches
    return progress.compiled_from is not None or num_steps >= _PAYS_FROM_STEPS


def _compiled(context: RankContext) -> tuple[Step | None, str | None]:
    """Return the step that torch.compile makes, or why there is none."""
    from ddppo.ppo.compiled import CannotCompile, CompiledStep  # loads torch's compiler

    learner, program = context.topology.learner, context.topology
    num_shards = learner.shape.local_num_shards
    summing: Group | OrderedSum = program.learners
    if learner.shape.num_shards:
        summing = OrderedSum(program.learners, num_shards, learner.parameters.data)
    ppo = context.config.ppo
    try:
        step = CompiledStep(
            ppo, context.model, learner.parameters, learner.optimizer, summing.sum_, learner.scale, num_shards,
            num_rows=max(2, learner.shape.minibatch_size // (learner.shape.num_shards or program.learners.world_size)),
        )  # fmt: skip
    except CannotCompile as e:
        return None, str(e)
    if not agrees(step, context.spec, context.model, ppo):
        return None, "its gradient is not the eager step's"
    return step, None


def _begin_recurrence(context: RankContext) -> None:
    """Have recurrent layers of the model, if it has any, learn in C++ if all ranks can.

    C++ knows one thread here too, and is asked for by the same settings as the learner's step.
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
    all_can = all(_of_all(context.group, can))
    for core in cores:
        core.learns_in_cpp = all_can
    context.derived["recurrence"] = "C++" if all_can else "torch"


def _is_active(context: RankContext) -> bool:
    """Whether this rank acts or learns: one that only steps environments goes along with any step."""
    role = context.layout.role(context.group.rank)
    return role.acts or role.learns


def _of_all(group: Group, can: bool) -> list[bool]:
    """Return what every rank says, by rank."""
    said = group.gather(torch.tensor([can], dtype=torch.float64)).flatten()
    return [x > 0 for x in said.tolist()]
