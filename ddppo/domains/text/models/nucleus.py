"""Sampling from the likeliest choices alone."""

import numpy as np


def nucleus(logits: np.ndarray, allowed: np.ndarray, top_p: float) -> np.ndarray:
    """Return which of the allowed choices `[n, V]` bool are the likeliest whose probabilities reach top_p.

    p = softmax of the logits `[n, V]` of what is allowed. A choice is in where those likelier than it hold less than
    top_p; so the likeliest is, and all that are as likely as the last one are, whatever their order.
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
    """
    masked = np.where(allowed, logits, -np.inf)
    p = np.exp(masked - masked.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    ordered = -np.sort(-p, axis=-1)
    likelier = np.cumsum(ordered, axis=-1) - ordered
    least = np.where(likelier < top_p, ordered, np.inf).min(axis=-1, keepdims=True)
    return allowed & (p >= least)
