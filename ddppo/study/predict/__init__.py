"""FPS at W that nobody has run, how far to trust it, and which W to use."""
