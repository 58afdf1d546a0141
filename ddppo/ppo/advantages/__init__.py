"""What a rollout was worth: advantages and returns, by GAE or within groups of rollouts."""
