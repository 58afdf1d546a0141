"""The door `python -m ddppo.train`: compose and check the configuration, write it down, start the ranks.

Hydra ends here. Ranks read the config.yaml that this writes into the run folder.
"""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo import config as configuration
from ddppo.config import Config, near
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.help import setting_names

# What a resumed run may change; everything else would make it a different run.
_MAY_CHANGE = (
    "ppo.total_steps",
    "env.backend",
    "dist.",
    "eval.",
    "checkpoint.",
    "log.",
    "device",
    "target_return",
)
# Settings whose keys the user makes up, which Hydra would take for typing errors unless told to add them.
_MAPPINGS = ("env.kwargs=", "env.kwargs.", "env.slow_ranks=", "env.slow_ranks.")


def main() -> None:
    """Run the command line; exit code 0, 1 (a run failed), 2 (a mistake in the command), 130 (Ctrl-C)."""
    # GNU OpenMP's threads spin 300,000 rounds before they sleep, and crawl where another process wants their core: on 2
    # cores with 4 busy processes 2 threads took over 50 times as long. 1,000 rounds keep what a second thread gives.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        if int(os.environ.get("RANK", "0")) > 0 and _under_torchrun():
            _follow()
            return
        sys.argv[1:] = _prepared_arguments(sys.argv[1:])
        configuration.register()
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what went wrong, and we say it
        conf = str(configuration.conf_dir())
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(_train)()
        if _under_torchrun():
            _leave(0)
    except (ConfigError, TrainingError) as e:
        print(f"error: {e}", file=sys.stderr)
        _leave(2 if isinstance(e, ConfigError) else 1)
    except (HydraException, OmegaConfBaseException) as e:
        print(f"error: {_composition_message(e)}", file=sys.stderr)
        _leave(2)
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        _leave(130)


def _leave(code: int) -> NoReturn:
    """Exit; as a rank under torchrun that met its peers (no mistake, code 2) without waiting for them."""
    if _under_torchrun() and code != 2:
        from ddppo.distributed.launch import leave

        leave(code)
    sys.exit(code)


def _composition_message(error: Exception) -> str:
    """Return Hydra's complaint about a command line in one line, with near matches of a mistyped name."""
    text = str(error)
    if text.startswith("Error merging override"):
        cause = str(error.__cause__).splitlines()[0]
        return f"{text.removeprefix('Error merging override ')}: {cause}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return f"there is no setting {found[1]}{near(found[1], setting_names(Config))}; --help lists all"
    if found := re.search(r"Could not (?:find|load|override) '([\w/]+)/([\w-]+)'", text):
        options = [p.stem for p in (configuration.conf_dir() / found[1]).glob("*.yaml")]
        return f"{found[1]}={found[2]}: must be one of {', '.join(sorted(options))}{near(found[2], options)}"
    details = [line for line in lines if not line.startswith(("full_key", "reference_type", "object_type"))]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key")), "")
    return f"{key + ': ' if key else ''}{' '.join(details)}"


def _train(cfg: DictConfig) -> float | None:
    """One job: what Hydra calls. Returns the final evaluation's mean return, for sweepers that optimise it."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    try:
        try:
            config = _checked(cfg, run_dir)
        except ConfigError:
            _remove_if_empty(run_dir)
            raise
        _write_config(config, run_dir)
        if _under_torchrun():
            _lead(run_dir)
        elif config.dist.world_size == 1:
            from ddppo.run.worker import train_rank

            train_rank(run_dir)
        else:
            from ddppo.distributed.launch import start_ranks

            start_ranks(run_dir, config.dist.world_size, config.dist.timeout_s)
    except (ConfigError, TrainingError) as e:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise  # Hydra goes on with the other jobs and reports this one at the end
        print(f"error: {e}", file=sys.stderr)
        _leave(2 if isinstance(e, ConfigError) else 1)
    except KeyboardInterrupt:
        has_checkpoint = any((run_dir / "checkpoints").glob("iteration_*.pt"))
        remedy = (
            f"go on with: python -m ddppo.train resume={run_dir}"
            if has_checkpoint
            else "there is no checkpoint"
        )
        print(f"interrupted; {remedy}", file=sys.stderr)
        _leave(130)
    summary = json.loads((run_dir / "summary.json").read_text())
    if summary["status"] == "stopped":
        print(f"stopped; go on with: python -m ddppo.train resume={run_dir}", file=sys.stderr)
        _leave(130)
    final = summary["eval"]["final"]
    return final["return_mean"] if final else None


def _checked(cfg: DictConfig, run_dir: Path) -> Config:
    """Return the configuration after every check that needs no second process."""
    if (run_dir / "config.yaml").exists() and cfg.resume is None:
        raise RunFolderError(
            f"{run_dir} already holds a run, which would be overwritten: choose another hydra.run.dir, or go on "
            f"with it by resume={run_dir}"
        )
    config = _resumed(cfg, run_dir) if cfg.resume is not None else configuration.from_omegaconf(cfg)
    configuration.validate(config)
    from ddppo.envs import probe

    spec = probe(config.env)
    if config.env.backend == "native":
        probe(dataclasses.replace(config.env, backend="sync"))  # evaluation steps single environments
    from ddppo.distributed.launch import resolve_backend, resolve_device
    from ddppo.models import build_model
    from ddppo.run.checkpoint import DTYPES

    device = resolve_device(config.device)
    if not _under_torchrun():
        resolve_backend(config.dist.backend, device, config.dist.world_size)
    build_model(spec, config.model, config.seed, DTYPES[config.dtype])
    return config


def _resumed(cfg: DictConfig, run_dir: Path) -> Config:
    """Return the configuration of the run in `run_dir` with this command line's overrides on top."""
    from ddppo.run import checkpoint
    from ddppo.run.evaluation import load_policy

    stored = OmegaConf.structured(configuration.load(run_dir / "config.yaml"))
    overrides = [o for o in HydraConfig.get().overrides.task if not o.startswith("resume=")]
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith(_MAY_CHANGE):
            raise ConfigError(
                f"{override} would turn the resumed run into a different one: a resumed run may change only "
                f"{', '.join(k + '*' if k.endswith('.') else k for k in _MAY_CHANGE)}"
            )
        OmegaConf.update(stored, key, OmegaConf.select(cfg, key))
    before = configuration.load(run_dir / "config.yaml")
    config = dataclasses.replace(configuration.from_omegaconf(stored), resume=str(run_dir))
    old, new = configuration.validate(before), configuration.validate(config)
    if (old.num_envs, old.rollout_steps) != (new.num_envs, new.rollout_steps):
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} would change the batch of the resumed run from "
            f"{old.num_envs} envs * {old.rollout_steps} steps to {new.num_envs} * {new.rollout_steps}: "
            f"keep dist.world_size={before.dist.world_size}"
        )
    path = checkpoint.last(run_dir / "checkpoints")
    if path is None:
        raise RunFolderError(f"{run_dir} has no checkpoint yet to go on from: start the run anew")
    state = checkpoint.load(path)
    load_policy(dataclasses.replace(config, device="cpu"), state)
    if state["env_steps"] >= config.ppo.total_steps:
        raise ConfigError(
            f"the run in {run_dir} is complete at {state['env_steps']} of ppo.total_steps="
            f"{config.ppo.total_steps} steps: set a larger ppo.total_steps to go on"
        )
    return config


def _write_config(config: Config, run_dir: Path) -> None:
    """Write config.yaml whole; that of an earlier start of the run stays beside it under a number."""
    from ddppo.run.writers import keep_earlier, write_text

    path = run_dir / "config.yaml"
    text = configuration.to_yaml(config)
    if path.exists() and path.read_text() != text:
        keep_earlier(path)
    write_text(path, text)


def _prepared_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments for Hydra: a resumed run's folder is its output, torchrun's world size the run's."""
    values = dict(a.split("=", 1) for a in arguments if "=" in a and not a.startswith("-"))
    is_multirun = any(a in ("-m", "--multirun") for a in arguments)
    added = []
    if "" in values:
        raise ConfigError(f"={values['']} has no name in front of the equals sign; --help lists all settings")
    if "hydra.run.dir" in values:
        folder = Path(values["hydra.run.dir"].strip("'\"")).absolute()
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK)):
            raise RunFolderError(f"hydra.run.dir={folder}: {existing} is not a folder that can be written to")
    if "resume" in values:
        folder = Path(values["resume"].strip("'\"")).resolve()
        if is_multirun:
            raise ConfigError("resume goes on with one run; it cannot be combined with -m")
        if not (folder / "config.yaml").is_file():
            raise RunFolderError(f"resume={values['resume']}: not a run folder, it has no config.yaml")
        quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
        added.append(f"hydra.run.dir='{quoted}'")
    if _under_torchrun():
        world_size = os.environ["WORLD_SIZE"]
        if is_multirun:
            raise ConfigError("-m starts several runs, torchrun one: use one or the other")
        if values.get("dist.world_size", world_size) != world_size:
            raise ConfigError(
                f"dist.world_size={values['dist.world_size']}, but torchrun started {world_size} ranks: leave it out"
            )
        if "dist.world_size" not in values:
            added.append(f"dist.world_size={world_size}")
    return [f"++{a}" if a.startswith(_MAPPINGS) else a for a in arguments] + added


def _remove_if_empty(folder: Path) -> None:
    for path in (folder, folder.parent):  # both made by Hydra, before it called us
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


# -- under an outer torchrun: rank 0 composes, the others follow it -------------------------------------------------


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def _lead(run_dir: Path) -> None:
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import train_rank

    store = rendezvous_store()
    store.set("ddppo/run_dir", str(run_dir.resolve()))
    train_rank(run_dir, store)


def _follow() -> None:
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import run_rank

    store = rendezvous_store()
    run_rank(Path(store.get("ddppo/run_dir").decode()), store)


if __name__ == "__main__":
    main()
