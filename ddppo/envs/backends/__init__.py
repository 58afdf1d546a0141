"""The backends: how environments are stepped (env.backend). env.backend=remote is in ddppo.serve."""
