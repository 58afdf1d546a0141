"""The algorithm."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


@dataclass(slots=True)
class PPOConfig:
    algorithm: str = setting(
        "ppo",
        "ppo (advantages from a value function) or grpo (advantages from the returns of a group of "
        "rollouts with one seed; an iteration is one whole episode of every environment; docs/grpo.md)",
        choices=("ppo", "grpo"),
    )
    group_size: int = setting(
        8,
        "grpo and tasks of text: rollouts G of a group, which share a seed; divides env.num_envs",
        low=1,
    )
    divide_by_std: bool = setting(
        True, "grpo: divide advantages by the group's standard deviation; false is Dr. GRPO's way"
    )
    token_mean: str = setting(
        "tokens",
        "grpo: the loss is the mean over all tokens or steps (tokens), over episodes of the mean of each "
        "(episodes, GRPO's way), or over episodes of the sum of each / rollout_steps (constant, Dr. "
        "GRPO's way)",
        choices=("tokens", "episodes", "constant"),
    )
    kl_coef: float = setting(
        0.0,
        "grpo: weight beta of the divergence from the policy at the start of the run; 0 is none",
        low=0,
    )
    total_steps: int = setting(100_000, "environment steps of all ranks until the run ends", low=1)
    rollout_steps: int = setting(
        128,
        "steps T per environment and iteration; the upper limit where an iteration is a whole episode",
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
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    clip_coef: float = setting(0.2, "epsilon of the clipped surrogate at the start", above=0)
    clip_schedule: str = setting(
        "none", "schedule of clip_coef: none, or linear (to 0 at total_steps)", choices=("none", "linear")
    )
    clip_value_coef: float | None = setting(None, "clip range of the value loss; null does not clip", above=0)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    losses: dict[str, Any] = setting(
        meaning="loss terms of your own, by the names in the records: {still: {term: my_pkg.losses:still, coef: "
        "0.01}} (docs/guide/loss.md). With any, the step is eager",
        factory=dict,
    )
    learning_rate: float = setting(3e-4, "Adam step size at the start", above=0)
    learning_rates: dict[str, float] = setting(
        meaning="step sizes of parts of the model that differ from learning_rate, by name, as {value_head: 1e-3};"
        " schedules multiply all. With any, torch computes the step instead of C++",
        factory=dict,
    )
    warmup_steps: int = setting(
        0, "environment steps over which step sizes rise linearly from 0 to their schedule; 0 is none", low=0
    )
    lr_schedule: str = setting(
        "linear",
        "schedule of step sizes: linear (to 0 at total_steps), none, adaptive (holds approx_kl near "
        "adaptive_kl)",
        choices=("linear", "none", "adaptive"),
    )
    adaptive_kl: float | None = setting(
        None, "lr_schedule=adaptive: target of approx_kl in nats; null is 0.01", above=0
    )
    adam_eps: float = setting(1e-5, "epsilon of Adam", above=0)
    max_grad_norm: float = setting(
        0.5, "gradients are scaled down to at most this norm, over all parameters", above=0
    )
    target_kl: float | None = setting(
        None, "end the epochs of an iteration when approx_kl exceeds this; null never does", above=0
    )
    normalize_advantages: str = setting(
        "global",
        "by moments over all ranks' samples (global), over each minibatch of all ranks (minibatch), over "
        "one rank's samples (local: results depend on W), or not (none)",
        choices=("global", "minibatch", "local", "none"),
    )
    normalize_obs: bool = setting(
        False, "scale observations, except pixels, by running moments over all ranks"
    )
    normalize_rewards: bool = setting(False, "scale rewards by the running deviation of discounted returns")
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
