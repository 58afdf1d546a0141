"""A policy as a file that acts the same in programs without ddppo: portable (the network), files, check, command."""
