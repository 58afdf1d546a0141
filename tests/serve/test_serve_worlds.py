"""A world has what it needs and no more, and nothing of it stays: no process in whatever session, no folder."""

import json
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("msgpack", reason="needs the extra serve: pip install '.[serve]'")
if sys.platform != "linux":
    pytest.skip("prctl and /proc are Linux's", allow_module_level=True)

from ddppo.config.settings import EnvConfig
from ddppo.errors import ConfigError
from ddppo.serve.limits import Confinement
from ddppo.serve.protocol import MSGPACK, BadMessage, decoded, encoded, info_of
from ddppo.serve.slots.line import framed, read_frame
from ddppo.serve.slots.pool import SlotPool
from ddppo.spaces import ArraySpec
from tests.serve.served_tasks import DAEMONISE, EXIT, MARK, TELL
from tests.serve.test_serve_slots import SPEC, WORLD, act, ask, runs
from tests.support import CHECKOUT, PATIENCE_S, wait_until


@pytest.fixture
def pool_of(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    made = []

    def make(size=1, **settings):
        pool = SlotPool(WORLD, SPEC, size, **settings)
        made.append(pool)
        pool.wait_until_ready(PATIENCE_S)
        return pool

    yield make
    for pool in made:
        pool.close()


def told(slot):
    ask(slot, op="reset")
    said = ask(slot, op="step", action=TELL)["error"]["message"]
    assert "{" in said, said
    return json.loads(said[said.index("{") :])


def daemon_of(slot):
    child = int(act(slot, DAEMONISE)[1])
    assert runs(child)
    return child


def test_a_world_sees_the_variables_that_programs_need_and_those_that_are_kept_for_it(pool_of, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the server")
    monkeypatch.setenv("KEPT_ONE", "1")
    found = told(pool_of(keep_env=("KEPT_*",)).acquire())
    needed = {"HOME", "TMPDIR", "PATH", "KEPT_ONE"}
    assert needed <= set(found["variables"]) <= needed | {
        "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ", *(name for name in os.environ if name.startswith("LC_")),
        *(name for name in os.environ if name.endswith("_NUM_THREADS")),
    }  # fmt: skip


def test_a_world_may_open_and_write_so_much(pool_of):
    found = told(pool_of(confinement=Confinement(max_files=40, max_file_mb=1)).acquire())
    assert found["refused"]["files"] == "Too many open files"
    assert found["refused"]["a large file"] == "File too large"
    assert found["core"] == [0, 0]
    assert found["no new privileges"]


def test_a_world_that_takes_too_much_memory_is_refused_it(pool_of):
    pool = pool_of(confinement=Confinement(max_memory_mb=4096))
    limits = Path(f"/proc/{pool.acquire().process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert line.split()[3] == str(2**32)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a process another user's")
@pytest.mark.skipif(
    not all(folder.stat().st_mode & stat.S_IXOTH for folder in (CHECKOUT, *CHECKOUT.parents)),
    reason=f"other users cannot enter {CHECKOUT}",
)
def test_worlds_of_users_of_their_own_reach_neither_one_another_nor_the_server(pool_of, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")  # the test's own folder is root's alone
    pool = pool_of(2, confinement=Confinement(first_uid=54321))
    slots = [pool.acquire(), pool.acquire()]
    found = [told(slot) for slot in slots]
    assert [each["user"] for each in found] == [54321 + slot.index for slot in slots]
    refused = {"killing its parent", "its parent's variables", "another's folder", "another user"}
    assert all(refused <= each["refused"].keys() for each in found)
    pids = [slot.process.pid for slot in slots] + [daemon_of(slots[0])]
    pool.close()
    wait_until(lambda: not any(map(runs, pids)))


def test_worlds_of_other_users_need_a_folder_that_these_reach(pool_of, tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match=f"first_uid=54321: .* cannot enter {tmp_path}: set TMPDIR"):
        pool_of(confinement=Confinement(first_uid=54321))


def test_the_folder_of_a_world_is_its_own_and_goes_with_it(pool_of, tmp_path):
    pool = pool_of(2)
    one, other = pool.acquire(), pool.acquire()
    folders = [told(slot)["folders"] for slot in (one, other)]
    assert all(len(set(each)) == 1 for each in folders)
    mine, others = (Path(each[0]) for each in folders)
    assert mine != others
    assert mine.stat().st_mode & 0o777 == 0o700
    assert (mine / "left").exists()
    pool.release(one)
    wait_until(lambda: not mine.exists())
    assert (others / "left").exists()
    pool.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", ["released", "killed", "ended"])
def test_what_a_world_started_in_a_session_of_its_own_ends_with_it(pool_of, way):
    pool = pool_of(2)
    slot, other = pool.acquire(), pool.acquire()
    child, of_other = daemon_of(slot), daemon_of(other)
    if way == "killed":
        os.kill(slot.process.pid, signal.SIGKILL)
    elif way == "ended":
        slot.line.sendall(framed(b"j", json.dumps({"id": 1, "op": "step", "action": EXIT}).encode()))
    pool.release(slot)
    wait_until(lambda: not runs(child))
    assert runs(of_other)
    wait_until(lambda: pool.num_orphans == 1)
    assert act(pool.acquire(PATIENCE_S), MARK)[0] == 1


def test_a_closed_pool_leaves_no_process_of_any_session(pool_of):
    pool = pool_of(1)
    child = daemon_of(pool.acquire())
    pool.close()
    assert not runs(child)


def test_a_killed_server_leaves_neither_process_nor_folder(tmp_path):
    program = (
        "import test_serve_worlds as t; pool = t.SlotPool(t.WORLD, t.SPEC, 1); pool.wait_until_ready(t.PATIENCE_S)\n"
        "slot = pool.acquire(); print(slot.process.pid, t.daemon_of(slot), flush=True); t.signal.pause()"
    )
    paths = os.pathsep.join(map(str, (CHECKOUT, *filter(None, sys.path))))
    environ = os.environ | {"PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ
    ) as server:
        pids = server.stdout.readline().split()
        assert len(pids) == 2
        assert list(tmp_path.iterdir())
        server.kill()
    wait_until(lambda: not any(map(runs, pids)) and not list(tmp_path.iterdir()))


def test_an_environment_is_made_where_the_server_was_started(tmp_path, monkeypatch):
    (tmp_path / "started").mkdir()
    monkeypatch.chdir(tmp_path / "started")
    Path("sizes").write_text("2")
    env = EnvConfig(id=WORLD.id, kwargs={"size": "sizes"})
    spec = replace(SPEC, obs=ArraySpec((5,), "float64"))
    pool = SlotPool(env, spec, 1)
    try:
        pool.wait_until_ready(PATIENCE_S)
    finally:
        pool.close()


def test_an_info_that_messagepack_cannot_hold_harms_nobody(pool_of):
    slot = pool_of().acquire()
    slot.line.sendall(framed(MSGPACK, encoded(MSGPACK, {"id": 1, "op": "reset", "options": {"huge": True}})))
    kind, content = read_frame(slot.line)
    assert kind == MSGPACK
    assert decoded(MSGPACK, content)["info"] == {"marks": 0}


@pytest.mark.parametrize("parts", [3.0, {"right": "much"}, {1: 1.0}, [1.0], None])
def test_parts_of_a_reward_from_a_server_are_numbers_by_names(parts):
    assert info_of({"reward_parts": {"right": 1.0, "nan": math.nan}, "x": None})
    with pytest.raises(BadMessage, match=r"info.reward_parts must be a map of numbers by names"):
        info_of({"reward_parts": parts})
