"""PPO in the order of an iteration: collector, advantages, minibatches, losses, learner."""
