"""Acting in tasks of text: whole episodes, typed token by token."""

from ddppo.ppo.text.collector import TextCollector

__all__ = ["TextCollector"]
