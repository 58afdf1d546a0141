"""Limits of the system, closed files, odd users and file systems: a run works, or says what is missing."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddppo import native
from ddppo.errors import StorageError
from ddppo.processes import limits
from tests.support import CHECKOUT, Program, descendants, run, started, summary, wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux's")
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
SMALL = (
    "env=cartpole", "env.num_envs=4", "ppo.rollout_steps=8", "ppo.num_epochs=1", "ppo.num_minibatches=1",
    "ppo.total_steps=128", "checkpoint.every_steps=64", "eval.final_episodes=0", "log.progress=none",
    "log.tensorboard=false",
)  # fmt: skip
W2 = ("dist.world_size=2",)


@pytest.fixture
def under(tmp_path):
    """Train under circumstances of tests/fault/circumstances.py; returns what came of it."""

    def train_under(*circumstances, settings=()):
        run_dir = tmp_path / "run"
        goes_on = any(setting.startswith("resume=") for setting in settings)
        given = settings if goes_on else (*SMALL, *settings, f"hydra.run.dir={run_dir}")
        return run([sys.executable, "-m", "tests.fault.circumstances", *circumstances, *given], run_dir)

    return train_under


def is_one_sentence(result, code, *words):
    """Whether a command ended with this code and said so in one line, without a traceback."""
    assert result.code == code, result.stderr
    assert "Traceback" not in result.stderr
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    for word in words:
        assert word in said
    return True


# -- the process that ranks fork from ---------------------------------------------------------------------------------


@linux
def test_a_file_that_was_inherited_above_the_limit_is_closed(under):
    result = under("inherited=200", "files=100", settings=W2)
    assert (result.code, result.stderr) == (0, "")


@linux
def test_a_fault_of_the_fork_server_is_told_in_words_and_is_no_lost_rank(under):
    result = under("server_fault=_fork", settings=(*W2, "dist.on_lost=restart"))
    assert is_one_sentence(
        result,
        1,
        "the process that the 2 ranks were forked from failed: ZeroDivisionError: a fault of the test's, in fail",
    )
    assert "restart 1" not in result.stderr
    assert not (result.run_dir / "restarts.jsonl").exists()


@linux
def test_a_fork_server_that_fails_as_it_begins_is_told_of_and_another_takes_its_place(under):
    result = under("server_fault=_let_go_of_files", settings=W2)
    assert result.code == 0
    said = "warning: the process that ranks are forked from failed: ZeroDivisionError: a fault of the test's, in fail"
    assert result.stderr.startswith(said)
    assert result.stderr.endswith("another one is started, which takes longer\n")


# -- limits -----------------------------------------------------------------------------------------------------------


@linux
def test_a_soft_limit_of_open_files_is_raised_by_the_command_itself(under):
    result = under("soft_files=12", settings=(*W2, "env.backend=pool", "env.num_workers=2"))
    assert (result.code, result.stderr) == (0, "")


@linux
@pytest.mark.parametrize(
    ("circumstance", "settings", "code", "said"),
    [
        ("files=8", W2, 2, "the limit of open files, 8 (ulimit -n), is too low: raise it, e.g. ulimit -n 1024"),
        ("addresses=500", (), 2, "the limit of address space, 512,000 KB (ulimit -v), is too low"),
        ("file_size=1", W2, 1, "File too large: the limit of a file's size, 1 KB (ulimit -f), is reached"),
        pytest.param(
            "processes=1", W2, 1,
            "the limit of processes and threads of this user, 1 (ulimit -u), is reached: raise it, e.g. ulimit -u 4096",
            marks=root,
        ),
    ],
)  # fmt: skip
def test_a_limit_that_is_met_is_named_with_its_number_and_what_raises_it(
    under, circumstance, settings, code, said
):
    assert is_one_sentence(under(circumstance, settings=settings), code, said)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("most", [12, 16, 20, 24, 32])
@pytest.mark.parametrize("settings", [W2, (*W2, "env.backend=pool", "env.num_workers=2")])
def test_with_any_number_of_open_files_a_run_completes_or_names_the_limit(under, most, settings):
    result = under(f"files={most}", settings=settings)
    assert "Traceback" not in result.stderr
    if result.code:
        assert f"the limit of open files, {most} (ulimit -n)" in result.stderr


@pytest.mark.parametrize(
    ("error", "limit", "words"),
    [
        (OSError(24, "Too many open files"), resource.RLIMIT_NOFILE, "open files, 77 (ulimit -n)"),
        (RuntimeError("bind failed: too many open files"), resource.RLIMIT_NOFILE, "open files, 77 (ulimit -n)"),
        (OSError(27, "File too large"), resource.RLIMIT_FSIZE, "a file's size, 77 KB (ulimit -f)"),
        (MemoryError(), resource.RLIMIT_AS, "address space, 77 KB (ulimit -v)"),
        (RuntimeError("can't start new thread"), resource.RLIMIT_AS, "address space, 77 KB (ulimit -v)"),
        (BlockingIOError(11, "again"), resource.RLIMIT_NPROC, "processes and threads of this user, 77 (ulimit -u)"),
        (ImportError("x.so: failed to map segment from shared object"), resource.RLIMIT_AS, "address space, 77 KB"),
    ],
)  # fmt: skip
def test_an_error_names_the_limit_behind_it(monkeypatch, error, limit, words):
    unit = 1024 if "KB" in words else 1
    has = {limit: 77 * unit}
    monkeypatch.setattr(resource, "getrlimit", lambda what: (has.get(what, resource.RLIM_INFINITY),) * 2)
    monkeypatch.setattr(limits, "control_groups", lambda *args: iter(()))
    outer = ValueError("an outer one")
    outer.__cause__ = error
    assert f"the limit of {words}" in limits.met(outer)
    has.clear()
    assert limits.met(outer) is None


def test_limits_of_control_groups_are_named(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000000000\n")
    (group.parent / "memory.max").write_text("max\n")
    assert limits.memory_limit(tmp_path) == 1e9
    (group / "pids.max").write_text("100\n")
    folders = limits.control_groups(tmp_path, "pids")
    monkeypatch.setattr(limits, "control_groups", lambda *args: folders)
    assert "the limit of processes and threads of the control group, 100 (pids.max)" in limits.met(
        OSError(11, "x")
    )


def test_a_control_group_with_too_little_memory_is_warned_of_before_it_ends_a_run(monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda: 300e6)
    assert limits.little_memory(1) is None
    said = limits.little_memory(2)
    assert said.startswith("the control group of this process leaves it 300 MB of memory, and a run of")
    assert "dist.world_size=2 takes 400 MB or more" in said


def test_signal_9_hints_at_memory_and_names_the_limit_of_the_control_group(monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda: 1e9)
    said = "Signal 9 is often the system's answer to too little memory (this process may use 1.0 GB of it, by its"
    assert limits.after(-signal.SIGKILL).startswith(said)
    assert "df /dev/shm" in limits.after(-signal.SIGBUS)
    assert limits.after(1) == limits.after(-signal.SIGTERM) == ""


def test_a_rank_that_the_system_killed_is_told_with_what_may_be_behind_it(under):
    result = under(settings=(*W2, "env.id=tests.fault.saboteurs:Dies-v0", "ppo.total_steps=1280"))
    assert result.code == 1
    assert (
        "rank 1 of 2 ended with signal 9 and the others were stopped. Signal 9 is often the" in result.stderr
    )


# -- files that are closed, users without a name, terminals -----------------------------------------------------------


@pytest.mark.parametrize("numbers", [(1,), (0, 1, 2)])
def test_a_run_whose_standard_files_are_closed_completes(under, numbers):
    result = under(*(f"closed={number}" for number in numbers), settings=W2)
    assert result.code == 0, result.stderr
    assert summary(result.run_dir)["status"] == "completed"


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "environ",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "xx_YY.UTF-9", "TERM": "nonsense", "COLUMNS": "x", "LINES": "-3"},
        {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7", "TMPDIR": "/nowhere"},
        {"PYTHONWARNINGS": "error", "PYTHONSAFEPATH": "1"},
    ],
    ids=["no locale", "unknown locale and terminal", "no asserts, no TMPDIR", "warnings are errors"],
)
def test_an_odd_environment_changes_nothing(tmp_path, environ):
    run_dir = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        *SMALL,
        "log.progress=rich",
        *W2,
        f"hydra.run.dir={run_dir}",
    ]
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    bare = ["env", "-i", *(f"{name}={value}" for name, value in (known | environ).items())]
    result = run(Program([*bare, f"PYTHONPATH={CHECKOUT}", *command]), run_dir)
    assert (result.code, result.stderr) == (0, "")


def allowed(*command):
    """Return a command, or skip the test where this user or machine may not do what it begins with."""
    if shutil.which(command[0]) is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"{command[0]} is not allowed here")
    return list(command)


@linux
@pytest.mark.slow
def test_a_user_without_a_home_a_name_or_a_cache_trains(tmp_path):
    """It compiles in the temporary folder. The user may read everything, wherever Python and the checkout are."""
    reads = "+dac_read_search"
    user = allowed(
        "setpriv",
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        f"--inh-caps={reads}",
        f"--ambient-caps={reads}",
    )
    folder = Path(tempfile.mkdtemp())  # all folders above it can be entered
    try:
        folder.chmod(0o777)
        run_dir = folder / "run"
        train = [sys.executable, "-m", "ddppo.train", *SMALL, *W2, f"hydra.run.dir={run_dir}"]
        bare = ["env", "-i", f"PATH={os.environ['PATH']}", f"TMPDIR={folder}", f"PYTHONPATH={CHECKOUT}"]
        result = run(Program([*user, *bare, *train]), run_dir)
        assert (result.code, result.stderr) == (0, "")
        assert list((folder / "ddppo-54321").glob("native_*.so")) or native.why_not()
    finally:
        shutil.rmtree(folder)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("option", ["size=64k", "ro"])
def test_a_dev_shm_that_holds_nothing_suffices(tmp_path, option):
    own_mounts = allowed("unshare", "--mount")
    mounted = f'mount -t tmpfs -o {option} tmpfs /dev/shm && exec "$@"'
    run_dir = tmp_path / "run"
    settings = (*SMALL, *W2, "env.backend=pool", "env.num_workers=2", f"hydra.run.dir={run_dir}")
    train = [sys.executable, "-m", "ddppo.train", *settings]
    result = run(Program([*own_mounts, "sh", "-c", mounted, "sh", *train]), run_dir)
    assert (result.code, result.stderr) == (0, "")


# -- Ctrl-C before there is a run -------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("module", ["omegaconf", "hydra.core", "ddppo.launch.resuming"])
def test_ctrl_c_while_a_run_starts_leaves_no_traceback_and_nothing_behind(tmp_path, module):
    run_dir, mark = tmp_path / "run", tmp_path / "importing"
    (tmp_path / "sitecustomize.py").write_text(
        f"import pathlib, sys, time\nclass Slow:\n def find_spec(self, name, path, target=None):\n"
        f"  if name == {module!r} and not pathlib.Path({str(mark)!r}).exists():\n"
        f"   pathlib.Path({str(mark)!r}).touch(); time.sleep(60)\nsys.meta_path.insert(0, Slow())\n"
    )
    command = Program(
        [sys.executable, "-m", "ddppo.train", *SMALL, *W2, "resume=auto", f"hydra.run.dir={run_dir}"]
    )
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    with started(command, **environ) as process:
        wait_until(mark.exists, f"import of {module}")
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)  # 130 to a shell
    assert stderr in ("", "interrupted before the run began\n")
    assert not descendants(str(run_dir))
    assert not run_dir.exists()


# -- file systems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("fcntl.flock:ENOLCK", "the file system has no locks (No locks available): nothing keeps a second command out"),
        ("os.fsync:EINVAL", "the file system cannot say when a file is on its disk (fsync: Invalid argument)"),
        ("os.link:EPERM", None),
    ],
)  # fmt: skip
def test_a_file_system_without_locks_fsync_or_links_is_worked_on_with_a_warning(under, refused, said):
    result = under(f"refused={refused}")
    assert result.code == 0, result.stderr
    assert all(line.startswith("warning: ") for line in result.stderr.splitlines())
    assert said is None or said in result.stderr
    assert summary(result.run_dir)["status"] == "completed"


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            "os.replace:EXDEV",
            "cannot be written: Invalid cross-device link: the file system cannot rename, by which files appear whole",
        ),
        ("os.fsync:EDQUOT", "cannot be written: Disk quota exceeded"),
    ],
)
def test_a_file_system_without_rename_or_room_is_told_in_a_sentence(under, refused, said):
    assert is_one_sentence(under(f"refused={refused}"), 1, said)


def test_a_file_beyond_the_limit_says_so_by_name(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (10 << 10, 10 << 10))
    said = str(StorageError.of("a.pt", OSError(27, "File too large")))
    assert said.startswith(
        "a.pt cannot be written: File too large: the limit of a file's size, 10 KB (ulimit -f)"
    )


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_under_another_torch_says_that_bits_may_differ(under, tmp_path):
    assert under("made_by=2.6.0").code == 0
    resumed = (f"resume={tmp_path / 'run'}", "ppo.total_steps=256")
    result = under(settings=resumed)
    assert result.code == 0
    found = re.search(r"its checkpoint was made by (.*), and this is (.*): the run goes on", result.stderr)
    assert found[1].startswith("torch 2.6.0")
    assert "torch" in found[2]
    assert "made by" not in under(settings=(resumed[0], "ppo.total_steps=384")).stderr
