"""A trained policy after its run: loaded for any program, played, scored, and written for programs without ddppo."""
