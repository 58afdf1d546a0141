"""Everything that is checked of a run before its processes start: settings, environment, model, topology, machine.

`check` builds one environment and one model in this process, so that a mistake is one sentence before the run and not a
traceback from each rank. The helpers below follow its order.
"""

import ctypes
import math
import os

import torch

from ddppo.algorithms.build import algorithm_class, build_networks
from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.known import algorithm_setting
from ddppo.algorithms.task_sampler import check_whole_episodes, make_sampler
from ddppo.collectives.group import Group
from ddppo.config import rank_rules, rules
from ddppo.config.model_settings import MODELS
from ddppo.config.rules import check_remembering
from ddppo.config.settings import Config, eval_env
from ddppo.device import accelerators, described, has_float64, in_words, resolve
from ddppo.distributed.gradient_sync import FLAT_BELOW, FlatParameters, FlatSync
from ddppo.distributed.join import check_collective, check_device, computing_ranks
from ddppo.distributed.topologies.known import find
from ddppo.envs.meaning import differences
from ddppo.envs.probing.dry_run import dry_run
from ddppo.envs.probing.suitability import on_spaces
from ddppo.errors import ConfigError
from ddppo.launch.torchrun import launcher
from ddppo.loop import env_states as environments
from ddppo.loop import replay_state
from ddppo.loop.build import eval_ranks_of, topology_of, warning_of_initial
from ddppo.loop.evaluation import Evaluator, evaluator_of
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model, model_class
from ddppo.models.model_check import check_model
from ddppo.native.compiling import SHARED_MEMORY
from ddppo.plugins import added, imported, plugins
from ddppo.processes.machine import available_cores
from ddppo.records.trackers import check_installed
from ddppo.records.user_metrics import import_functions
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec, leaves


def check(config: Config, *, local_world_size: int | None = None) -> str | None:
    """Check everything that needs no second process. Returns warnings as one text, None if there are none.

    Args:
        local_world_size: number of ranks on this machine. None for a run on other machines, as in SLURM jobs: this
            machine is not checked then.

    Raises ConfigError.
    """
    # 1. The rules across settings, and the C++ of plugins, which ranks would each compile otherwise.
    shape = rules.validate(config)
    cpp_warning = None if local_world_size is None else _compile_plugins(config)
    # 2. The environment: step it, and compare its spaces with the settings.
    task = dry_run(config.env, config.device)
    spec = task.spec
    make_sampler(config, spec, shape.num_envs)
    _check_stepping(config, spec, shape)
    _check_second_batch(config, spec)
    _check_eval_env(config, spec)
    _check_normalized(config, spec, is_far=local_world_size is None)
    # 3. The model, the algorithm and the losses: build them, and try to act and to learn.
    network_warnings = _check_networks(config, spec, shape, local_world_size)
    if callable(coefficients := getattr(config.training, "coefficients", None)):
        for coefficient in coefficients().values():  # functions of schedules: import them, and try them
            coefficient.at(0.0), coefficient.at(0.5)
    _give_back_memory()
    if (path := model_class(config.model).collector_class) is not None:
        _check_own_collector(config, path, shape, spec)
    if config.log.rollouts == "all" and model_class(config.model).rollout_writer_class is None:
        raise ConfigError(
            f"log.rollouts=all has no effect with model.name={config.model.name}: rollouts of text are recorded, and "
            "those of no other model: leave it out"
        )
    check_whole_episodes(config, shape, spec)
    # 4. The topology.
    _check_topology(config, spec, is_far=local_world_size is None)
    if local_world_size is None and config.dist.min_workers is not None:
        raise ConfigError(
            f"dist.min_workers={config.dist.min_workers} has no effect in a SLURM job: SLURM starts its ranks on the "
            "nodes of the job: leave it out"
        )
    # 5. Metrics and callbacks of the user's own, trackers, and the cores or GPUs of this machine.
    if config.log.metrics:
        import_functions(config.log.metrics)
    if config.run.callbacks:
        imported("ddppo.records.callbacks:import_callbacks")(config.run.callbacks)
    machine_warning = None
    if local_world_size is not None:
        check_installed(config.log.trackers)
        machine_warning = check_machine(config, local_world_size)
    warnings = (
        cpp_warning,
        *task.warnings,
        *on_spaces(spec.spaces, config.model),
        *network_warnings,
        getattr(config.dist, "warning", None),
        machine_warning,
        environments.warning(config, spec),
        replay_state.warning(config),
        warning_of_initial(config, spec),
    )
    return "\nwarning: ".join(filter(None, warnings)) or None


def _compile_plugins(config: Config) -> str | None:
    """Compile the C++ of the plugins that bring the task, the model or the algorithm, once for all ranks.

    Returns a warning if that fails. A plugin that needs its C++ raises an error of its own when it is used.
    """
    names = {"tasks": config.env.id, "models": config.model.name, "algorithms": config.algorithm.name}
    for plugin in plugins():
        is_used = any(plugin.brings(what, name) for what, name in names.items())
        if is_used and plugin.src is not None and (why := plugin.cpp.why_not()) is not None:
            return f"the C++ of {plugin.package} is not compiled: {why}; Python computes in its place, slower"
    return None


# -- The environment.


def _check_stepping(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check that env.backend can step this task, and so many environments of it."""
    env, topology = config.env, find(config.dist.topology)
    if env.max_turns is not None and not spec.is_text:
        raise ConfigError(
            f"env.max_turns={env.max_turns} has no effect with {env.id}, as its actions are no text: use "
            "env.max_episode_steps, or leave it out"
        )
    if env.batch_wait_ms is not None and not spec.is_text:
        raise ConfigError(
            f"env.batch_wait_ms={env.batch_wait_ms:g} has no effect with {env.id}, as its actions are no text: leave "
            "it out"
        )
    if env.reward_weights and not spec.is_text:
        raise ConfigError(
            f"env.reward_weights={env.reward_weights} has no effect with {env.id}, as its actions are no text: only "
            "tasks of text report the parts of their reward: leave it out"
        )
    for name, weight in env.reward_weights.items():
        if not math.isfinite(weight):
            raise ConfigError(f"env.reward_weights.{name}={weight}: a weight must be a finite number")
    # backend=auto may step the environments in the rank, where nothing but the rank can be started again.
    if env.backend == "auto" and topology.env_backend is None and not spec.is_text:
        rank_rules.check_restarts(config)
    if env.backend == "sync" and spec.one_a_process and shape.local_num_envs > 1:
        raise ConfigError(
            f"env.backend=sync: a process can hold one {env.id} only, and a rank would step {shape.local_num_envs}: "
            f"use env.backend={'remote' if spec.is_text else 'pool'}, or auto, which chooses it"
        )
    # A backend of a plugin may check the number of environments, those of evaluation included.
    backend = added("backends").get(env.backend)
    if backend is not None and backend.check_run is not None:
        evaluates_meanwhile = not evaluator_of(spec).in_training_envs and (
            config.eval.every_steps or (topology.own_pace and config.eval.final_episodes)
        )
        num_eval_ranks = len(eval_ranks_of(rank_rules.layout(config), topology))
        imported(backend.check_run)(env, spec, shape.num_envs, num_eval_ranks if evaluates_meanwhile else 0)


def _check_normalized(config: Config, spec: EnvSpec, *, is_far: bool) -> None:
    """Check that normalize_obs has observations to normalise, and in a type that the device has."""
    is_float64 = any(leaf.dtype == "float64" for leaf in leaves(spec.obs))
    if (
        config.training.normalize_obs
        and is_float64
        and not is_far
        and not has_float64(described(config.device))
    ):
        raise ConfigError(
            f"{config.training.section}.normalize_obs=true with device={config.device}, which computes in float32 at "
            f"most, and {config.env.id} observes float64: use device=cpu, or normalize_obs=false"
        )
    if config.training.normalize_obs and not any(leaf.is_float for leaf in leaves(spec.obs)):
        what, name = "text; its tokens are names, not numbers", config.training.section
        if not spec.is_text:
            what = "nothing but pixels, which are not normalised, for the model scales them"
        raise ConfigError(
            f"{name}.normalize_obs=true: {config.env.id} observes {what}: use {name}.normalize_obs=false"
        )


# -- The model, the algorithm and the losses.


def _check_acts_on_device(config: Config, spec: EnvSpec) -> None:
    """Check that the model's actions can be drawn where the environments are (env.backend=device)."""
    _check_algorithm_on_device(config)
    model = build_networks(config, spec)
    subject = f"model={config.model.name} with env.backend=device"
    if model.values_are_of_actions:
        raise ConfigError(f"{subject}: its values are those of actions, which no rollout on a device keeps")
    distribution = model.distribution(torch.zeros(1, model.num_params, dtype=next(model.parameters()).dtype))
    if not hasattr(distribution, "sample_on_device"):
        raise ConfigError(
            f"{subject}: its {type(distribution).__name__} has no sample_on_device(noise), which draws actions without "
            "leaving the device (ddppo.models.distributions.DeviceDistribution): give it one"
        )


def _check_algorithm_on_device(config: Config) -> None:
    """Check that the algorithm takes what a rollout on a device has."""
    kind, subject = algorithm_class(config), f"{algorithm_setting(config)} with env.backend=device"
    if kind.learner_class is None and (
        kind.act is not Algorithm.act or kind.needs_successors or kind.takes_memory
    ):
        raise ConfigError(
            f"{subject}: it acts on the host, or learns from the successor of each step, which a rollout on a device "
            "does not have: use PPO, ppo=grpo or algorithm=reinforce, or an env.backend of the host"
        )
    probed = imported("ddppo.envs.backends.device:probed")
    if kind.hands_over == "groups" and not probed(config.env, config.device).has_own_streams:
        raise ConfigError(
            f"{subject} and env.simulator={config.env.simulator}: the episodes of a group begin equally, from one "
            "seed, and this simulator has one random stream for all its environments: use PPO, or algorithm=reinforce"
        )


def _check_networks(
    config: Config, spec: EnvSpec, shape: BatchShape, local_world_size: int | None
) -> list[str]:
    """Try the model, the algorithm, and the user's own loss terms. Returns warnings.

    The warnings are about results that depend on the number of ranks, so dist.reduction=ordered refuses them.
    """
    dtype = getattr(torch, config.dtype)
    model_warning = check_model(
        spec,
        config.model,
        dtype,
        num_envs=shape.local_num_envs,
        ranks_here=local_world_size,
        overlaps_from=overlaps_from(config, local_world_size),
        learning_rates=config.ppo.learning_rates,
    )
    check_own_memory(config, spec, shape)
    if config.env.backend == "device":
        _check_acts_on_device(config, spec)
    algorithm_warning = None
    if algorithm_class(config).learner_class is None:
        from ddppo.algorithms.trial import check_algorithm  # not for PPO and GRPO

        algorithm_warning = check_algorithm(config, spec, shape, sync_of_one)
    loss_warning = None
    if config.ppo.losses:
        from ddppo.ppo.gradient_check import check_losses  # most runs have no loss terms of their own

        loss_warning = check_losses(config.ppo.losses, spec, config.model, dtype)
    warnings = [x for x in (model_warning, algorithm_warning, loss_warning) if x is not None]
    if warnings and config.dist.reduction == "ordered":
        raise ConfigError(f"dist.reduction=ordered: {warnings[0]}; or use dist.reduction=fast")
    return warnings


def _give_back_memory() -> None:
    """Return the memory of the models just tried to the system: this process stays for the whole run.

    The allocator of C keeps what is freed: 2 GB after a language model of 135 M parameters.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def sync_of_one(model: ActorCritic) -> FlatSync:
    """Return the gradient sum of a single learner."""
    return FlatSync(model, FlatParameters(model), Group())


def overlaps_from(config: Config, local_world_size: int | None) -> int | None:
    """Return the number of parameters from which gradients are summed during backward; None for never."""
    if config.dist.world_size == 1 or config.dist.grad_sync == "flat":
        return None
    if config.dist.grad_sync == "ddp":
        return 0
    runs_on_cpu = local_world_size is not None and resolve(config.device).type == "cpu"
    uses_gloo = config.dist.collective == "gloo" or SHARED_MEMORY.why_not() is not None
    return FLAT_BELOW if runs_on_cpu and uses_gloo else None


def check_own_memory(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check the settings of memory for a user's own model: whether it remembers is known once it is built."""
    if config.model.name in MODELS:
        return
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    setting = f"model.name={config.model.name}"
    if model.state_size:
        check_remembering(config, shape, f"{setting}, which remembers")
    elif config.training.sequence_length is not None:
        raise ConfigError(
            f"{config.training.section}.sequence_length={config.training.sequence_length} has no effect with "
            f"{setting}, which has no memory: leave it out"
        )


def _check_own_collector(config: Config, path: str, shape: BatchShape, spec: EnvSpec) -> None:
    """Check the collector that a model brings: its own rules, and whether it can act in environments of other ranks."""
    found = imported(path)
    found.check(config, shape)
    if hasattr(found, "check_task"):
        found.check_task(config, spec)
    only_step = any(role.steps and not role.acts for role in rank_rules.layout(config).roles)
    if only_step and not hasattr(found, "over_ranks"):
        raise ConfigError(
            f"distributed={config.dist.topology} with model.name={config.model.name}: its collector, {path}, has no "
            "over_ranks (ddppo.ppo.rollout.RolloutCollector), so it acts in environments of its own rank only: use "
            "distributed=sync_actors"
        )


def _check_second_batch(config: Config, spec: EnvSpec) -> None:
    """Check that ranks that step a simulator can make a second batch of it, for evaluations of the run."""
    if config.env.backend != "device" or not (config.eval.every_steps or config.eval.final_episodes):
        return
    why_one = imported("ddppo.envs.backends.device:probed")(config.env).why_one
    layout, topology = rank_rules.layout(config), find(config.dist.topology)
    if why_one is not None and set(eval_ranks_of(layout, topology)) & set(layout.stepping):
        raise ConfigError(
            f"a second batch of {config.env.id} cannot be made in the process of the first, as evaluations of the run "
            f"need: {why_one}: set eval.final_episodes=0 eval.every_steps=0, and evaluate after the run by "
            "ddppo.evaluate"
        )


def _check_eval_env(config: Config, spec: EnvSpec) -> None:
    """Check that the policy can act in the environments that eval.env makes, and that evaluations make them."""
    given = config.eval.env
    if not given:
        return
    if evaluator_of(spec) is not Evaluator:
        raise ConfigError(
            f"eval.env={given} has no effect with {config.env.id}, which is evaluated in environments of its own kind, "
            "those of training: leave it out"
        )
    try:
        found = dry_run(eval_env(config), config.device).spec
    except ConfigError as e:
        raise ConfigError(f"eval.env={given}: {e}") from e
    if different := differences(spec.spaces, found.spaces):
        raise ConfigError(
            f"eval.env={given}: a policy of {config.env.id} cannot act there: {'; '.join(different)}: keep the "
            "observations and actions of training"
        )


# -- The topology.


def _check_topology(config: Config, spec: EnvSpec, *, is_far: bool) -> None:
    """Check that the topology's program can be imported, and its own rules. is_far: the ranks are on other machines."""
    topology = find(config.dist.topology)
    topology_of(topology)
    if spec.journal is not None:
        topology.check_work("messages", config.env.id)
    asked, tolerated = getattr(config.dist, "max_lag", None), algorithm_class(config).max_lag
    if asked is not None and tolerated is not None and asked > tolerated:
        raise ConfigError(
            f"dist.max_lag={asked} with {algorithm_setting(config)}, which learns from parameters at most {tolerated} "
            f"updates old: use at most {tolerated}, or leave it out"
        )
    if topology.check is not None:
        # device=auto may be a GPU on another machine: its ranks check it again.
        device = "cpu" if is_far and config.device == "auto" else config.device
        imported(topology.check)(config, spec, described(device))


# -- This machine.


def local_world_size(config: Config) -> int:
    """Return the number of ranks on this machine: the launcher's share of them, or all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.dist.world_size))


def _check_sharing(config: Config, device: torch.device, num_computing: int) -> None:
    """Check that dist.share_device has an effect: that ranks of this machine share an accelerator."""
    if not config.dist.share_device or config.dist.world_size > local_world_size(config):
        return  # other machines of the run may have fewer
    has = 1 if config.device.isdecimal() else accelerators()[1]
    if device.type == "cpu" or num_computing <= has:
        why = (
            "the CPU is no device to share"
            if device.type == "cpu"
            else f"each of {num_computing} ranks has its own"
        )
        raise ConfigError(
            f"dist.share_device=true has no effect with {in_words(config.device, device)}: {why}: leave it out"
        )


def check_machine(config: Config, local_world_size: int) -> str | None:
    """Check that this machine has devices and cores for its ranks. Returns a warning if ranks must share them."""
    # The ranks that need a device: this process is rank 0, the first of its machine.
    num_computing = len(computing_ranks(config, 0, local_world_size))
    device = torch.device("cpu")
    if num_computing:
        device = resolve(config.device, num_places=num_computing, share=config.dist.share_device)
        _check_sharing(config, device, num_computing)
    check_device(config, device)
    check_collective(config, device, local_world_size)
    # mpirun may have bound this rank to one core of its own.
    has, noun = int(os.environ.get("DDPPO_HOST_CORES", available_cores())), "cores"
    if device.type != "cpu":
        # A rank that only steps environments needs none. All others have one each, unless share_device allows less.
        has, noun = accelerators()[1], "GPUs"
        local_world_size = num_computing
    if local_world_size == 1 or local_world_size <= has:
        return None
    named = "nproc-per-node" if launcher() == "torchrun" else "LOCAL_WORLD_SIZE"
    if local_world_size == config.dist.world_size:
        named = "dist.world_size"
    shared = f"{named}={local_world_size} exceeds this machine's {has} {noun}"
    if config.dist.oversubscribe == "refuse":
        raise ConfigError(
            f"{shared}, and dist.oversubscribe=refuse: use at most {has} ranks, or dist.oversubscribe=warn"
        )
    return f"{shared}: ranks take turns, so results stay the same and times are not those of {local_world_size} {noun}"
