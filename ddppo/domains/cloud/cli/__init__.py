"""Command lines as the AWS CLI reads them, without a shell, files or processes."""

from ddppo.domains.cloud.cli.command import Call, Objects, parse
from ddppo.domains.cloud.cli.words import CommandError

__all__ = ["Call", "CommandError", "Objects", "parse"]
