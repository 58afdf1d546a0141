"""Whole subjects that stand on the core as a project of a user does: each declares itself by `PLUGIN`."""
