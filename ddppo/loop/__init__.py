"""A rank's life and one iteration: begin with rank.py, then iteration.py."""
