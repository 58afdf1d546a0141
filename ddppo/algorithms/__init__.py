"""Algorithms: the contract, those on it (PPO, GRPO, REINFORCE, DQN, SAC), and task samplers."""
