"""The settings of algorithms: those that every algorithm has, those that PPO and GRPO share, then each of the two.

PPO and GRPO have the section `ppo`. Any other algorithm has the section `algorithm`, a dataclass of its own that
derives from `AlgorithmSettings`. `Config.training` returns the settings of the algorithm that trains.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import MISSING

from ddppo.algorithms.known import ALGORITHMS
from ddppo.config.fields import setting
from ddppo.config.schedules import MEANING as SCHEDULE
from ddppo.config.schedules import Coefficient, Schedule, check_schedule
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

if TYPE_CHECKING:
    from ddppo.config.settings import Config


@dataclass(slots=True)
class TrainingSettings:
    """The settings that every algorithm has. Code that serves any algorithm reads these and the properties alone."""

    section: ClassVar[str] = "algorithm"  # the section of these settings, for messages
    total_steps: int = setting(100_000, "environment steps of all ranks until the run ends", low=1)
    rollout_steps: int = setting(
        128,
        "steps T per environment and iteration; the upper limit where an iteration is a whole episode",
        low=1,
    )
    # Observations and rewards, before learning.
    normalize_obs: bool = setting(
        False, "scale observations, except pixels, by running moments over all ranks"
    )
    reward_scale: float = setting(
        1.0,
        "learning sees rewards times this, before reward_clip; returns are reported as the task gives them",
        above=0,
    )
    reward_clip: float | None = setting(
        None,
        "learning sees rewards cut to [-reward_clip, reward_clip]; returns are reported uncut. null does "
        "not cut",
        above=0,
    )

    # Values for algorithms without such a setting.

    @property
    def group_size(self) -> int:
        """Rollouts of a group, which share a seed."""
        return 1

    @property
    def rollouts_per_update(self) -> int | None:
        """Rollouts per update under distributed=async_actors; None is the number of actors."""
        return None

    @property
    def sequence_length(self) -> int | None:
        """Steps over which gradients flow back in a policy with memory; None is rollout_steps."""
        return None

    @property
    def num_epochs(self) -> int:
        return 1

    @property
    def num_minibatches(self) -> int:
        return 1

    @property
    def losses(self) -> dict[str, Any]:
        """Loss terms of the user's own, by name."""
        return {}

    @property
    def learning_rates(self) -> dict[str, float]:
        """Step sizes of parts of the model, by name."""
        return {}

    @property
    def gamma(self) -> float:
        return 0.99

    @property
    def normalize_rewards(self) -> bool:
        return False


@dataclass
class AlgorithmChoice:
    """The algorithm that trains. For PPO and GRPO this is the whole section `algorithm`."""

    name: str = setting(
        "ppo",
        "which algorithm trains: ppo (its settings are in the section ppo; ppo.algorithm=grpo chooses GRPO), "
        f"{', '.join(ALGORITHMS)}, or an import path of your own, my_pkg.algos:Reinforce (docs/algorithms.md)",
    )


@dataclass
class AlgorithmSettings(TrainingSettings, AlgorithmChoice):
    """The section `algorithm` of every algorithm but PPO and GRPO. An algorithm derives its settings from it.

    An algorithm that learns from groups of rollouts has the setting `group_size` too.
    """

    name: str = setting(MISSING, "this algorithm's")
    rollouts_per_update: int | None = setting(
        None,
        "distributed=async_actors: rollouts per update, each of one actor's environments; null is the "
        "number of actors",
        low=1,
    )
    lr_schedule: Any = setting(
        "own",
        f"schedule of the algorithm's step sizes: own (as the algorithm changes them), {SCHEDULE}. A value is that of "
        "learning_rate; step sizes of other parts change by the same factor",
    )

    def check(self) -> None:
        check_schedule("algorithm.lr_schedule", self.lr_schedule, getattr(self, "learning_rate", None), "own")

    def coefficients(self, learning_rate_scale: float = 1.0) -> dict[str, Coefficient]:
        """Return the step size of the algorithm if it has the setting learning_rate, else {}."""
        start, given = getattr(self, "learning_rate", None), self.lr_schedule
        if start is None:
            return {}
        by = Schedule(
            "algorithm.lr_schedule", "none" if given == "own" else given, start, learning_rate_scale
        )
        return {"learning_rate": Coefficient(by, learning_rate_scale, is_scheduled=given != "own")}


@dataclass(slots=True)
class ReinforceSettings(AlgorithmSettings):
    """Policy gradient from whole episodes, with a baseline."""

    name: str = setting("reinforce", "this algorithm's")
    rollout_steps: int = setting(500, "steps after which an episode is cut", low=1)
    learning_rate: float = setting(
        1e-2, "step size of Adam at the start; it falls linearly to 0 at total_steps", above=0
    )
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    value_coef: float = setting(0.5, "weight of the baseline's loss", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    max_grad_norm: float = setting(0.5, "gradients are scaled down to at most this norm", above=0)


@dataclass(slots=True)
class SurrogateSettings(TrainingSettings):
    """The settings that PPO and GRPO share, which maximise the same clipped surrogate."""

    section: ClassVar[str] = "ppo"
    algorithm: str = setting(
        "ppo",
        "ppo (advantages from a value function) or grpo (advantages from the returns of a group of "
        "rollouts with one seed; an iteration is one whole episode of every environment; docs/grpo.md)",
    )
    # Sizes of an iteration, and of the steps in it.
    group_size: int = setting(
        8,
        "grpo and tasks of text: rollouts G of a group, which share a seed; divides env.num_envs",
        low=1,
    )
    rollouts_per_update: int | None = setting(
        None,
        "distributed=async_actors: rollouts per update, each of one actor's environments; null is the "
        "number of actors, 1 is A3C's",
        low=1,
    )
    sequence_length: int | None = setting(
        None,
        "policies with memory: steps L of a sequence, over which gradients flow back; divides "
        "rollout_steps, which is the default (null). Shorter sequences are learned faster",
        low=1,
    )
    num_epochs: int = setting(4, "passes K over the batch per iteration", low=1, high=1_000_000)
    num_minibatches: int = setting(4, "minibatches M per epoch, over all ranks", low=1)
    # The loss.
    clip_coef: float = setting(0.2, "epsilon of the clipped surrogate at the start", above=0)
    clip_schedule: Any = setting("none", f"schedule of clip_coef: {SCHEDULE}")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus at the start", low=0)
    entropy_schedule: Any = setting("none", "schedule of entropy_coef, as clip_schedule")
    losses: dict[str, Any] = setting(
        meaning="loss terms of your own, by the names in the records: {still: {term: my_pkg.losses:still, coef: "
        "0.01}} (docs/guide/loss.md). With any, the step is eager",
        factory=dict,
    )
    # Adam and its schedules.
    learning_rate: float = setting(3e-4, "Adam step size at the start", above=0)
    learning_rates: dict[str, float] = setting(
        meaning="step sizes of parts of the model that differ from learning_rate, by name, as {value_head: 1e-3};"
        " schedules multiply all. With any, torch computes the step instead of C++",
        factory=dict,
    )
    warmup_steps: int = setting(
        0, "environment steps over which step sizes rise linearly from 0 to their schedule; 0 is none", low=0
    )
    lr_schedule: Any = setting(
        "linear",
        "schedule of step sizes, as clip_schedule; or adaptive, which holds approx_kl near adaptive_kl",
    )
    adaptive_kl: float | None = setting(
        None, "lr_schedule=adaptive: target of approx_kl in nats; null is 0.01", above=0
    )
    adam_eps: float = setting(1e-5, "epsilon of Adam", above=0)
    max_grad_norm: float = setting(
        0.5, "gradients are scaled down to at most this norm, over all parameters", above=0
    )
    # The early stop of an iteration's epochs.
    target_kl: float | None = setting(
        None, "end the epochs of an iteration when approx_kl exceeds this; null never does", above=0
    )
    kl_schedule: Any = setting("none", "schedule of target_kl, as clip_schedule")

    def check(self) -> None:
        check_schedule("ppo.lr_schedule", self.lr_schedule, self.learning_rate, "adaptive")
        check_schedule("ppo.clip_schedule", self.clip_schedule, self.clip_coef)
        check_schedule("ppo.entropy_schedule", self.entropy_schedule, self.entropy_coef)
        check_schedule("ppo.kl_schedule", self.kl_schedule, self.target_kl)

    def coefficients(self, learning_rate_scale: float = 1.0) -> dict[str, Coefficient]:
        """Return the coefficients that change while a run trains, by the name of their settings.

        An adaptive step size is the learner's own. Raises ConfigError if a function of a schedule cannot be imported.
        """
        lr_schedule = "none" if self.lr_schedule == "adaptive" else self.lr_schedule
        found = {}
        for name, schedule, given in (
            ("learning_rate", "lr_schedule", lr_schedule),
            ("clip_coef", "clip_schedule", self.clip_schedule),
            ("entropy_coef", "entropy_schedule", self.entropy_schedule),
            ("target_kl", "kl_schedule", self.kl_schedule),
        ):
            start, scale = getattr(self, name), learning_rate_scale if name == "learning_rate" else 1.0
            by = Schedule(f"ppo.{schedule}", given, math.inf if start is None else start, scale)
            found[name] = Coefficient(by, scale, is_scheduled=given != "none")
        return found

    # PPO's learner reads these of GRPO too, which learns with the values here.

    @property
    def gae_lambda(self) -> float:
        return 0.95

    @property
    def clip_value_coef(self) -> float | None:
        return None

    @property
    def value_coef(self) -> float:
        return 0.5

    @property
    def normalize_advantages(self) -> str:
        return "global"

    @property
    def kl_coef(self) -> float:
        return 0.0

    @property
    def clip_coef_high(self) -> float | None:
        return None

    @property
    def more_statistics(self) -> tuple[str, ...]:
        """Names of statistics of the policy's loss, beside those of PPO (ppo/losses.py)."""
        return ()


@dataclass(slots=True)
class PPOSettings(SurrogateSettings):
    """Advantages from a value function."""

    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    clip_value_coef: float | None = setting(None, "clip range of the value loss; null does not clip", above=0)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    normalize_advantages: str = setting(
        "global",
        "by moments over all ranks' samples (global), over each minibatch of all ranks (minibatch), over "
        "one rank's samples (local: results depend on W), or not (none)",
        choices=("global", "minibatch", "local", "none"),
    )
    normalize_rewards: bool = setting(False, "scale rewards by the running deviation of discounted returns")

    def check_run(self, config: "Config", shape: BatchShape) -> None:
        if self.reward_scale != 1.0 and self.normalize_rewards and self.reward_clip is None:
            raise ConfigError(
                f"ppo.reward_scale={self.reward_scale} has no effect with ppo.normalize_rewards=true, which divides by "
                "a deviation that grows by the same factor: set ppo.normalize_rewards=false, or leave the scale out"
            )
        # Over one sample all advantages would be 0.
        num_envs = shape.fewest_envs if self.normalize_advantages == "local" else shape.num_envs
        samples = num_envs * shape.rollout_steps
        if samples == 1 and self.normalize_advantages != "none":
            raise ConfigError(
                f"ppo.normalize_advantages={self.normalize_advantages} over 1 sample, of env.num_envs={shape.num_envs} "
                f"and ppo.rollout_steps={shape.rollout_steps}: one sample has no deviation, and its advantage would be "
                "0: use more environments or steps, or ppo.normalize_advantages=none"
            )
        if self.normalize_advantages == "minibatch" and 2 * shape.num_minibatches > shape.batch_size:
            raise ConfigError(
                f"ppo.normalize_advantages=minibatch with ppo.num_minibatches={shape.num_minibatches} of "
                f"{shape.batch_size} samples: one sample has no deviation: use at most {shape.batch_size // 2} "
                "minibatches, or ppo.normalize_advantages=global"
            )


@dataclass(slots=True)
class GrpoSettings(SurrogateSettings):
    """Advantages from the returns of a group of rollouts with one seed, and no value function."""

    algorithm: str = setting("grpo", "this algorithm's")
    # Advantages: A_i = (r_i - mean over the group) / scale.
    scale_by: str = setting(
        "group",
        "what divides r - mean of a group: the standard deviation of returns in the group (group, GRPO's way), "
        "that of the returns of all groups (batch), or nothing (none, Dr. GRPO's way)",
        choices=("group", "batch", "none"),
    )
    mask_truncated: bool = setting(
        False,
        "rollouts cut by rollout_steps, env.max_turns or a prompt that does not fit are not learned from; their "
        "returns count in the mean and deviation of their group",
    )
    # The loss of a token or step, and its mean.
    loss: str = setting(
        "clip",
        "clip: -min(w A, clip(w, 1 - clip_coef, 1 + clip_coef_high) A); cispo: -min(w, 1 + clip_coef_high) A log pi, "
        "with no gradient through w; w is the ratio",
        choices=("clip", "cispo"),
    )
    clip_coef_high: float | None = setting(
        None,
        "range of the ratio above 1, which clip_schedule changes too; null is clip_coef. DAPO's is 0.28",
        above=0,
    )
    ratio: str = setting(
        "token",
        "the ratio w = pi / pi_old of each token or step (token), or of the whole rollout, as the geometric mean over "
        "its tokens (sequence, GSPO's way, with token_mean=episodes and clip_coef near 3e-4)",
        choices=("token", "sequence"),
    )
    token_mean: str = setting(
        "tokens",
        "the loss is the mean over all tokens or steps (tokens), over episodes of the mean of each "
        "(episodes, GRPO's way), or over episodes of the sum of each / rollout_steps (constant, Dr. "
        "GRPO's way)",
        choices=("tokens", "episodes", "constant"),
    )
    kl_coef: float = setting(
        0.0,
        "weight beta of the divergence from the policy at the start of the run; 0 is none",
        low=0,
    )

    @property
    def more_statistics(self) -> tuple[str, ...]:
        return ("clip_fraction_low", "clip_fraction_high")

    def check(self) -> None:
        if self.group_size < 2:
            raise ConfigError(
                f"ppo.group_size={self.group_size} with ppo.algorithm=grpo: a single rollout cannot be compared with "
                "others: use at least 2"
            )
        if self.reward_scale != 1.0 and self.scale_by != "none" and self.reward_clip is None:
            raise ConfigError(
                f"ppo.reward_scale={self.reward_scale} has no effect with ppo.scale_by={self.scale_by}, which divides "
                "by a deviation that grows by the same factor: set ppo.scale_by=none, or leave the scale out"
            )
        if self.ratio == "sequence" and self.token_mean != "episodes":
            raise ConfigError(
                f"ppo.ratio=sequence with ppo.token_mean={self.token_mean}: all tokens of a rollout have one ratio, "
                "and long rollouts would weigh more: use ppo.token_mean=episodes"
            )
        if (
            self.loss == "cispo"
            and self.clip_coef_high is not None
            and self.clip_coef != SurrogateSettings().clip_coef
        ):
            raise ConfigError(
                f"ppo.clip_coef={self.clip_coef} has no effect with ppo.loss=cispo and ppo.clip_coef_high: "
                "the weight of a token is cut above only: leave ppo.clip_coef out"
            )
        if self.ratio == "sequence" and self.loss == "cispo":
            raise ConfigError(
                "ppo.loss=cispo with ppo.ratio=sequence: cispo weighs each token by its own ratio: use "
                "ppo.ratio=token, or ppo.loss=clip"
            )

    def check_run(self, config: "Config", shape: BatchShape) -> None:
        if self.ratio == "sequence" and shape.num_minibatches > shape.num_envs:
            raise ConfigError(
                f"ppo.num_minibatches={shape.num_minibatches} with ppo.ratio=sequence: a minibatch consists of whole "
                f"rollouts, and there are {shape.num_envs}: use at most {shape.num_envs}"
            )
        if config.compile in ("on", "torch"):
            raise ConfigError(
                f"compile={config.compile} with ppo.algorithm=grpo: the loss of groups is not compiled: use "
                "compile=auto"
            )
        if config.env.backend == "gym_vector":
            raise ConfigError(
                "env.backend=gym_vector with ppo.algorithm=grpo: its environments share one random stream, so the "
                "rollouts of a group cannot share a seed: use env.backend=sync"
            )
        check_groups(config, shape, "ppo.algorithm=grpo", "groups")


def check_groups(config: "Config", shape: BatchShape, why: str, kind: str) -> None:
    """Raise ConfigError if an iteration cannot be whole episodes, in groups of G.

    why: the setting that needs them. kind: "episodes" or "groups".
    """
    ppo, dist = config.ppo, config.dist
    find(dist.topology).check_work(kind, why)
    # Strong scaling shortens rollouts if there are more ranks than environments: episodes would be cut.
    if shape.rollout_steps != config.training.rollout_steps:
        raise ConfigError(
            f"dist.world_size={dist.world_size} exceeds env.num_envs={config.env.num_envs} with {why}: scaling=strong "
            f"would cut episodes after {shape.rollout_steps} steps: use at most {config.env.num_envs} ranks, or more "
            "environments"
        )
    # Whole groups, over all ranks together.
    group_size, section = config.training.group_size, "ppo" if config.training is ppo else "algorithm"
    if shape.num_envs % group_size:
        above = -(-shape.num_envs // group_size) * group_size
        raise ConfigError(
            f"{section}.group_size={group_size} does not divide the {shape.num_envs} environments of all ranks with "
            f"{why}: use a divisor, or {above} environments"
        )
