"""PPO in the order of an iteration: rollout, collector, advantages, normalization, minibatches, losses, learner."""
