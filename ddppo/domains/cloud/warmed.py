"""Imported by a process that environments fork from (CloudEnv.forked_from): they find a world and the tasks ready."""

from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.cloud.world import warm

own_tasks()
warm()
