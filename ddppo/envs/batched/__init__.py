"""Batches stepped by NumPy: the dynamics of Gymnasium's classic tasks and of our own, and the batch around them."""

from ddppo.envs.batched.batch import BATCHED_IDS, make_batched, why_not_batched

__all__ = ["BATCHED_IDS", "make_batched", "why_not_batched"]
