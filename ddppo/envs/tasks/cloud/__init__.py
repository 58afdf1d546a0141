"""`ddppo/Cloud-v0`: tasks in a simulated cloud, one command line a step (docs/cloud_tasks.md)."""

from ddppo.envs.tasks.cloud.env import CloudEnv
from ddppo.envs.tasks.cloud.task import Task, load, own_tasks
from ddppo.envs.tasks.cloud.world import World, warm

__all__ = ["CloudEnv", "Task", "World", "load", "own_tasks", "warm"]
