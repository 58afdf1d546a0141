"""Prints the table of docs/metrics.md."""

from ddppo.run.records.metrics.table import markdown

print(markdown(), end="")
