"""Processes of this machine: signals, limits, cores and memory, and forks from a server that has imported torch."""
