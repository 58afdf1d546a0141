"""What a task is, learned before any process starts: whether it is there, its shapes, why it cannot be made."""
