"""What holds for all tests.

DDPPO_TEST_ORDER=<seed> shuffles the files and the tests of each file, to show that none needs another before it.
"""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

import tests.composed_once  # noqa: F401
from tests.support import CHECKOUT

# Hydra looks for plugins once in a process, when something is composed: perhaps before a door adds ours.
sys.path += [str(folder) for folder in sorted((CHECKOUT / "ddppo").glob("*/_plugins"))]
# As in a shell in which this environment is active: commands that are printed begin with `python` (ddppo/package.py).
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
# Under nohup it is ignored, also by all that tests start, some of which is to end at it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The same examples on every machine, however slow; hypothesis keeps nothing in the checkout, which may be read-only.
hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any machine")
_hypothesis_home = tempfile.mkdtemp(prefix="ddppo-hypothesis-")
set_hypothesis_home_dir(_hypothesis_home)
atexit.register(shutil.rmtree, _hypothesis_home, ignore_errors=True)


# What takes a minute or more, longest first: begun last, one would keep a process busy when the others are done. Those
# that mostly wait (a cluster, hosts, a run that is disturbed) come before those that compute.
LONGEST = (
    "tests/slurm/",
    "tests/distributed/test_hosts.py",
    "tests/fault/test_chaos.py",
    "tests/serve/test_served_kills.py",
    "tests/serve/test_openenv_package.py",
    "tests/domains/cloud/test_cloud_endpoint.py",
    "tests/unit/test_bits.py",
    "tests/domains/circuits/test_circuits_at_any_width.py",
    "tests/distributed/test_cells.py",
    "tests/unit/test_new_project.py",
    "tests/unit/test_envs_batched.py",
    "tests/golden/test_golden_compiled.py",
    "tests/unit/test_compiled_step.py",
    "tests/study/test_device_check.py",
    "tests/study/test_fuzz.py",
    "tests/fault/test_nothing_is_lost.py",
    "tests/distributed/test_ordered.py",
    "tests/distributed/test_exact_resume.py",
    "tests/distributed/test_lost_ranks.py",
)
# Files whose tests take minutes together and share nothing that is set up: each test for itself, in any process.
APART = ("tests/fault/test_chaos.py", "tests/unit/test_new_project.py", "tests/unit/test_envs_batched.py")


SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().splitlines())  # by tests/slowest.py


@pytest.fixture(autouse=True)
def as_before():
    """Put back what the tests after this one in the process would find: the folder, and how processes are started."""
    folder, method = os.getcwd(), multiprocessing.get_start_method(allow_none=True)
    yield
    os.chdir(folder)
    if multiprocessing.get_start_method(allow_none=True) != method:
        multiprocessing.set_start_method(method, force=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave the collector out while nothing becomes garbage, and have it pass over all that is collected for good.

    It takes 1.6 CPU s here, and .4 s for each of its later rounds, as in every process forked from this one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m leaves out what is slow
def pytest_collection_modifyitems(items):
    """Mark what is not quick; have what takes longest begin first, the rest in the order of the folders or shuffled."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")
        quick = item.get_closest_marker("quick_cases")
        if quick is not None and item.callspec.id not in quick.args:
            item.add_marker("slow")

    if seed := os.environ.get("DDPPO_TEST_ORDER"):
        # A file's tests stay together: they share what the file sets up.
        drawn = random.Random(seed)
        files = {item.location[0]: drawn.random() for item in items}
        items.sort(key=lambda item: (files[item.location[0]], drawn.random()))
        return

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


def _last_words(run: str, worker: str) -> Path:
    return Path(tempfile.gettempdir()) / f"ddppo-tests-{run}-{worker}.txt"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Have a process of xdist write down where it is if it crashes, and before pytest ends a test of ten minutes."""
    given = getattr(item.config, "workerinput", None)
    if given is None:
        return (yield)
    path = _last_words(given["testrunuid"], given["workerid"])
    with path.open("w") as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(0.98 * (item.config.getoption("timeout") or 600), file=file)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.enable(sys.__stderr__)
            path.unlink()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, report, sched):
    """Say of a process that crashed how it ended, and where it was."""
    gateway = report.node.gateway
    code = gateway._io.popen.wait()
    path = _last_words(report.node.workerinput["testrunuid"], gateway.id)
    words = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    limit = ", which is how pytest ends one after its limit of a test" if code == 1 else ""
    how = f"signal {-code}" if code < 0 else f"exit code {code}{limit}"
    report.longrepr = f"{report.longrepr}: {how}\n{words}".rstrip()
