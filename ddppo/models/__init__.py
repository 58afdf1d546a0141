"""Actor-critics: the contract (actor_critic), networks, action distributions, the trial of a user's own model."""
