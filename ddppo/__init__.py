"""Decentralised, synchronous, data-parallel PPO."""

__version__ = "0.1.0"
