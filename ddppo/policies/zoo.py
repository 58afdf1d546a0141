"""The zoo: trained policies that come with ddppo, for `python -m ddppo.enjoy zoo=cartpole` and ddppo.evaluate.

`ddppo/zoo/<name>` is the folder of a run of `experiment=zoo/<name>`, reduced to what playing needs: its config.yaml,
one checkpoint without the state of the optimiser, and score.json. experiments/zoo/make.py trains and writes them.
"""

import json
from pathlib import Path
from typing import Any

from ddppo.config.fields import near
from ddppo.errors import ConfigError
from ddppo.files import write_json, write_text
from ddppo.package import command
from ddppo.records import checkpoint

KEPT = Path(__file__).resolve().parents[1] / "zoo"
# What a checkpoint needs for playing: evaluation, enjoy and export read nothing else.
_NEEDED = ("model", "obs_moments", "spaces", "options", "iteration", "env_steps", "config")
MEANING = "a policy that comes with ddppo, instead of a run folder, e.g. cartpole (docs/workloads.md)"


def names() -> list[str]:
    """Return the names of the kept policies."""
    return sorted(path.parent.name for path in KEPT.glob("*/config.yaml"))


def run_folder(run: str, zoo: str | None) -> str:
    """Return the run folder that the options `run` and `zoo` name, one of which is given. Raises ConfigError."""
    if zoo is None and not run:
        raise ConfigError(
            f"run= is missing (the run folder): give one, or zoo= with one of {', '.join(names())}"
        )
    if zoo is None:
        return run
    if run:
        raise ConfigError(f"zoo={zoo} and run={run}: give one of them")
    if zoo in names():
        return str(KEPT / zoo)
    from ddppo.config.presets import presets

    if f"zoo/{zoo}" in presets("experiment"):
        train = command("ddppo.train", f"experiment=zoo/{zoo}")
        raise ConfigError(
            f"zoo={zoo}: ddppo has its settings, and no trained policy: train one, {train}, and give its run folder"
        )
    raise ConfigError(
        f"zoo={zoo}: there is no such policy{near(zoo, names())}; there are {', '.join(names())}"
    )


def score(name: str) -> dict[str, Any]:
    """Return score.json of a kept policy: its final evaluation in training, seed, steps and seconds."""
    found: dict[str, Any] = json.loads((KEPT / name / "score.json").read_text(encoding="utf-8"))
    return found


def keep(run_dir: Path, folder: Path) -> None:
    """Write a finished run into `folder`, reduced to what playing needs. Raises RunFolderError, StorageError."""
    # 1. The policy: the last checkpoint, without optimiser, environments and random states.
    path = checkpoint.chosen("last", run_dir)
    state = checkpoint.load(path)
    for old in (folder / "checkpoints").glob("iteration_*.pt"):
        old.unlink()
    checkpoint.save(
        folder / "checkpoints" / path.name, {name: state[name] for name in _NEEDED if name in state}
    )
    # 2. Its settings.
    write_text(folder / "config.yaml", (run_dir / "config.yaml").read_text(encoding="utf-8"))
    # 3. Its score: the evaluation at the end of training.
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    final = summary["eval"]["final"]
    write_json(
        folder / "score.json",
        {
            "env": summary["config"]["env"]["id"],
            "seed": summary["config"]["seed"],
            "env_steps": summary["env_steps"],
            **{name: final[name] for name in ("return_mean", "return_std", "return_min", "return_max")},
            "episodes": int(final["episodes"]),
        },
    )
