"""What a rank does again and again: iterations, the step that they learn by, what environments tell one another."""
