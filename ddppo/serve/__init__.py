"""Environments behind a socket: a pool of slots, each a process of its own, and the server that lends them."""
