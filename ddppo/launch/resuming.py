"""A run that is resumed: its configuration, the settings that may change, and whether its checkpoint can be used.

`resumed` serves resume=<run folder>, `begun_or_resumed` serves resume=auto. Both end in `_check_checkpoint`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ddppo.algorithms.task_sampler import make_sampler, state_in
from ddppo.config import rules, settings
from ddppo.config.settings import Config
from ddppo.config.stored import from_omegaconf, load_config, to_omegaconf
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, changed, variant_of
from ddppo.errors import ConfigError, RunFolderError
from ddppo.launch import sweep_runs
from ddppo.loop import env_states as environments
from ddppo.loop import replay_state
from ddppo.loop.evaluation import load_policy
from ddppo.records import checkpoint
from ddppo.records.run_folder import RunFolder, ending_holds, ending_of, how_to_go_on
from ddppo.terminal import warn

# Settings that a resumed run may change. Any other would make it a different run.
_MAY_CHANGE = (
    "ppo.total_steps",
    "algorithm.total_steps",
    "env.backend",
    "env.num_workers",
    "env.urls",
    "env.token_file",
    "env.batch_wait_ms",
    "dist.",
    "eval.",
    "checkpoint.",
    "log.",
    "run.",
    "on_nonfinite",
    "device",
    "matmul_precision",
    "deterministic",
    "compile",
    "target_return",
    "resume_state",
    "other_spaces",
)


def _may_change() -> tuple[str, ...]:
    """Return the settings that a resumed run may change, those of plugins included."""
    of_plugins = (f"{name}.{key}" for name, kind in settings.sections().items() for key in kind.may_change)
    return (*_MAY_CHANGE, *of_plugins)


def resumed(cfg: DictConfig, run_dir: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration of resume=`run_dir`: the run's own, with the `overrides` of the command line on top.

    `cfg` is the composed command line, where the values of the overrides are read. Raises ConfigError if an override
    would make it a different run, if the run is complete, or if no checkpoint of it can be read.
    """
    # 1. The configuration in the run folder. other_spaces was meant for the checkpoint that the run began from.
    before = load_config(run_dir / "config.yaml")
    stored = to_omegaconf(before)
    stored.other_spaces = False
    # 2. The overrides. Another variant of a section has other keys; only the topology may change.
    for section in SECTIONS_WITH_VARIANTS:
        if section not in cfg:  # ppo with another algorithm
            continue
        name = variant_of(section, cfg[section])
        if name != variant_of(section, stored[section]):
            stored[section] = changed(section, dict(stored[section]), name)
    for override in overrides:
        key = override.partition("=")[0]
        if key == "resume":
            continue
        if not key.startswith(may_change := _may_change()):
            raise ConfigError(
                f"{override} would turn the resumed run into a different one: a resumed run may change only "
                f"{', '.join(k + '*' if k.endswith('.') else k for k in may_change)}"
            )
        OmegaConf.update(stored, key, OmegaConf.select(cfg, key))
    # 3. Can the run go on, and is anything left to do? A step after training that failed is repeated.
    config = dataclasses.replace(from_omegaconf(stored), resume=str(run_dir))
    _check_checkpoint(before, config, run_dir)
    summary = RunFolder(run_dir).summary()
    is_repeated = bool(RunFolder(run_dir).failed_after_training)
    ending = ending_of(summary)
    if ending_holds(config, ending) and not is_repeated:
        raise ConfigError(
            f"the run in {run_dir} is complete, for {ending['why']}: to go on, add {how_to_go_on(ending)}"
        )
    if summary is not None and summary["env_steps"] >= config.training.total_steps and not is_repeated:
        total_steps = f"{config.training.section}.total_steps"
        raise ConfigError(
            f"the run in {run_dir} is complete at {summary['env_steps']} of {total_steps}="
            f"{config.training.total_steps} steps: set a larger {total_steps} to go on"
        )
    return config


def begun_or_resumed(cfg: DictConfig, run_dir: Path) -> Config | None:
    """Return the configuration of resume=auto: of a run that begins in `run_dir`, or of the same run resumed there.

    Returns None if that run is complete. Raises ConfigError if the folder holds another run, or if no checkpoint of the
    run can be read.
    """
    config = dataclasses.replace(from_omegaconf(cfg), resume=None)
    rules.validate(config)
    if not (run_dir / "config.yaml").exists():
        return config
    folder = RunFolder(run_dir)
    before = folder.config()
    found = sweep_runs.differences(before, config)
    if different := [each for each in found if not each.startswith(_may_change())]:
        raise ConfigError(
            f"resume=auto: {run_dir} holds another run: settings differ: {', '.join(different[:3])}: choose "
            "another hydra.run.dir, or give the settings of that run"
        )
    summary = folder.summary()
    if summary is not None and summary["env_steps"] >= config.training.total_steps:
        return None
    if ending_holds(config, ending_of(summary)):
        return None
    _check_checkpoint(before, config, run_dir)
    resume = str(run_dir) if folder.has_checkpoint else None
    return dataclasses.replace(config, resume=resume, sweep=before.sweep)


def _check_checkpoint(before: Config, config: Config, run_dir: Path) -> None:
    """Raise ConfigError if the run in `run_dir`, configured as `before`, cannot be resumed as `config`.

    A run folder without any checkpoint passes: the run begins anew.
    """
    # 1. The batch must stay the same, or the run would be another one.
    old, new = rules.validate(before), rules.validate(config)
    if (old.num_envs, old.batch_size) != (new.num_envs, new.batch_size):
        envs_before, envs = (shape.batch_size // shape.rollout_steps for shape in (old, new))
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} would change the batch of the resumed run from "
            f"{envs_before} envs * {old.rollout_steps} steps to {envs} * {new.rollout_steps}: "
            f"keep dist.world_size={before.dist.world_size}"
        )
    # 2. A checkpoint that can be read.
    path, damaged = checkpoint.last_whole(run_dir / "checkpoints")
    if path is None and damaged:
        raise RunFolderError(
            f"every checkpoint of {run_dir} is damaged, as {damaged[0].name} is: move them away to begin the run anew"
        )
    # 3. Its contents must fit: parameters into the model, the sampler's state, the states of environments.
    if path is not None:
        state = checkpoint.load(path)
        if other_versions := checkpoint.made_elsewhere(state):
            warn(f"{run_dir}: {other_versions}")
        policy = load_policy(dataclasses.replace(config, device="cpu"), state)
        sampler = make_sampler(config, policy.spec, new.num_envs)
        sampler.load(state_in(state, sampler))
        why = environments.missing(config, policy.spec, state)
        is_over = state["env_steps"] >= config.training.total_steps  # only the summary is missing
        if why is not None and config.resume_state == "exact" and not is_over:
            raise ConfigError(
                f"{path} does not hold the states of environments, for {why}: resume_state=approximate resumes from it "
                "with new episodes"
            )
        if (why := replay_state.missing(state)) and config.resume_state == "exact" and not is_over:
            raise ConfigError(
                f"{path} does not hold the replay buffer, for {why}: resume_state=approximate resumes from it with an "
                "empty one"
            )
