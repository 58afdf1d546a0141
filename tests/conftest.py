"""What holds for all tests."""

import signal
import sys

import pytest
from hydra._internal.hydra import Hydra

from tests.support import CHECKOUT

# Hydra looks for plugins once in a process, when something is composed: perhaps before a door adds ours.
sys.path.append(str(CHECKOUT / "ddppo" / "_plugins"))
# Under nohup it is ignored, also by all that tests start, some of which is to end at it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have a file's tests, which share what it sets up, run in one process, and so all that share SLURM's cluster."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "tests/slurm" if nodeid.startswith("tests/slurm/") else super()._split_scope(nodeid)

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def composed_once(monkeypatch):
    """Have doors that are called in this process compose their configuration once.

    Hydra does it twice, at first only to see whether hydra.mode is set, which but a command line does here. It is most
    of what hundreds of wrong command lines take. Doors in processes of their own do as Hydra does.
    """
    get_mode = Hydra.get_mode

    def mode_of(self, config_name, overrides):
        return get_mode(self, config_name, overrides) if "hydra.mode" in " ".join(overrides) else None

    monkeypatch.setattr(Hydra, "get_mode", mode_of)
