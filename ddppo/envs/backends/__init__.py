"""How environments are stepped, a file for each env.backend; env.backend=remote is of ddppo.serve."""
