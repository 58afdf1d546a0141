"""Environments that are stepped turn by turn, each at its own pace."""
