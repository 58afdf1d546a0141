"""A module that fails as it is imported."""

Ring = 1 / 0
