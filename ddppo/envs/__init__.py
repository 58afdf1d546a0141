"""Environments: the contract (vec_env), backends that step them, encoding, saving. Imports NumPy, not torch."""
