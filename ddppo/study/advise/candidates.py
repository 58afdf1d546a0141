"""Which settings does advice try? A setting with several values is tried at each of them, and so are several W.

`question` reads the command line, `candidates` lists the first ones to try, `variants` further ones near the best.
Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.launch.arguments import composed, prepared_arguments

W = "dist.world_size"
# Settings that do not change learning (the end is a prefix of names).
_NEUTRAL = ("dist.", "env.backend", "env.num_workers", "compile", "device")
# Settings that advice decides, and the reason.
_OURS = {
    **dict.fromkeys(("hydra.run.dir", "hydra.sweep.dir", "sweep"), "probes have temporary folders"),
    "resume": "probes begin anew, so give the run's settings",
    "objective": "steps/s decide",
}
_MOST_WORLD_SIZES = 7
_PAYS_FROM = 0.1  # of an iteration; a smaller part is not worth a probe


@dataclass(frozen=True, slots=True)
class Question:
    """The settings of a command line."""

    fixed: tuple[str, ...]  # overrides with one value
    axes: Mapping[str, tuple[str, ...]]  # setting -> its values, if there are several

    @property
    def through_slurm(self) -> bool:
        return any(o.startswith("hydra/launcher=slurm") for o in self.fixed)

    @property
    def of_run(self) -> tuple[str, ...]:
        """The fixed settings without those of the launcher."""
        return tuple(o for o in self.fixed if not o.startswith(("hydra/", "hydra.")))

    def names(self, key: str) -> bool:
        """Return whether the command line gives this setting."""
        return key in self.axes or any(o.partition("=")[0].lstrip("+") == key for o in self.fixed)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run."""

    overrides: tuple[str, ...]  # after the fixed settings
    config: Config  # the fixed settings and the overrides, composed

    @property
    def world_size(self) -> int:
        return self.config.dist.world_size

    @property
    def others(self) -> tuple[str, ...]:
        """The overrides without W."""
        return tuple(o for o in self.overrides if not o.startswith(f"{W}="))

    @property
    def name(self) -> str:
        return " ".join((f"W={self.world_size}", *self.others))


def question(overrides: Sequence[str]) -> Question:
    """Return the settings of a command line; several values are written a,b as with -m. Raises ConfigError."""
    fixed: list[str] = []
    axes: dict[str, tuple[str, ...]] = {}
    task = [o for o in overrides if o.startswith(("env=", "experiment="))]
    for override in overrides:
        key, values = override.partition("=")[0].lstrip("+~"), _values(override, task)
        if key in _OURS:
            raise ConfigError(f"{override} is not for advice to try: {_OURS[key]}")
        # Several tasks or seeds would be several questions.
        if key in ("env", "env.id", "experiment", "seed") and len(values) > 1:
            raise ConfigError(f"{override}: advice is about one task and seed, give one")
        if len(values) > 1:
            axes[key] = values
        else:
            fixed.append(override)
    found = Question(tuple(fixed), axes)
    launcher = [o for o in overrides if o.startswith(("hydra/", "hydra."))]
    if launcher and not found.through_slurm:
        raise ConfigError(f"{launcher[0]} has no effect on probes: leave it out, or use hydra/launcher=slurm")
    return found


def _values(override: str, task: Sequence[str]) -> tuple[str, ...]:
    """Return the values for which Hydra would start a run each, in its spelling; the whole override if it is one.

    task: the overrides that choose the task, because an override may be a keyword of the task.
    """
    try:
        prepared = prepared_arguments(["-m", *task, override])
        # The override is the last argument, unless it is `seed`, which comes first.
        same = [argument for argument in prepared if argument.partition("=")[0] == override.partition("=")[0]]
        parsed = OverridesParser.create().parse_override((same or prepared)[-1])
    except (HydraException, ConfigError):  # composing the whole command line will raise it again
        return (override,)
    return tuple(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else (override,)


def candidates(asked: Question, cores: int) -> list[Candidate]:
    """Return the first candidates, in the order in which they are started while there is time.

    Each is a combination of the values of `axes` at a W; without a given W, those of `world_sizes`. Raises ConfigError.
    """
    given = asked.axes.get(W, ())
    if not all(w.isdigit() and int(w) > 0 for w in given):
        raise ConfigError(f"{W}={','.join(given)}: numbers of workers, e.g. {W}=1,2,4")
    found: list[Candidate] = []
    for overrides in product(*_choices(asked)):
        # Compose now: a mistake should appear before the first probe.
        config = composed((*asked.of_run, *overrides))
        if not given and asked.names(W):
            found.append(Candidate(overrides, config))
            continue
        # W = 1 first, for it is the baseline; then from the number of cores outwards.
        sizes = {int(w) for w in given} or world_sizes(config, cores)
        for w in sorted(sizes, key=lambda w: (w > 1, _apart(w, cores), w)):
            at_w = replace(config, dist=replace(config.dist, world_size=w))
            validate(at_w)
            if config.env.backend != "pool" or cores >= 2 * w or asked.names("env.backend"):
                found.append(Candidate((*overrides, f"{W}={w}"), at_w))
    return found


def _choices(asked: Question) -> list[list[str]]:
    """Return the overrides of each axis except W. env.backend is an axis too if the user left it open.

    env.backend=auto decides by a short measurement, which does not always have the same result.
    """
    from ddppo.envs.backends.classic_cpp import batched_ids

    # The axes of the user, and env.backend if it is open and matters.
    axes = {key: values for key, values in asked.axes.items() if key != W}
    if not asked.names("env.backend") and not asked.through_slurm:
        env = composed((*asked.of_run, *(f"{key}={values[0]}" for key, values in axes.items()))).env
        is_one_batch = env.id in batched_ids() and not {"step_time_s", "reset_time_s"} & env.kwargs.keys()
        if not (is_one_batch or env.is_ale or env.is_envpool) and env.backend == "auto":
            axes = {"env.backend": ("sync", "pool"), **axes}
    return [[f"{key}={value}" for value in values] for key, values in axes.items()]


def world_sizes(config: Config, cores: int) -> list[int]:
    """Return possible W from 1 to the number of cores, and the next larger one; a selection if they are many.

    Under scaling=strong these are divisors of num_envs, with which no rank waits for one that has an environment more.
    Under weak scaling they are powers of 2.
    """
    num_envs = config.env.num_envs
    # Strong scaling shares the environments, weak scaling multiplies them.
    divisors = (w for w in range(1, num_envs + 1) if num_envs % w == 0)
    powers = (2**k for k in range(cores.bit_length() + 1))
    possible = list(powers if config.scaling.rule == "weak" else divisors)
    within, beyond = [w for w in possible if w <= cores], [w for w in possible if w > cores][:1]
    if len(within) > _MOST_WORLD_SIZES:  # the ones nearest to evenly spaced W on a logarithmic scale
        even = [cores ** (k / (_MOST_WORLD_SIZES - 1)) for k in range(_MOST_WORLD_SIZES)]
        within = sorted({min(within, key=partial(_apart, each)) for each in even})
    return within + beyond


def _apart(one: float, other: float) -> float:
    """Return the factor between two numbers, at least 1."""
    return max(one / other, other / one)


def variants(best: Candidate, parts: Mapping[str, float], asked: Question, cores: int) -> list[Candidate]:
    """Return variants of the best candidate that may be faster: other settings for a part of a tenth or more.

    parts: fractions of an iteration. A setting that the user gave is not varied.
    """
    own_cores, model = cores // best.world_size, best.config.model.name
    # Part, setting, value, and whether it can help. A pool helps even on one core if environments wait. The step of mlp
    # uses one thread.
    tries = [
        ("t_rollout", "env.backend", "pool", own_cores < 2 and "env.backend=sync" in best.overrides),
        ("t_comm", "dist.collective", "gloo", best.world_size > 1),
        ("t_learn", "dist.threads_per_rank", own_cores, own_cores > 1 and model != "mlp"),
    ]
    return [
        Candidate((*(o for o in best.overrides if not o.startswith(key)), f"{key}={value}"), best.config)
        for part, key, value, is_possible in tries
        if is_possible and parts[part] >= _PAYS_FROM and not asked.names(key)
    ]


def changes_learning(asked: Question, chosen: Candidate) -> list[str]:
    """Return the settings that change learning per step, so that steps/s alone do not decide."""
    # Settings of the user that change learning.
    found = [f"{key}={','.join(v)}" for key, v in asked.axes.items() if not key.startswith(_NEUTRAL)]
    if "gym_vector" in asked.axes.get("env.backend", ()):
        found.append("env.backend=gym_vector")
    # Weak scaling, and more workers than environments, change the batch.
    if not asked.names(W) or W in asked.axes:
        if chosen.config.scaling.rule == "weak":
            found.append("scaling=weak")
        elif chosen.world_size > chosen.config.env.num_envs:
            found.append(f"W={chosen.world_size}, more than env.num_envs={chosen.config.env.num_envs}")
    return found
