"""Processes that fork from a server: they are as if started by `python -m`, and nothing of them stays behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddppo.processes.forking import ForkServer, ForkServerLost, num_threads
from tests.support import CHECKOUT, PATIENCE_S, processes, title_of, wait_until, warm_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")
PROGRAM = "tests.unit.forked_program"


@pytest.fixture
def server():
    server = ForkServer.started()
    yield server
    server.close()


@pytest.fixture
def start(server, tmp_path):
    """Fork the program; returns its process and a function that reads what it wrote, on stdout and stderr."""

    def start_program(*arguments, title="a program of the test", stdin=os.devnull, **environ):
        names = [tmp_path / "out", tmp_path / "err"]
        with Path(stdin).open() as source, names[0].open("w") as out, names[1].open("w") as err:
            stdio = [source.fileno(), out.fileno(), err.fileno()]
            process = server.start(
                PROGRAM, arguments, os.environ | environ, title=title, cwd=str(CHECKOUT), stdio=stdio
            )
        return process, lambda: [name.read_text() for name in names]

    return start_program


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_fork_has_its_own_arguments_environment_folder_session_and_files(start, tmp_path):
    (tmp_path / "in").write_text("typed")
    process, wrote = start("say", stdin=tmp_path / "in", OF_THE_TEST="1")
    assert process.wait(PATIENCE_S) == 0
    found, stderr = json.loads(wrote()[0]), wrote()[1]
    assert found["argv"] == ["say"]
    assert found["main"] == PROGRAM  # what processes of its own import, as under `python -m`
    assert found["environ"] == os.environ | {"OF_THE_TEST": "1"}
    assert found["cwd"] == str(CHECKOUT)
    assert found["is_leader"]
    assert found["collects"]
    assert found["read"] == "typed"
    assert stderr == "on stderr\n"
    told = {str(tmp_path / name) for name in ("in", "out", "err")}
    files = {file for file in found["files"] if not file.startswith("/proc/")}
    assert told <= files <= {*told, os.devnull}  # the latter where the server had other files open


@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (["exit", "5"], 5, ""),
        (["exit", "a word"], 1, "a word\n"),
        (["raise"], 1, "ValueError: a fault of the test's\n"),
        (["die", "15"], -15, ""),
        (["die", "2"], -2, "KeyboardInterrupt\n"),
    ],
)
def test_a_fork_ends_as_a_program_does(start, arguments, code, stderr):
    process, wrote = start(*arguments)
    assert process.wait(PATIENCE_S) == code
    assert wrote()[1].endswith(stderr)


def test_a_fork_draws_other_numbers_than_the_one_before(server, start):
    server.have_imported(["numpy.random"])
    drawn = []
    for _ in range(2):
        process, wrote = start("draw")
        process.wait(PATIENCE_S)
        drawn.append(wrote()[0])
    assert drawn[0] != drawn[1]


def test_a_signal_reaches_the_fork_and_its_title_says_what_it_is(start):
    process, wrote = start("sleep", title="a sleeper of the test")
    wait_until(lambda: wrote()[0], "sleep")
    assert title_of(process.pid) == "a sleeper of the test"
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 7


def test_forks_end_with_a_killed_server_which_is_told(server, start):
    process, wrote = start("sleep")
    wait_until(lambda: wrote()[0], "sleep")
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ForkServerLost) as lost:
        process.wait(PATIENCE_S)
    assert lost.value.code == -signal.SIGKILL
    assert not is_alive(process.pid)
    assert not server.is_usable


def test_all_end_with_a_killed_owner(tmp_path):
    script = f"""
import os, time
from ddppo.processes.forking import ForkServer
server = ForkServer.forked()
print(server.pid, server.start({PROGRAM!r}, ["sleep"], os.environ, title="of the test").pid, flush=True)
time.sleep(3600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    ) as owner:
        pids = []
        while not pids:
            pids = [int(word) for word in owner.stdout.readline().split() if word.isdigit()]
        assert all(map(is_alive, pids))
        owner.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "end of the server and of its fork")


def test_a_server_that_is_closed_leaves_nothing(server, start):
    process, _ = start("sleep")
    server.close()
    assert not is_alive(process.pid)
    assert not is_alive(server.pid)
    assert not processes(f"ddppo.processes.forking for {os.getpid()} {server.pid}")


def test_no_server_is_forked_where_threads_run():
    script = """
import threading
import time
from ddppo.processes.forking import ForkServer, num_threads
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
print(ForkServer.forked())
end.set()
thread.join()
while num_threads() > 1:  # join returns a moment before the system's thread is gone
    time.sleep(.001)
server = ForkServer.forked()
print(server.is_usable)
server.close()
"""
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert told.stdout == "None\nTrue\n", told.stderr


def test_a_server_with_torch_in_it_has_one_thread():
    server = warm_server()
    process = server.start(PROGRAM, ["exit", "0"], os.environ, title="of the test", cwd=str(CHECKOUT))
    assert process.wait(PATIENCE_S) == 0
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1


def test_threads_are_counted():
    def is_one_more():
        before, end = num_threads(), threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        found = num_threads()
        end.set()
        thread.join()
        return found == before + 1

    wait_until(
        is_one_more, "count of one thread more"
    )  # threads that other tests left here may end meanwhile


# -- a server that still imports ---------------------------------------------------------------------------------------


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """Return a server in an import that never ends."""
    (tmp_path / "endless.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path)!r}, 'importing').touch()\ntime.sleep(3600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{CHECKOUT}")
    server = ForkServer.started()
    server.have_imported(["endless"])
    wait_until((tmp_path / "importing").exists, "import")
    yield server
    server.close()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_a_server_that_imports_ends_at_once_and_silently(importing, number, capfd):
    os.kill(importing.pid, number)
    with pytest.raises(ForkServerLost) as lost:
        importing.start(PROGRAM, ["exit", "0"], os.environ, title="of the test")
    assert lost.value.code == -number
    assert capfd.readouterr().err == ""


def test_a_server_whose_owner_is_gone_already_leaves():
    command = [sys.executable, "-m", "ddppo.processes.fork_server", "0", str(os.getppid())]
    left = subprocess.run(
        command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S
    )
    assert (left.returncode, left.stderr) == (1, b"")
