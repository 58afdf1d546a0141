"""`python -m ddppo.runs`: a table of runs, and comparisons. Read command, records, table, comparison, plot."""
