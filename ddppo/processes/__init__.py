"""Processes: their cores and memory, what a signal means, orphans, and forks of a server that is warm."""
