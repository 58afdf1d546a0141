"""A stand-in for CybORG 2: the interface that its README and its evaluation use, and a game of dice behind it."""

from CybORG.CybORG import CybORG as CybORG
