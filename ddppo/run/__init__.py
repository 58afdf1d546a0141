"""One rank's life: the worker loop, timing, metrics, checkpoints, evaluation."""
