"""Acting in tasks of text: whole episodes, typed token by token."""

from ddppo.domains.text.acting.collector import TextCollector
from ddppo.domains.text.acting.make import text_collector

__all__ = ["TextCollector", "text_collector"]
