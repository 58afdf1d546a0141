"""Acting in tasks of text: whole episodes, typed token by token."""

from ddppo.ppo.text.collector import TextCollector
from ddppo.ppo.text.make import text_collector

__all__ = ["TextCollector", "text_collector"]
