"""Learning from a rollout: epochs of minibatches, and the step on each."""
