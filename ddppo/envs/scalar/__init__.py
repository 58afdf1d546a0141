"""One environment: made from its settings, and wrapped for whoever steps it."""
