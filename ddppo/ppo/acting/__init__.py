"""Acting: the model's actions in E environments for T steps, kept as one Rollout."""
