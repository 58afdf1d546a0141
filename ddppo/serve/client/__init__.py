"""Environments behind a socket, as clients see them. The server is ddppo/serve."""
