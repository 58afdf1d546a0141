"""Command lines as the AWS CLI reads them, without a shell, files or processes."""

from ddppo.envs.tasks.cloud.cli.command import Call, Objects, parse
from ddppo.envs.tasks.cloud.cli.words import CommandError

__all__ = ["Call", "CommandError", "Objects", "parse"]
