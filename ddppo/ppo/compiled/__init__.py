"""The learner's step compiled by torch, for models that ddppo/native does not know."""
