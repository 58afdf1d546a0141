"""Imported by the process that environments are forked from (CloudEnv.forked_from): it loads a world and the tasks."""

from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.cloud.world import warm

own_tasks()
warm()
