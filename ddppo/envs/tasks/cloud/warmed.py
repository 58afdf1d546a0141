"""Imported by a process that environments fork from (CloudEnv.forked_from): they find a world and the tasks ready."""

from ddppo.envs.tasks.cloud.task import own_tasks
from ddppo.envs.tasks.cloud.world import warm

own_tasks()
warm()
