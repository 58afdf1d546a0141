"""What cannot be made of rewards, advantages and first weights: command lines with what is said of them."""

LINES = {
    "ppo.reward_scale=0": "ppo.reward_scale=0.0: must be greater than 0",
    "ppo.reward_scale=inf": "ppo.reward_scale=inf: must be a finite number",
    "ppo.reward_scale=0.1 ppo.normalize_rewards=true": "has no effect with ppo.normalize_rewards=true, which divides",
    "ppo=grpo ppo.reward_scale=0.1": "has no effect with ppo.scale_by=group, which divides",
    "ppo.normalize_advantages=minibatch ppo.num_minibatches=256": "one sample has no deviation: use at most 128",
    "env.num_envs=1 ppo.rollout_steps=1 ppo.num_minibatches=1": (
        "ppo.normalize_advantages=global over 1 sample, of env.num_envs=1 and ppo.rollout_steps=1: one sample has no "
    ),
    "env.num_envs=1 ppo.rollout_steps=1 ppo.num_minibatches=1 ppo.normalize_advantages=minibatch": "over 1 sample, of",
    "env.num_envs=2 dist.world_size=2 ppo.rollout_steps=1 ppo.num_minibatches=1 ppo.normalize_advantages=local": (
        "use more environments or steps, or ppo.normalize_advantages=none"
    ),
    "ppo=grpo ppo.normalize_advantages=minibatch": "with ppo.algorithm=grpo: it is of ppo.algorithm=ppo",
    "ppo.normalize_advantages=minibatches": "must be one of global, minibatch, local, none (did you mean minibatch",
    "model=cnn model.orthogonal=false": "no setting model.orthogonal with model.name=cnn: it is of model=mlp",
}
