"""Small tasks of our own, which ddppo.envs.registration makes known to Gymnasium."""
