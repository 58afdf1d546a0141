"""Batches stepped in C++ or by NumPy: the dynamics of Gymnasium's classic tasks and of our own."""

from ddppo.envs.batched.make import batched_ids, make_batched, why_not_batched

__all__ = ["batched_ids", "make_batched", "why_not_batched"]
