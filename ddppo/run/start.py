"""From a composed configuration to a run folder that ranks can start on."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ddppo import config as configuration
from ddppo.collectives import compiled
from ddppo.config import Config
from ddppo.config.rules.dist.preempting import warning_of
from ddppo.curriculum import Rounds, curriculum_for
from ddppo.distributed.gradient_sync import FLAT_BELOW
from ddppo.distributed.launch import check_collective, resolve_device
from ddppo.distributed.programs.episodes import check as check_episodes
from ddppo.envs import check_slots, probe
from ddppo.errors import ConfigError, RunFolderError
from ddppo.models import check_model
from ddppo.processes.cores import available_cores
from ddppo.run import checkpoint, sweep
from ddppo.run.checkpoints import exactness, initial
from ddppo.run.evaluation import load_policy
from ddppo.run.folder import RunFolder
from ddppo.run.measuring.own_metrics import functions_of
from ddppo.run.own_memory import check_own_memory
from ddppo.run.parts import players_of, program_of
from ddppo.run.records.trackers import check_installed
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec, leaves
from ddppo.topologies import find, imported

# What a resumed run may change; everything else would make it a different run.
_MAY_CHANGE = (
    "ppo.total_steps",
    "env.backend",
    "env.num_workers",
    "env.urls",
    "env.token_file",
    "env.batch_wait_ms",
    "search.budget_episodes",
    "dist.",
    "eval.",
    "checkpoint.",
    "log.",
    "run.",
    "on_nonfinite",
    "device",
    "compile",
    "target_return",
    "resume_state",
)


def check(config: Config, *, local_world_size: int | None = None) -> str | None:
    """Check all that needs no second process: settings, task, model, and this machine where ranks run on it.

    `local_world_size` is the number of ranks that this machine is to hold; None leaves the machine out of it, for runs
    that start elsewhere. Returns warnings, if any, as one text: layers that make results depend on W, and ranks that
    share cores or GPUs, which dist.oversubscribe=warn allows. Raises ConfigError.
    """
    import torch

    shape = configuration.validate(config)
    spec = probe(config.env)
    if config.env.backend == "native":
        probe(dataclasses.replace(config.env, backend="sync"))  # evaluation steps single environments
    curriculum_for(config.curriculum, config.env.id, spec)
    _check_served(config, spec, shape)
    if config.ppo.normalize_obs and not any(leaf.is_float for leaf in leaves(spec.obs)):
        what = "text, whose tokens are names, not numbers"
        if not spec.is_text:
            what = "nothing but pixels, which are not normalised, for the model scales them"
        raise ConfigError(
            f"ppo.normalize_obs=true: {config.env.id} observes {what}: use ppo.normalize_obs=false"
        )
    of_model = check_model(
        spec,
        config.model,
        getattr(torch, config.dtype),
        num_envs=shape.local_num_envs,
        ranks_here=local_world_size,
        overlaps_from=_overlaps_from(config, local_world_size),
        learning_rates=config.ppo.learning_rates,
    )
    check_own_memory(config, spec, shape)
    of_losses = None
    if config.ppo.losses:
        from ddppo.ppo.losses.terms_trial import check_losses  # most runs bring none

        of_losses = check_losses(config.ppo.losses, spec, config.model, getattr(torch, config.dtype))
    for warning in filter(None, (of_model, of_losses)):
        if shape.num_shards:
            raise ConfigError(f"dist.reduction=ordered: {warning}; or use dist.reduction=fast")
    _check_text(config, spec)
    check_episodes(config, shape, spec)
    if config.search.name is not None:
        from ddppo.distributed.programs.searching import check as check_search  # most runs search nothing

        check_search(config, spec)
    topology = find(config.dist.topology)
    program_of(topology)
    if spec.journal is not None and topology.own_pace:
        raise ConfigError(
            f"{config.env.id} with distributed={config.dist.topology}: its environments tell one another after every "
            "iteration what they found, and ranks at their own pace end none together: use distributed=sync_actors, "
            "ddp or central_inference"
        )
    if topology.check is not None:
        is_far = local_world_size is None  # whose device=auto may be a GPU: its ranks check it again
        device = "cpu" if is_far and config.device == "auto" else config.device
        known = resolve_device("auto") if device == "auto" else torch.device(device)
        imported(topology.check)(config, spec, known)
    if local_world_size is None and config.dist.min_workers is not None:
        raise ConfigError(
            f"dist.min_workers={config.dist.min_workers} has no effect in a SLURM job, whose ranks SLURM starts on the "
            "nodes that it gave: leave it out"
        )
    if config.log.metrics:
        functions_of(config.log.metrics)
    if local_world_size is not None:
        check_installed(config.log.trackers)
    of_machine = None if local_world_size is None else _check_machine(config, local_world_size)
    more = (exactness.warning(config, spec), initial.told(config, spec))
    return (
        "\nwarning: ".join(filter(None, (of_model, of_losses, warning_of(config), of_machine, *more))) or None
    )


def _check_text(config: Config, spec: EnvSpec) -> None:
    """Check what only a task of text has, and what it cannot have."""
    env, ppo, model = config.env, config.ppo, config.model
    if not spec.is_text:
        if env.max_turns is not None:
            raise ConfigError(
                f"env.max_turns={env.max_turns} has no effect with {env.id}, whose actions are no text: use "
                "env.max_episode_steps, or leave it out"
            )
        return
    if model.obs_tokens >= ppo.rollout_steps:
        raise ConfigError(
            f"model.obs_tokens={model.obs_tokens} with ppo.rollout_steps={ppo.rollout_steps}, the tokens of an "
            "episode: a prompt may leave none to type: use a ppo.rollout_steps of at least "
            f"{model.obs_tokens + model.turn_tokens}, or a smaller model.obs_tokens"
        )


def _check_served(config: Config, spec: EnvSpec, shape: BatchShape) -> None:
    """Check what only served environments have, and what they cannot have."""
    env, topology = config.env, find(config.dist.topology)
    if env.batch_wait_ms is not None and not spec.is_text:
        raise ConfigError(
            f"env.batch_wait_ms={env.batch_wait_ms:g} has no effect with {env.id}, whose actions are no text: leave it "
            "out"
        )
    if (
        env.backend == "auto" and topology.env_backend is None and not spec.is_text
    ):  # whose episodes may be lost
        configuration.check_restarts(config)
    if env.backend == "sync" and spec.one_a_process and shape.local_num_envs > 1:
        raise ConfigError(
            f"env.backend=sync: a process can hold one {env.id} only, and a rank would step {shape.local_num_envs}: "
            f"use env.backend={'remote' if spec.is_text else 'pool'}, or auto, which chooses it"
        )
    if env.backend != "remote":
        return
    if spec.journal is not None:
        raise ConfigError(
            f"env.backend=remote: the environments of {env.id} tell one another after every iteration what they found, "
            "which no server carries: use env.backend=pool or sync"
        )
    if env.urls:
        evaluates_meanwhile = not spec.is_text and (  # which is evaluated in the environments that train
            config.eval.every_steps or (topology.own_pace and config.eval.final_episodes)
        )
        num_players = len(players_of(configuration.layout(config), topology))
        check_slots(env, shape.num_envs, num_players if evaluates_meanwhile else 0)


def _overlaps_from(config: Config, local_world_size: int | None) -> int | None:
    """Return the number of parameters from which gradients are reduced while others are computed; None for never."""
    if config.dist.world_size == 1 or config.dist.grad_sync == "flat":
        return None
    if config.dist.grad_sync == "ddp":
        return 0
    runs_on_cpu = local_world_size is not None and resolve_device(config.device).type == "cpu"
    speaks_gloo = config.dist.collective == "gloo" or not compiled.is_available()
    return FLAT_BELOW if runs_on_cpu and speaks_gloo else None


def _check_machine(config: Config, local_world_size: int) -> str | None:
    import torch

    device = resolve_device(config.device if config.dist.reduction == "fast" else "cpu")
    check_collective(config, device, local_world_size)
    has, noun = available_cores(), "cores"
    if device.type == "cuda":
        has, noun = torch.cuda.device_count(), "GPUs"
        roles = configuration.layout(config).roles
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


def resumed(cfg: DictConfig, run_dir: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration of the run in `run_dir` with the command line's `overrides`, composed in `cfg`, on top.

    Raises ConfigError where one of them would make it a different run, or it is complete or damaged beyond use.
    """
    before = configuration.load(run_dir / "config.yaml")
    stored = configuration.to_omegaconf(before)
    for override in overrides:
        key = override.partition("=")[0]
        if key == "resume":
            continue
        if not key.startswith(_MAY_CHANGE):
            raise ConfigError(
                f"{override} would turn the resumed run into a different one: a resumed run may change only "
                f"{', '.join(k + '*' if k.endswith('.') else k for k in _MAY_CHANGE)}"
            )
        OmegaConf.update(stored, key, OmegaConf.select(cfg, key))
    config = dataclasses.replace(configuration.from_omegaconf(stored), resume=str(run_dir))
    _check_goes_on(before, config, run_dir)
    summary = RunFolder(run_dir).summary()
    if summary is not None and summary["env_steps"] >= config.ppo.total_steps:
        raise ConfigError(
            f"the run in {run_dir} is complete at {summary['env_steps']} of ppo.total_steps="
            f"{config.ppo.total_steps} steps: set a larger ppo.total_steps to go on"
        )
    return config


def begun_or_resumed(cfg: DictConfig, run_dir: Path) -> Config | None:
    """Return the configuration of resume=auto: of a run that begins in `run_dir`, or of the same run, which goes on.

    None if that is complete. Raises ConfigError where the folder holds another run, or one that is damaged beyond use.
    """
    config = dataclasses.replace(configuration.from_omegaconf(cfg), resume=None)
    configuration.validate(config)
    if not (run_dir / "config.yaml").exists():
        return config
    folder = RunFolder(run_dir)
    before = folder.config()
    found = sweep.differences(before, config)
    if different := [each for each in found if not each.startswith(_MAY_CHANGE)]:
        raise ConfigError(
            f"resume=auto: {run_dir} holds another run, whose settings differ: {', '.join(different[:3])}: choose "
            "another hydra.run.dir, or give the settings of that run"
        )
    summary = folder.summary()
    if summary is not None and summary["env_steps"] >= config.ppo.total_steps:
        return None
    _check_goes_on(before, config, run_dir)
    resume = str(run_dir) if folder.has_checkpoint else None
    return dataclasses.replace(config, resume=resume, sweep=before.sweep)


def _check_goes_on(before: Config, config: Config, run_dir: Path) -> None:
    """Raise ConfigError where the run in `run_dir`, so far `before`, cannot go on as `config` says."""
    old, new = configuration.validate(before), configuration.validate(config)
    if (old.num_envs, old.batch_size) != (new.num_envs, new.batch_size):
        envs_before, envs = (shape.batch_size // shape.rollout_steps for shape in (old, new))
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} would change the batch of the resumed run from "
            f"{envs_before} envs * {old.rollout_steps} steps to {envs} * {new.rollout_steps}: "
            f"keep dist.world_size={before.dist.world_size}"
        )
    path, damaged = checkpoint.last_whole(run_dir / "checkpoints")
    if path is None and damaged:
        raise RunFolderError(
            f"every checkpoint of {run_dir} is damaged, as {damaged[0].name} is: move them away to begin the run anew"
        )
    if path is not None:
        state = checkpoint.load(path)
        policy = load_policy(dataclasses.replace(config, device="cpu"), state)
        curriculum = curriculum_for(config.curriculum, config.env.id, policy.spec)
        Rounds(config.seed, 1, curriculum).restore(state.get("curriculum"))
        why = exactness.missing(config, policy.spec, state)
        is_over = state["env_steps"] >= config.ppo.total_steps  # and lacks its summary only
        if why is not None and config.resume_state == "exact" and not is_over:
            raise ConfigError(
                f"{path} does not hold what environments were in the midst of, for {why}: resume_state=approximate "
                "goes on from it with new episodes"
            )


def local_world_size(config: Config) -> int:
    """Return how many ranks this machine is to hold: torchrun's share of them, or all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.dist.world_size))
