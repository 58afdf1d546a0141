"""A task and a network of my own."""
