"""What is checked of a run before any of its processes starts."""

import os

import torch

from ddppo.algorithms.task_sampler import check_whole_episodes, make_sampler
from ddppo.config import rank_rules, rules
from ddppo.config.model_settings import MODELS
from ddppo.config.rules import check_remembering
from ddppo.config.settings import Config
from ddppo.distributed.gradient_sync import FLAT_BELOW
from ddppo.distributed.join import check_collective, resolve_device
from ddppo.distributed.topologies.known import find
from ddppo.envs.probing.dry_run import dry_run
from ddppo.envs.probing.suitability import on_spaces
from ddppo.errors import ConfigError
from ddppo.loop import env_states as environments
from ddppo.loop.build import players_of, topology_of, warning_of_initial
from ddppo.loop.evaluation import evaluator_of
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
    """Check all that needs no second process: settings, task, model, and this machine where ranks run on it.

    `local_world_size` is the number of ranks that this machine is to hold; None leaves the machine out of it, for runs
    that start elsewhere. Returns warnings, if any, as one text: layers that make results depend on W, and ranks that
    share cores or GPUs, which dist.oversubscribe=warn allows. Raises ConfigError.
    """
    shape = rules.validate(config)
    of_cpp = None if local_world_size is None else _compile_plugins(config)
    task = dry_run(config.env)
    spec = task.spec
    make_sampler(config, spec, shape.num_envs)
    _check_stepping(config, spec, shape)
    _check_normalized(config, spec)
    of_networks = _check_networks(config, spec, shape, local_world_size)
    if (path := model_class(config.model).collector_class) is not None:
        imported(path).check(config, shape)
    check_whole_episodes(config, shape, spec)
    _check_topology(config, spec, is_far=local_world_size is None)
    if local_world_size is None and config.dist.min_workers is not None:
        raise ConfigError(
            f"dist.min_workers={config.dist.min_workers} has no effect in a SLURM job, whose ranks SLURM starts on the "
            "nodes that it gave: leave it out"
        )
    if config.log.metrics:
        import_functions(config.log.metrics)
    if local_world_size is not None:
        check_installed(config.log.trackers)
    of_machine = None if local_world_size is None else check_machine(config, local_world_size)
    warnings = (
        of_cpp,
        *task.warnings,
        *on_spaces(spec.spaces, config.model),
        *of_networks,
        getattr(config.dist, "warning", None),
        of_machine,
    )
    more = (environments.warning(config, spec), warning_of_initial(config, spec))
    return "\nwarning: ".join(filter(None, (*warnings, *more))) or None


def _compile_plugins(config: Config) -> str | None:
    """Compile the C++ that the task and the model bring, once and not by every rank; return a warning where it fails.

    What cannot do without raises an error of its own as it is made.
    """
    names = {"tasks": config.env.id, "models": config.model.name}
    for plugin in plugins():
        is_used = any(plugin.brings(what, name) for what, name in names.items())
        if is_used and plugin.src is not None and (why := plugin.cpp.why_not()) is not None:
            return f"the C++ of {plugin.package} is not compiled: {why}; Python computes in its place, slower"
    return None


def _check_normalized(config: Config, spec: EnvSpec) -> None:
    """Check that there are observations to normalise, where they are to be."""
    if config.ppo.normalize_obs and not any(leaf.is_float for leaf in leaves(spec.obs)):
        what = "text, whose tokens are names, not numbers"
        if not spec.is_text:
            what = "nothing but pixels, which are not normalised, for the model scales them"
        raise ConfigError(
            f"ppo.normalize_obs=true: {config.env.id} observes {what}: use ppo.normalize_obs=false"
        )


def _check_networks(
    config: Config, spec: EnvSpec, shape: BatchShape, local_world_size: int | None
) -> tuple[str | None, str | None]:
    """Try the model, and loss terms of a user's own on it; return a warning of each, which ordered sums refuse."""
    import torch

    dtype = getattr(torch, config.dtype)
    of_model = check_model(
        spec,
        config.model,
        dtype,
        num_envs=shape.local_num_envs,
        ranks_here=local_world_size,
        overlaps_from=overlaps_from(config, local_world_size),
        learning_rates=config.ppo.learning_rates,
    )
    check_own_memory(config, spec, shape)
    of_losses = None
    if config.ppo.losses:
        from ddppo.ppo.gradient_check import check_losses  # most runs bring none

        of_losses = check_losses(config.ppo.losses, spec, config.model, dtype)
    for warning in filter(None, (of_model, of_losses)):
        if shape.num_shards:
            raise ConfigError(f"dist.reduction=ordered: {warning}; or use dist.reduction=fast")
    return of_model, of_losses


def _check_topology(config: Config, spec: EnvSpec, *, is_far: bool) -> None:
    """Check that the topology's class can be imported and what it asks; is_far: ranks start on other machines."""
    import torch

    topology = find(config.dist.topology)
    topology_of(topology)
    if spec.journal is not None and topology.own_pace:
        raise ConfigError(
            f"{config.env.id} with distributed={config.dist.topology}: its environments tell one another after every "
            "iteration what they found, and ranks at their own pace end none together: use distributed=sync_actors, "
            "ddp or central_inference"
        )
    if topology.check is not None:
        # device=auto may be a GPU where ranks start elsewhere: they check it again
        device = "cpu" if is_far and config.device == "auto" else config.device
        known = resolve_device("auto") if device == "auto" else torch.device(device)
        imported(topology.check)(config, spec, known)


def _check_stepping(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check that env.backend can step this task, and this many environments of it."""
    env, topology = config.env, find(config.dist.topology)
    if env.max_turns is not None and not spec.is_text:
        raise ConfigError(
            f"env.max_turns={env.max_turns} has no effect with {env.id}, whose actions are no text: use "
            "env.max_episode_steps, or leave it out"
        )
    if env.batch_wait_ms is not None and not spec.is_text:
        raise ConfigError(
            f"env.batch_wait_ms={env.batch_wait_ms:g} has no effect with {env.id}, whose actions are no text: leave it "
            "out"
        )
    if (
        env.backend == "auto" and topology.env_backend is None and not spec.is_text
    ):  # whose episodes may be lost
        rank_rules.check_restarts(config)
    if env.backend == "sync" and spec.one_a_process and shape.local_num_envs > 1:
        raise ConfigError(
            f"env.backend=sync: a process can hold one {env.id} only, and a rank would step {shape.local_num_envs}: "
            f"use env.backend={'remote' if spec.is_text else 'pool'}, or auto, which chooses it"
        )
    backend = added("backends").get(env.backend)
    if backend is not None and backend.check_run is not None:
        evaluates_meanwhile = not evaluator_of(spec).in_training_envs and (
            config.eval.every_steps or (topology.own_pace and config.eval.final_episodes)
        )
        num_players = len(players_of(rank_rules.layout(config), topology))
        imported(backend.check_run)(env, spec, shape.num_envs, num_players if evaluates_meanwhile else 0)


# -- The machine that is to hold a run's ranks: how many, on which cores and GPUs.


def local_world_size(config: Config) -> int:
    """Return how many ranks this machine is to hold: torchrun's share of them, or all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.dist.world_size))


def overlaps_from(config: Config, local_world_size: int | None) -> int | None:
    """Return the number of parameters from which gradients are reduced while others are computed; None for never."""
    if config.dist.world_size == 1 or config.dist.grad_sync == "flat":
        return None
    if config.dist.grad_sync == "ddp":
        return 0
    runs_on_cpu = local_world_size is not None and resolve_device(config.device).type == "cpu"
    speaks_gloo = config.dist.collective == "gloo" or SHARED_MEMORY.why_not() is not None
    return FLAT_BELOW if runs_on_cpu and speaks_gloo else None


def check_machine(config: Config, local_world_size: int) -> str | None:
    import torch

    device = resolve_device(config.device if config.dist.reduction == "fast" else "cpu")
    check_collective(config, device, local_world_size)
    has, noun = available_cores(), "cores"
    if device.type == "cuda":
        has, noun = torch.cuda.device_count(), "GPUs"
        roles = rank_rules.layout(config).roles
        num_players = sum(len(role.ranks) for role in roles if role.acts or role.learns)
        local_world_size = min(local_world_size, num_players)  # who only steps needs no GPU
    if local_world_size == 1 or local_world_size <= has:
        return None
    named = (
        "dist.world_size" if local_world_size == config.dist.world_size else "nproc-per-node"
    )  # torchrun's
    shared = f"{named}={local_world_size} exceeds this machine's {has} {noun}"
    if config.dist.oversubscribe == "refuse":
        raise ConfigError(
            f"{shared}, and dist.oversubscribe=refuse: use at most {has} ranks, or dist.oversubscribe=warn"
        )
    return f"{shared}: ranks take turns, so results stay the same and times are not those of {local_world_size} {noun}"


# -- What a model of one's own needs if it remembers: only building it tells.


def check_own_memory(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check what a model of one's own needs if it remembers, and what has no effect if it does not."""
    if config.model.name in MODELS:
        return
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    said = f"model.name={config.model.name}"
    if model.state_size:
        check_remembering(config, shape, f"{said}, which remembers")
    elif config.ppo.sequence_length is not None:
        raise ConfigError(
            f"ppo.sequence_length={config.ppo.sequence_length} has no effect with {said}, which remembers nothing: "
            "leave it out"
        )
