"""What a metric is, and the words that the table's rows share."""

from dataclasses import dataclass

PER_RANK = "per rank"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of an iteration. `reduction` says how the ranks' values became one, or that they did not.

    on_line: what the progress line calls it, with its value as a whole number; "" where it is not there.
    """

    name: str
    unit: str
    reduction: str
    meaning: str
    source: str
    on_line: str = ""


# Reductions and sources of several.
TIME = "docs/metrics.md, Time"
TOPOLOGY = "docs/topologies.md"
PPO = "PPO, arXiv:1707.06347"
DDPPO = "DD-PPO, arXiv:1911.00357"
GRPO = "GRPO, arXiv:2402.03300"
SAMPLES = "mean by count"
EPISODES = "over all episodes"
GREEDY = "deterministic evaluation"

# What names begin with.
SUCCESS_OF = "eval/success_rate_"  # and the name of a tier
OF_LOSSES = "loss/"  # and the name of one of ppo.losses
OF_USER = "user/"  # and what one of log.metrics calls its own
OF_TASK = "task/"  # listed by a task's journal (ddppo/run/records/recorder.py)
