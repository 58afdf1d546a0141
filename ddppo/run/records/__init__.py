"""What rank 0 writes and shows of a run, and the one table of what every number means."""
