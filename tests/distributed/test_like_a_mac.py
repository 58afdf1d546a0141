"""What works on macOS, tried on a macOS made of Linux (tests/mac/sitecustomize.py); and what Windows is told."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from ddppo.native.compiling import CPP
from ddppo.processes.machine import descendants
from ddppo.processes.signals import runs
from tests.support import CHECKOUT, TINY, Program, lines, run, started, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it takes from Linux what macOS lacks")
MAC = str(CHECKOUT / "tests" / "mac")
ENVIRON = {"PYTHONPATH": MAC, "CXX": "no-compiler"}  # the first run would compile C++ for half a minute
SMALL = (
    *TINY, "env=cartpole", "env.num_envs=4", "ppo.total_steps=256", "ppo.rollout_steps=32",
    "resume_state=approximate",
)  # fmt: skip
ENDLESS = ("ppo.total_steps=100_000_000", "dist.world_size=2")
REASON = "futexes are Linux's, and this is darwin"
COMPILER = shutil.which("clang++") or shutil.which("g++")
# As Apple's clang before 15 on arm64, which g++ and c++ are there too.
CLANG = """#!/bin/sh
for each; do
    shift
    case $each in
        -march=native) echo "clang: error: the clang compiler does not support '-march=native'" >&2; exit 1 ;;
        -fopenmp) echo "clang: error: unsupported option '-fopenmp'" >&2; exit 1 ;;
        -mcpu=native) touch {note}; each=-march=native ;;
    esac
    set -- "$@" "$each"
done
exec {compiler} "$@"
"""


def program(module, *arguments):
    return Program([sys.executable, "-m", module, *arguments])


def python(code, **environ):
    """Run lines of Python there; return what they print."""
    done = run(Program([sys.executable, "-c", textwrap.dedent(code)]), CHECKOUT, **ENVIRON | environ)
    assert done.code == 0, done.stderr
    return done.stdout.split()


@pytest.mark.quick_cases("pool")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["env.backend=pool", "env.num_workers=2"], id="pool"),
        pytest.param(["dist.world_size=2", "distributed=central_inference"], id="central_inference"),
        pytest.param(["dist.world_size=2", "distributed=async_actors"], id="async_actors"),
    ],
)
def test_training_works(settings, tmp_path):
    command = program("ddppo.train", *SMALL, *settings, f"hydra.run.dir={tmp_path}")
    done = run(command, tmp_path, **ENVIRON)
    assert done.code == 0, done.stderr
    assert lines(tmp_path)[-1]["env_steps"] >= 256
    assert "Traceback" not in done.stderr
    of_gloo = [line for line in done.stderr.splitlines() if "uses gloo" in line]
    has_group = "dist.world_size=2" in settings and "distributed=async_actors" not in settings
    assert len(of_gloo) == has_group
    assert all(
        line.endswith(f": {REASON} (rank 0); dist.collective=gloo avoids this warning") for line in of_gloo
    )


@pytest.mark.slow
def test_a_sweep_over_1_and_2_ranks_learns_the_same_and_is_reported(tmp_path):
    settings = ["dist.world_size=1,2", "dist.collective=gloo", "dist.reduction=ordered", "dist.shards=4"]
    command = program("ddppo.train", "-m", *SMALL, *settings, f"sweep={tmp_path / 'sweep'}")
    done = run(command, tmp_path, **ENVIRON)
    assert done.code == 0, done.stderr
    one, two = (lines(path.parent) for path in sorted(tmp_path.glob("sweep/*/metrics.jsonl")))
    assert [line["train/policy_loss"] for line in one] == [line["train/policy_loss"] for line in two[::2]]
    report = run(program("ddppo.report", str(tmp_path / "sweep")), tmp_path, **ENVIRON)
    assert report.code == 0, report.stderr
    assert (tmp_path / "sweep" / "report" / "report.html").is_file()


@pytest.mark.slow
def test_all_processes_of_a_run_end_with_the_one_that_was_started_when_it_is_killed(tmp_path):
    settings = (*SMALL, *ENDLESS, "env.backend=pool", "env.num_workers=2", f"hydra.run.dir={tmp_path}")
    with started(program("ddppo.train", *settings), **ENVIRON) as process:
        wait_until(lambda: lines(tmp_path), "first iteration")
        pids = descendants(process.pid)
        assert len(pids) == 9  # a server of 2 ranks, with a server of 2 processes each
        process.kill()
        wait_until(lambda: not any(map(runs, pids)), "end of all", 10)


@pytest.mark.slow
def test_a_killed_rank_is_noticed_and_named(tmp_path):
    command = program("ddppo.train", *SMALL, *ENDLESS, f"hydra.run.dir={tmp_path}")
    with started(command, **ENVIRON) as process:
        wait_until(lambda: lines(tmp_path), "first iteration")
        (server,) = [pid for pid in descendants(process.pid) if len(descendants(pid)) == 2]
        os.kill(max(descendants(server)), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "of 2 ended with signal 9 and the others were stopped" in stderr


def test_a_process_ends_soon_after_its_parent_was_killed():
    inner = """
        import os, sys
        from ddppo.processes.signals import die_with_parent
        die_with_parent()
        print(os.getpid(), flush=True)
        sys.stdin.read()
    """
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {textwrap.dedent(inner)!r}])"
    reading, writing = os.pipe()
    with (
        open(reading) as kept, open(writing, "w"),
        subprocess.Popen(
            [sys.executable, "-c", outer], env=os.environ | ENVIRON, cwd=CHECKOUT, stdin=kept,
            stdout=subprocess.PIPE, text=True,
        ) as parent,
    ):  # fmt: skip
        child = int(parent.stdout.readline())
        parent.kill()
        wait_until(lambda: not runs(child), "end of the child", 10)


def test_memory_has_no_name_that_lasts_and_a_size_that_is_set_once():
    code = """
        import mmap, os
        from ddppo.processes.machine import unnamed_file
        assert not hasattr(os, "memfd_create")
        file = unnamed_file(10_000)
        memories = [mmap.mmap(file, 10_000), mmap.mmap(file, 10_000)]
        memories[0][9_999] = 7
        print(memories[1][9_999], os.fstat(file).st_nlink)
    """
    assert python(code) == ["7", "0"]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_a_compiler_that_knows_mcpu_and_no_march_compiles_for_this_processor(tmp_path):
    for name in CPP.language.compilers:
        (tmp_path / name).write_text(CLANG.format(compiler=COMPILER, note=tmp_path / "taken"))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "small.cpp").write_text('extern "C" int answer() { return 42; }')
    code = f"""
        from pathlib import Path
        from ddppo.native.compiling import CPP, Library
        source = Path({str(tmp_path / "small.cpp")!r})
        small = Library("small", [source], [source], CPP.flags, CPP.language, machine_flags=CPP._machine_flags)
        print(small.why_not() or small.load().answer())
    """
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    assert python(code, **environ) == ["42"]
    assert (tmp_path / "taken").exists()


@pytest.mark.slow
def test_shared_memory_between_ranks_is_refused_in_a_sentence(tmp_path):
    settings = ("dist.world_size=2", "dist.collective=shm", f"hydra.run.dir={tmp_path}")
    done = run(program("ddppo.train", *SMALL, *settings), tmp_path, **ENVIRON)
    assert done.code == 2
    said = f"error: dist.collective=shm needs its compiled part: {REASON}; use dist.collective=gloo\n"
    assert done.stderr == said


@pytest.mark.parametrize(
    "module", ["ddppo.train", "ddppo.report", "ddppo.serve", "ddppo.domains.circuits", "ddppo.new"]
)
def test_windows_is_told_in_one_sentence(module, tmp_path):
    pytest.importorskip(module.removesuffix(".train"), reason=f"{module} is not there")
    done = run(program(module, "--help"), tmp_path, PYTHONPATH=MAC, LIKE_A_SYSTEM="win32")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == "error: ddppo needs Linux or macOS (on Windows: WSL 2)\n"
