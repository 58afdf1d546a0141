"""Which runs does the bench measure? The workloads of experiment=bench/w1, ... over W and scaling rules.

Imports no torch.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ddppo.config.fields import near
from ddppo.config.presets import training_section_of
from ddppo.errors import ConfigError
from ddppo.package import install_command

CUSTOM = "custom"
# Workload -> the extra that it needs, and a module of that extra.
_EXTRAS = {"W3": ("atari", "ale_py"), "W4": ("mujoco", "mujoco")}
# Settings without evaluations, checkpoints and displays, which would count in the measurement. They come first, so that
# a user's own settings win.
_QUIET = (
    *("eval.every_steps=0", "eval.final_episodes=0", "checkpoint.every_steps=0"),
    *("log.progress=none", "log.tensorboard=false", "dist.oversubscribe=warn"),
)
_FOREVER = 10**12  # total_steps; the bench stops a run when its time is over
# Settings that the bench decides, and the remedy.
_OURS = {
    "dist.world_size": "use world_sizes=",
    "scaling": "use rules=",
    "scaling.rule": "use rules=",
    "ppo.total_steps": "use seconds=",
    "algorithm.total_steps": "use seconds=",
    "hydra.run.dir": "each run has a temporary folder",
    "resume": "a measured run begins anew",
    "sweep": "use world_sizes=, or a bench for each value",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of run."""

    name: str
    overrides: tuple[str, ...]  # settings of `python -m ddppo.train`


@dataclass(frozen=True, slots=True)
class Configuration:
    """A workload on W ranks under a scaling rule. Under weak scaling its batch is W times the workload's."""

    workload: Workload
    world_size: int
    rule: str

    @property
    def name(self) -> str:
        return f"{self.workload.name} W={self.world_size}{' weak' if self.rule == 'weak' else ''}"

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings of `python -m ddppo.train`, except for the run's folder."""
        return (
            *_QUIET,
            *self.workload.overrides,
            *(f"dist.world_size={self.world_size}", f"scaling={self.rule}"),
            f"{training_section_of(self.workload.overrides)}.total_steps={_FOREVER}",
        )


def fixed_names() -> list[str]:
    """Return the names of the fixed workloads: W1, W2, ..."""
    return sorted(path.stem.upper() for path in _presets().glob("*.yaml"))


def fixed(name: str, overrides: Sequence[str] = ()) -> Workload:
    """Return a fixed workload with more `overrides`. Raises ConfigError for an unknown name."""
    names = fixed_names()
    if name.upper() not in names:
        raise ConfigError(
            f"workloads={name}: there are {', '.join(names)}{near(name.upper(), names)}; to measure your own settings "
            "instead, choose env= or experiment="
        )
    # The preset as overrides, then those of the user.
    preset: Any = OmegaConf.to_container(OmegaConf.load(_presets() / f"{name.lower()}.yaml"))
    return Workload(name.upper(), (*as_overrides(preset), *overrides))


def missing_extra(workload: Workload) -> str | None:
    """Return the packages that a fixed workload needs and that are not installed, as a remark; None if it can run."""
    extra, module = _EXTRAS.get(workload.name, (None, ""))
    if extra is None or importlib.util.find_spec(module) is not None:
        return None
    return f"{workload.name} is skipped, it needs {install_command(extra)}"


def as_overrides(preset: Mapping[str, Any]) -> list[str]:
    """Return the settings of a preset of conf/experiment as overrides.

    Another commit, which the bench may compare with, may have no such preset, or another one under its name.
    """
    # Entries of "defaults" choose options (env=cartpole); all other keys are values.
    chosen = [
        f"{group.removeprefix('override /')}={option}"
        for entry in preset.get("defaults", [])
        for group, option in entry.items()
    ]
    return chosen + list(_flattened({k: v for k, v in preset.items() if k != "defaults"}))


def _flattened(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}"


def configurations(
    workload: Workload, world_sizes: Sequence[int], rules: Sequence[str]
) -> list[Configuration]:
    """Return the workload at each W under each rule; W = 1 appears once, because all rules are equal there."""
    return [
        Configuration(workload, w, rule) for rule in rules for w in world_sizes if w > 1 or rule == rules[0]
    ]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ConfigError for settings that the bench decides."""
    for override in overrides:
        # Hydra allows + and ~ in front of a key.
        key = override.partition("=")[0].lstrip("+~")
        if override.startswith("-"):
            raise ConfigError(f"{override}: options are key=value here, without dashes; --help lists all")
        if key in _OURS or key.startswith(("hydra.", "hydra/")):
            raise ConfigError(f"{override} is the bench's to decide: {_OURS.get(key, 'leave it out')}")


def _presets() -> Path:
    return Path(__file__).resolve().parents[1] / "conf" / "experiment" / "bench"
