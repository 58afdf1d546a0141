"""Actor-critics: the contract, networks, distributions, the check of a user's own model."""
