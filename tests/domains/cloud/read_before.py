"""Imported by a process that doors fork from: has it read the tasks of env=cloud for all (tests/support.py)."""

from ddppo.domains.cloud.tasks import own_tasks

own_tasks()
