"""The one table of metrics: every number that is written has its name, unit, reduction and source here.

`python -m ddppo.run.records.metrics` prints the table of docs/metrics.md.
"""

from ddppo.run.records.metrics.metric import (
    OF_TASK,
    OF_USER,
    SUCCESS_OF,
    Metric,
)
from ddppo.run.records.metrics.report import IterationReport
from ddppo.run.records.metrics.table import (
    GLOBAL_NAMES,
    METRICS,
    PER_RANK_NAMES,
    check_names,
    markdown,
    of_plugins,
)
from ddppo.run.records.metrics.timing import EXCLUSIVE_PARTS, OF_TOPOLOGIES, ROLES, TIME_NAMES, WAIT_NAMES

__all__ = [
    "EXCLUSIVE_PARTS",
    "GLOBAL_NAMES",
    "METRICS",
    "OF_TASK",
    "OF_TOPOLOGIES",
    "OF_USER",
    "PER_RANK_NAMES",
    "ROLES",
    "SUCCESS_OF",
    "TIME_NAMES",
    "WAIT_NAMES",
    "IterationReport",
    "Metric",
    "check_names",
    "markdown",
    "of_plugins",
]
