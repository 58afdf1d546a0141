"""Atari games by ale-py's own batch, and what is kept to play them again."""
