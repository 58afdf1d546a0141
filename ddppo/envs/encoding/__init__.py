"""Between a task and a model: spaces become specs, observations arrays, and a model's actions those of the task."""
