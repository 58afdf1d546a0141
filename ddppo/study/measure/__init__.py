"""Speedup, efficiency and time to target of a study, over its seeds."""
