"""A rollout of environments on an accelerator stays there: the host waits once, at its end."""

import pytest

from tests.device import rollout_checks
from tests.device.support import called_on_standin


@pytest.mark.parametrize("settings", [{}, {"normalized": True}, {"memory": "gru", "memory_size": 8}])
def test_a_rollout_copies_once_to_the_host_and_equals_that_of_the_cpu(settings):
    apart, has_same_episodes, waits = called_on_standin(rollout_checks.compared_rollouts, settings)
    assert apart < 1e-5
    assert has_same_episodes
    # One copy in each of the two rollouts, of rewards, flags and metrics together.
    assert waits == 2 * ["_to_copy ddppo/ppo/device_collector.py"]
