"""Environments behind a socket, as those that ask for them see them."""
