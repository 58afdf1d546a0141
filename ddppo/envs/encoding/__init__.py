"""What a task observes and takes, in arrays: spaces become specs, observations rows, actions the task's own."""
