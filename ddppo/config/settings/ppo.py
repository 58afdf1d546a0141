"""The algorithm."""

from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting


@dataclass(slots=True)
class PPOConfig:
    algorithm: str = setting(
        "ppo",
        "ppo (advantages by a value function), or grpo (by the returns of a group of rollouts from one seed; an "
        "iteration is one whole episode of every environment; docs/grpo.md)",
        choices=("ppo", "grpo"),
    )
    group_size: int = setting(
        8,
        "of grpo and of tasks of text: rollouts G of a group, from one seed; env.num_envs is a multiple of it",
        low=1,
    )
    divide_by_std: bool = setting(
        True, "of grpo: advantages in units of the group's standard deviation; false is Dr. GRPO's"
    )
    token_mean: str = setting(
        "tokens",
        "of grpo, what the loss is a mean over: all tokens, or steps, alike (tokens); episodes, of the mean over each "
        "one's own (episodes, as in GRPO); episodes, of the sum over rollout_steps (constant, as in Dr. GRPO)",
        choices=("tokens", "episodes", "constant"),
    )
    kl_coef: float = setting(
        0.0,
        "of grpo: weight beta of the divergence from the policy that the run began with; 0 is none",
        low=0,
    )
    total_steps: int = setting(100_000, "environment steps of all ranks until the run ends", low=1)
    rollout_steps: int = setting(
        128, "steps T per environment and iteration; of whole episodes, at most", low=1
    )
    rollouts_per_update: int | None = setting(
        None,
        "distributed=async_actors: rollouts that an update learns from, each of one actor's environments; null is as "
        "many as there are actors, 1 is A3C's",
        low=1,
    )
    sequence_length: int | None = setting(
        None,
        "of policies with memory: steps in a row L that are learned from at once, and that gradients go back; divides "
        "rollout_steps, which null takes. Shorter ones are learned faster",
        low=1,
    )
    num_epochs: int = setting(4, "passes K over the batch per iteration", low=1, high=1_000_000)
    num_minibatches: int = setting(4, "minibatches M per epoch, over all ranks", low=1)
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    clip_coef: float = setting(0.2, "epsilon of the clipped surrogate at the start", above=0)
    clip_schedule: str = setting(
        "none", "of clip_coef: none, or linear (to 0 at total_steps)", choices=("none", "linear")
    )
    clip_value_coef: float | None = setting(None, "clip range of the value loss; null does not clip", above=0)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    losses: dict[str, Any] = setting(
        meaning="loss terms of your own, by the names that they are reported under: {still: {term: "
        "my_pkg.losses:still, coef: 0.01}} (docs/guide/loss.md). With any, the step stays eager",
        factory=dict,
    )
    learning_rate: float = setting(3e-4, "Adam step size at the start", above=0)
    learning_rates: dict[str, float] = setting(
        meaning="other step sizes of parts of the model, by name, as {value_head: 1e-3}; schedules multiply all "
        "alike. With any, torch computes what C++ would",
        factory=dict,
    )
    warmup_steps: int = setting(
        0, "environment steps over which step sizes rise linearly to what they would be; 0 is none", low=0
    )
    lr_schedule: str = setting(
        "linear",
        "linear (to 0 at total_steps), none, adaptive (by approx_kl around adaptive_kl)",
        choices=("linear", "none", "adaptive"),
    )
    adaptive_kl: float | None = setting(
        None, "approx_kl in nats that lr_schedule=adaptive aims at (0.01 if null)", above=0
    )
    adam_eps: float = setting(1e-5, "epsilon of Adam", above=0)
    max_grad_norm: float = setting(
        0.5, "gradients are scaled down to this norm, over all parameters", above=0
    )
    target_kl: float | None = setting(
        None, "stop the epochs of an iteration once approx_kl exceeds this", above=0
    )
    normalize_advantages: str = setting(
        "global",
        "by moments over all ranks (global), over those of each minibatch (minibatch), over one rank's samples (local: "
        "depends on W), or not (none)",
        choices=("global", "minibatch", "local", "none"),
    )
    normalize_obs: bool = setting(False, "scale observations, but pixels, by running moments over all ranks")
    normalize_rewards: bool = setting(False, "scale rewards by the running deviation of discounted returns")
    reward_scale: float = setting(
        1.0,
        "learn from rewards times this, before reward_clip; returns are reported as the task gave them",
        above=0,
    )
    reward_clip: float | None = setting(
        None,
        "learn from rewards cut to [-reward_clip, reward_clip]; null does not; returns are reported uncut",
        above=0,
    )
