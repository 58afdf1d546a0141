"""The package openenv 0.10 on the other side: it validates our server, its clients play, and runs train on its servers.

`make test-openenv` installs it into build/openenv, an environment of its own. Without it these tests are skipped.
"""

import os
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import contextmanager, suppress

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.serve.server import ServeSettings, served  # noqa: E402
from tests.serve.test_serve import health  # noqa: E402
from tests.serve.test_serve_openenv import TEXT, TOKEN  # noqa: E402
from tests.support import CHECKOUT, PATIENCE_S, TINY, door, lines, started, summary, wait_until  # noqa: E402

BIN = CHECKOUT / "build" / "openenv" / "bin"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BIN / "openenv").exists(), reason="needs openenv: make test-openenv installs it"),
]


def ran(*command):
    command = [str(BIN / command[0]), *command[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=CHECKOUT)


@contextmanager
def package(kind, port=None, sessions=8):
    """Serve an environment of openenv_package.py; yields its address and its process."""
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(BIN / "python"), "tests/serve/openenv_package.py", kind, str(port), str(sessions)]
    process = subprocess.Popen(command, cwd=CHECKOUT)
    try:

        def is_up():
            assert process.poll() is None
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
                return answer.status == 200
            return False

        wait_until(is_up)
        yield url, process
    finally:
        process.kill()
        process.wait()


def test_openenv_validates_our_server_6_of_6_and_its_clients_pass():
    with served(ServeSettings(TEXT, pool=1, port=0)) as url:
        found = ran("openenv", "validate", "--url", url.replace("ws", "http", 1))
        assert (found.returncode, found.stdout.count("PASS  ")) == (0, 6), found.stdout + found.stderr
        clients = ran("python", "tests/serve/openenv_clients.py", url.replace("ws", "http", 1))
        assert clients.stdout == "passed\n", clients.stderr
        wait_until(lambda: health(url)["free"] == 1)


def test_its_clients_pass_with_a_token_and_not_without():
    with served(ServeSettings(TEXT, pool=1, port=0, token=TOKEN)) as url:
        right = ran("python", "tests/serve/openenv_clients.py", url.replace("ws", "http", 1), TOKEN)
        assert right.stdout == "passed\n", right.stderr
        wrong = ran("python", "tests/serve/openenv_clients.py", url.replace("ws", "http", 1))
        assert "401" in wrong.stderr


BANDIT = ("env=openenv", *TINY, "env.num_envs=4", "ppo.rollout_steps=64")


def test_a_run_on_its_server_learns_to_the_bound_of_the_reward(tmp_path):
    with package("bandit", sessions=4) as (url, _):
        run = door(
            *BANDIT, f"env.url={url}", "ppo.total_steps=6000", "eval.final_episodes=10", run_dir=tmp_path
        )
        assert run.code == 0, run.stderr
    assert summary(tmp_path)["eval"]["final"]["return_mean"] == 4.0


def test_a_run_goes_on_through_a_restart_of_its_server(tmp_path):
    restart = (
        "dist.on_lost=restart",
        "dist.max_restarts=5",
        "ppo.total_steps=6000",
        "eval.final_episodes=10",
    )
    with package("bandit") as (url, process):
        command = ["ddppo.train", *BANDIT, f"env.url={url}", *restart, f"hydra.run.dir={tmp_path}"]
        with started([os.fspath(CHECKOUT / ".venv/bin/python"), "-m", *command]) as run:
            wait_until(lambda: len(lines(tmp_path)) >= 3 if (tmp_path / "metrics.jsonl").exists() else False)
            process.send_signal(signal.SIGKILL)
            process.wait()
            with package("bandit", port=int(url.rpartition(":")[2])):
                _, stderr = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, stderr
    assert stderr.count("the session is opened again") == 4
    assert summary(tmp_path)["eval"]["final"]["return_mean"] == 4.0


def test_a_full_server_of_it_is_a_sentence_and_a_slot_that_comes_free_is_taken(tmp_path):
    with package("bandit", sessions=2) as (url, _):
        full = door(
            *BANDIT, f"env.url={url}", "dist.timeout_s=4", "ppo.total_steps=512", run_dir=tmp_path / "full"
        )
        assert full.code == 1
        assert re.search(r"is full \(CAPACITY_REACHED\): .*larger max_concurrent_envs", full.stderr), (
            full.stderr
        )
        two = door(
            *BANDIT, "env.num_envs=2", f"env.url={url}", "ppo.total_steps=256", run_dir=tmp_path / "two"
        )
        assert two.code == 0, two.stderr


GRPO = (
    *TINY, "env=openenv", "model=token_policy", "ppo=grpo", "model.obs_tokens=16", "model.turn_tokens=4",
    "ppo.rollout_steps=64", "ppo.group_size=2", "env.num_envs=4", "ppo.total_steps=64",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["echo", "shell"])
def test_text_and_tools_of_its_servers_are_episodes_of_text(tmp_path, kind):
    with package(kind) as (url, _):
        run = door(*GRPO, f"env.url={url}", run_dir=tmp_path)
        assert run.code == 0, run.stderr
    last = lines(tmp_path)[-1]
    assert last["dist/lost_episodes"] == 0
    assert last["env_steps"] >= 64


def test_a_step_that_takes_too_long_loses_its_episode_and_the_next_one_begins(tmp_path):
    late = ("env.reset.sleep=6", "dist.timeout_s=3", "dist.on_lost=restart", "dist.max_restarts=9")
    with package("echo") as (url, _):
        run = door(*GRPO, f"env.url={url}", *late, run_dir=tmp_path)
    assert "gave no answer within 3 s; its episode is lost" in run.stderr, run.stderr
