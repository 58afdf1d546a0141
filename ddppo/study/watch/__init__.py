"""A report that keeps up with a sweep while it runs: `python -m ddppo.report <sweep> watch=true`."""
