"""Algorithms beside PPO: GRPO, and the task samplers that choose the seeds and options of episodes."""
