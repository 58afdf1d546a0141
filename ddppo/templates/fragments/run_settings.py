"""The values of this run, for all roles: change them here. Every other setting is in config.yaml beside this file."""

from pathlib import Path

from ddppo.config.stored import load_config
from ddppo.scaling import BatchShape

CONFIG = load_config(Path(__file__).with_name("config.yaml"))
SEED = {{ seed }}
TOTAL_STEPS = {{ total_steps }}  # steps of all environments
T = {{ rollout_steps }}  # steps of an environment in one iteration
# The environments of each rank that steps some, by their numbers in the run. Number i has seeds and noise of its own.
ENVS = {{ envs }}
# {{ num_learning }} of {{ world_size }} ranks learn: all environments' T steps, in minibatches over all of these ranks.
SHAPE = {{ shape }}
