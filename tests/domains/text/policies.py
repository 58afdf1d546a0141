"""A policy of text with a collector of its own, which acts in environments of its own rank only."""

from ddppo.domains.text.settings import TokenPolicySettings
from ddppo.domains.text.token_policy import TokenPolicy


class OwnCollector:
    @staticmethod
    def check(config, shape):
        pass

    @staticmethod
    def make(context):
        raise AssertionError("no rank starts")


class KeepsToItsRank(TokenPolicy):
    Settings = TokenPolicySettings
    collector_class = "tests.domains.text.policies:OwnCollector"
