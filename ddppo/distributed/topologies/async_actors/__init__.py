"""async_actors: rank 0 learns, the other ranks act at their own pace; learner.py has the rules."""
