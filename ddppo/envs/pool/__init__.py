"""Environments in a few processes of a rank: the rank's side (pool), a process (worker), what they share (line)."""
