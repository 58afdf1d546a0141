"""Bayesian search over orders and settings: Gaussian processes, upper confidence bounds. NumPy alone."""
