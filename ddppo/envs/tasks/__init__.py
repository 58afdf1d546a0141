"""Tasks of our own, registered here and imported when one of them is made."""

import gymnasium as gym

gym.register(
    "ddppo/Synthetic-v0",
    entry_point="ddppo.envs.tasks.synthetic:SyntheticEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/Circuit-v0",
    entry_point="ddppo.envs.tasks.circuit.env:CircuitEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/Cloud-v0",
    entry_point="ddppo.envs.tasks.cloud.env:CloudEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/CAGE2-v0",
    entry_point="ddppo.envs.tasks.cage2.env:CageEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/CybORG-v0",
    entry_point="ddppo.envs.tasks.cage2.cyborg:CyborgEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/TMaze-v0",
    entry_point="ddppo.envs.tasks.tmaze:TMazeEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/MaskedCartPole-v0",
    entry_point="ddppo.envs.tasks.masked_cartpole:MaskedCartPoleEnv",
    max_episode_steps=500,
)
