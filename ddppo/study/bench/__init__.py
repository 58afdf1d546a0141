"""Speed, measured as a user would see it: runs through the train door, in rounds, beside this machine's limits."""
