"""Settings of groups of whole episodes that cannot be: command lines with what is said of them."""

LINES = {
    "ppo=grpo ppo.group_size=3": "ppo.group_size=3 does not divide the 8 environments of all ranks",
    "ppo=grpo ppo.group_size=1": "a single rollout cannot be compared with others: use at least 2",
    "ppo=grpo ppo.group_size=16": "use a divisor, or 16 environments",
    "ppo=grpo dist.world_size=16": "dist.world_size=16 exceeds env.num_envs=8 with ppo.algorithm=grpo",
    "ppo=grpo distributed=async_actors dist.world_size=3": "a group compares episodes of one policy",
    "ppo=grpo distributed=device": "its C++ collects T steps of every environment in one call: use distributed=ddp",
    "ppo=grpo env=acrobot env.backend=gym_vector": "env.backend=gym_vector with ppo.algorithm=grpo",
    "ppo=grpo env=circuit model=mlp": "so the episodes of a group cannot begin equally",
    "ppo=grpo compile=on": "the loss of groups is not compiled: use compile=auto",
    "ppo=grpo ppo.gae_lambda=0.9": "no setting ppo.gae_lambda with ppo.algorithm=grpo: it is of ppo.algorithm=ppo",
    "ppo=grpo ppo.normalize_rewards=true": "with ppo.algorithm=grpo: it is of ppo.algorithm=ppo",
    "ppo=grpo ppo.token_mean=token": "must be one of tokens, episodes, constant (did you mean tokens",
    "ppo=grpo ppo.kl_coef=-0.1": "must be at least 0",
    "ppo.algorithm=gpro": "must be one of ppo, grpo (did you mean",
    "ppo.algorithm=grpo ppo.gamma=0.98": "no setting ppo.gamma with ppo.algorithm=grpo: it is of ppo.algorithm=ppo",
    "ppo.kl_coef=0.1": "no setting ppo.kl_coef with ppo.algorithm=ppo: it is of ppo.algorithm=grpo",
    "ppo.group_size=4": "which is not a text task: use ppo=grpo, or leave it out",
}
