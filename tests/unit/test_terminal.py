"""Writing to a terminal, a pipe or a file that fails never raises."""

import os
import subprocess
import sys

import pytest

from ddppo.terminal import unbroken_streams
from tests.support import CHECKOUT

PROGRAM = """
import sys
from ddppo.terminal import unbroken_streams
with unbroken_streams():
    for _ in range(3):
        print("η² " * 9000)
    print("still here", file=sys.stderr)
"""


def program(stdout, **environ):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, env=os.environ | environ, stdout=stdout, stderr=subprocess.PIPE
    )  # fmt: skip


def test_a_pipe_that_nobody_reads_is_no_fault():
    read, write = os.pipe()
    os.close(read)
    result = program(write)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"still here\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the machine has no /dev/full")
def test_a_full_disk_behind_stdout_is_said_once():
    with open("/dev/full", "wb") as full:
        result = program(full)
    assert result.returncode == 0
    assert result.stderr.count(b"warning: standard output cannot be written (No space left on device)") == 1
    assert b"Traceback" not in result.stderr


def test_characters_that_the_encoding_lacks_become_question_marks():
    result = program(subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stdout.startswith(b"?? ")


def test_a_process_without_stdout_writes_into_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with unbroken_streams():
        print("nobody hears this")
        assert not sys.stdout.isatty()
    assert sys.stdout is None


def test_the_streams_come_back_and_inner_blocks_change_nothing():
    before = sys.stdout, sys.stderr
    with unbroken_streams():
        inside = sys.stdout
        with unbroken_streams():
            assert sys.stdout is inside
        assert sys.stdout is inside
    assert (sys.stdout, sys.stderr) == before
