"""Served environments stepped each at its own pace, and those of a server that a rank starts for itself."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.domains.text.served_turns import RemoteTurns  # noqa: E402
from ddppo.domains.text.turns import make_turns  # noqa: E402
from ddppo.envs.make import make_vec_env  # noqa: E402
from ddppo.envs.vec_env import EnvNames  # noqa: E402
from ddppo.errors import EnvError  # noqa: E402
from tests.serve.served_tasks import EXIT, NOTHING, RAISE  # noqa: E402
from tests.serve.test_serve import own_environ  # noqa: E402
from tests.serve.test_serve_slots import SPEC, WORLD, runs  # noqa: E402
from tests.support import PATIENCE_S, wait_until  # noqa: E402

WORDS = "tests.domains.text.text_tasks:tests/Repeat-v0"
PARTS = "tests.domains.text.text_tasks:tests/PartsRepeat-v0"
REMOTE = EnvConfig(id=WORLD.id, backend="remote")


@pytest.fixture
def turns_of():
    made = []

    def make(env, num_envs, **settings):
        made.append(
            make_turns(env, range(num_envs), 0, **({"timeout_s": PATIENCE_S, "max_restarts": 0} | settings))
        )
        return made[-1]

    yield make
    for turns in made:
        turns.close()


def played(turns, num_envs):
    """Play an episode in each environment; return all that each said, in its order."""
    said = [[] for _ in range(num_envs)]
    for i in range(num_envs):
        turns.begin(i, 7 + i, {"task": ("north", "down")[i % 2]})
    while answers := turns.ready(0.0):
        for turn in answers:
            said[turn.env].append((turn.obs, turn.reward, turn.terminated, turn.truncated, dict(turn.info)))
            if not turn.is_over:
                turns.act(turn.env, "north")
    return said


def test_served_text_is_that_of_this_process(turns_of):
    local, served = (turns_of(EnvConfig(id=PARTS, backend=backend), 3) for backend in ("sync", "remote"))
    assert played(served, 3) == played(local, 3)
    assert played(served, 3) == played(local, 3)
    assert served.spec == local.spec


def test_eight_environments_take_their_six_turns_at_the_same_time(turns_of, tmp_path):
    (tmp_path / "open").touch()
    turns = turns_of(
        EnvConfig(
            id=WORDS, backend="remote", kwargs={"turns": 6, "gate": str(tmp_path / "open"), "meets": 8}
        ),
        8,
    )
    for i in range(8):
        turns.begin(i, 2 * i + 1, {"task": "north"})
    turns.ready(None)
    for _ in range(6):  # no step ends before all eight have begun
        for i in range(8):
            turns.act(i, "north")
        answers = turns.ready(None)
    assert len(answers) == 8
    assert all(turn.is_over and turn.info["is_success"] for turn in answers)


def test_who_is_ready_waits_for_the_slow_only_as_long_as_it_is_told(turns_of, tmp_path):
    turns = turns_of(EnvConfig(id=WORDS, backend="remote", kwargs={"gate": str(tmp_path / "open")}), 2)
    for i in range(2):
        turns.begin(i, i, {"task": "north"})  # that of the odd seed is slow
    turns.ready(None)
    for i in range(2):
        turns.act(i, "north")
    assert [turn.env for turn in turns.ready(0.01)] == [0]
    (tmp_path / "open").touch()
    assert [turn.env for turn in turns.ready(0.01)] == [1]
    assert turns.ready(0.01) == []


def test_a_world_that_is_lost_costs_its_episode_alone_and_begins_anew(turns_of):
    turns = turns_of(REMOTE, 2, max_restarts=1)
    for _ in range(2):
        for i in range(2):
            turns.begin(i, 1, {})
        assert [turn.failed for turn in turns.ready(None)] == [False, False]
        if turns.num_lost_episodes:
            break
        turns.act(0, EXIT)
        turns.act(1, NOTHING)
        failed, other = sorted(turns.ready(None), key=lambda turn: turn.env)
        assert failed.failed
        assert not other.is_over
    assert (turns.num_restarts, turns.num_lost_episodes) == (1, 1)


def test_a_world_that_raises_costs_its_episode_and_no_restart(turns_of):
    turns = turns_of(REMOTE, 1, max_restarts=1)
    for _ in range(2):
        turns.begin(0, 1, {})
        turns.ready(None)
        turns.act(0, RAISE)
        if turns.num_lost_episodes:
            with pytest.raises(EnvError, match=r"environment 0 of rank 0: .*no such bucket"):
                turns.ready(None)
        else:
            assert turns.ready(None)[0].failed
    assert (turns.num_restarts, turns.num_lost_episodes) == (0, 1)


def test_a_server_of_ones_own_that_is_killed_is_started_again_at_the_same_address(turns_of):
    turns = turns_of(REMOTE, 2, max_restarts=2)
    pids = []
    for k in range(2):
        for i in range(2):
            turns.begin(i, 1, {})
        answers = turns.ready(None)
        pids += [int(turn.obs[2]) for turn in answers]
        if k == 0:
            os.kill(turns._source._own._process.pid, signal.SIGKILL)
            for i in range(2):
                turns.act(i, NOTHING)
            assert all(turn.failed for turn in turns.ready(None))
    assert len(set(pids)) == 4
    assert (turns.num_restarts, turns.num_lost_episodes) == (2, 2)
    turns.close()
    wait_until(lambda: not any(map(runs, pids)))


def test_a_batch_goes_on_where_the_server_of_its_own_is_killed():
    envs = make_vec_env(REMOTE, range(2), 0, 1, PATIENCE_S, max_restarts=1)
    obs, _ = envs.reset([1, 2])
    pids = [int(pid) for pid in obs[:, 2]]
    os.kill(envs._source._own._process.pid, signal.SIGKILL)
    step = envs.step(np.zeros(2, np.int64))
    assert not step.valid.any()
    assert step.truncated.all()
    assert envs.step(np.zeros(2, np.int64)).valid.all()
    assert (envs.num_restarts, envs.num_lost_episodes) == (2, 2)
    pids += [int(pid) for pid in step.obs[:, 2]]
    envs.close()
    wait_until(lambda: not any(map(runs, pids)))


def test_what_a_world_raises_names_the_environment_of_the_rank():
    envs = make_vec_env(REMOTE, range(4, 6), 2, 1, PATIENCE_S)
    envs.reset([1, 2])
    with pytest.raises(EnvError, match=r"environment 5 of rank 2: .*no such bucket"):
        envs.step(np.array([NOTHING, RAISE]))
    envs.close()


def test_a_world_that_cannot_be_made_is_said_before_any_session(turns_of):

    broken = EnvConfig(id=WORLD.id, backend="remote", kwargs={"broken": True})
    with pytest.raises(
        EnvError, match=r"environments 0 to 1 of rank 0 cannot be served: .*the cloud is down"
    ):
        RemoteTurns(broken, SPEC, EnvNames(range(2), 0), PATIENCE_S, 0)


RANK = """
import sys
from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
envs = make_vec_env(EnvConfig(id="tests.serve.served_tasks:World-v0", backend="remote"), range(2), 0, 1, 900.0)
print(*(int(pid) for pid in envs.reset([1, 2])[0][:, 2]), envs._source._own._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_rank_leaves_no_process_and_no_folder(tmp_path):

    environ = own_environ() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as rank:
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert all(map(runs, pids))
        assert list(tmp_path.iterdir())
        rank.kill()
    wait_until(lambda: not any(map(runs, pids)))
    wait_until(lambda: not list(tmp_path.iterdir()))
