"""Environments: the contract (vec_env), batches that keep it, tasks of our own. Knows numpy, not torch."""

from ddppo.envs import tasks  # noqa: F401 (registers ddppo/Synthetic-v0, ddppo/Circuit-v0 and others)
from ddppo.envs.make import make_eval_env, make_vec_env, settled
from ddppo.envs.probing.probe import make_env, probe
from ddppo.envs.vec_env import ActionSpec, EnvNames, EnvSpec, EnvStep, ObsArrays, VecEnv

__all__ = [
    "ActionSpec",
    "EnvNames",
    "EnvSpec",
    "EnvStep",
    "ObsArrays",
    "VecEnv",
    "make_env",
    "make_eval_env",
    "make_vec_env",
    "probe",
    "settled",
]
