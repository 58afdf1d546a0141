"""`python -m ddppo.advise`: short probes of a user's own settings. Read command, candidates, probe, race, text."""
