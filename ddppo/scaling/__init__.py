"""How the batch depends on the number of workers."""
