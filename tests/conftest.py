"""What holds for all tests."""

import signal
import sys
from pathlib import Path

import pytest

import tests.composed_once  # noqa: F401
from tests.support import CHECKOUT

# Hydra looks for plugins once in a process, when something is composed: perhaps before a door adds ours.
sys.path.append(str(CHECKOUT / "ddppo" / "_plugins"))
# Under nohup it is ignored, also by all that tests start, some of which is to end at it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What takes a minute or more, longest first: begun last, one would keep a process busy when the others are done. Those
# that mostly wait (a cluster, hosts, a run that is disturbed) come before those that compute.
LONGEST = (
    "tests/slurm/",
    "tests/distributed/test_hosts.py",
    "tests/fault/test_chaos.py",
    "tests/unit/test_new_project.py",
    "tests/unit/test_envs_batched.py",
    "tests/golden/test_golden_compiled.py",
    "tests/fault/test_nothing_is_lost.py",
    "tests/distributed/test_ordered.py",
    "tests/distributed/test_exact_resume.py",
    "tests/distributed/test_lost_ranks.py",
)
# Files whose tests take minutes together and share nothing that is set up: each test for itself, in any process.
APART = ("tests/fault/test_chaos.py", "tests/unit/test_new_project.py", "tests/unit/test_envs_batched.py")


SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().splitlines())  # by tests/slowest.py


@pytest.hookimpl(tryfirst=True)  # before -m leaves out what is slow
def pytest_collection_modifyitems(items):
    """Have what takes longest begin first, the rest in the order of the folders; mark what is not quick."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")
        quick = item.get_closest_marker("quick_cases")
        if quick is not None and item.callspec.id not in quick.args:
            item.add_marker("slow")

    def place(item):
        long = (number for number, start in enumerate(LONGEST) if item.nodeid.startswith(start))
        return next(long, len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have a file's tests, which share what it sets up, run in one process, and so all that share SLURM's cluster."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            if nodeid.startswith(APART):
                return nodeid
            return "tests/slurm" if nodeid.startswith("tests/slurm/") else super()._split_scope(nodeid)

    return ByFile(config, log)
