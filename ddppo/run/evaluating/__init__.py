"""Evaluation: deterministic episodes, when they are played, and the best scores so far."""
