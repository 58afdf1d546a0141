"""Sums, gathers, broadcasts and barriers over ranks: group.py is the contract, and what W=1 does."""
