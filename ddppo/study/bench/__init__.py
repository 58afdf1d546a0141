"""`python -m ddppo.bench`: measured speed. Read command, workloads, measured, limits and results, in this order."""
