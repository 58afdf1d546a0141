"""The package openenv 0.10 on the other side: it validates our server, its clients play, and runs train on its servers.

`make test-openenv` installs it into build/openenv, an environment of its own. Without it these tests are skipped.
"""

import re
import socket
import subprocess
import sys
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


def is_up(url):
    with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
        return answer.status == 200
    return False


class Package:
    """A process that serves an environment of openenv_package.py once it is told to."""

    def __init__(self, kind, port, sessions, *more):
        self.url = f"http://127.0.0.1:{port}"
        command = [BIN / "python", "tests/serve/openenv_package.py", kind, str(port), str(sessions), *more]
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE)

    def serve(self):
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        wait_until(lambda: self._process.poll() is not None or is_up(self.url))

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def package(kind, sessions=8):
    """Serve an environment of openenv_package.py; yields its address."""
    serving = Package(kind, free_port(), sessions)
    try:
        serving.serve()
        yield serving.url
    finally:
        serving.end()


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


def test_a_run_learns_to_the_bound_of_the_reward_through_a_late_step_a_full_server_and_its_restart(tmp_path):
    faults = ("dist.on_lost=restart", "dist.max_restarts=5", "dist.timeout_s=8")
    size = ("ppo.total_steps=4096", "eval.final_episodes=10")
    # A step takes 10 s and is given up after 8. The server has no session to spare, so until the step has ended it
    # refuses the one that is opened instead.
    port = free_port()
    first, second = Package("bandit", port, 4, "200"), Package("bandit", port, 4)
    try:
        first.serve()
        command = [
            "ddppo.train",
            *BANDIT,
            f"env.url={first.url}",
            *size,
            *faults,
            f"hydra.run.dir={tmp_path}",
        ]
        with started([sys.executable, "-m", *command]) as run:
            wait_until(lambda: (tmp_path / "metrics.jsonl").exists() and len(lines(tmp_path)) >= 3)
            first.end()
            second.serve()
            _, stderr = run.communicate(timeout=PATIENCE_S)
    finally:
        first.end()
        second.end()
    assert run.returncode == 0, stderr
    assert stderr.count("gave no answer within 8 s; the session is opened again") == 1
    assert stderr.count("the session is opened again") == 1 + 4
    assert summary(tmp_path)["eval"]["final"]["return_mean"] == 4.0


def test_a_full_server_of_it_is_a_sentence_and_a_slot_that_comes_free_is_taken(tmp_path):
    with package("bandit", 2) as url:
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


def test_the_server_on_the_page_about_openenv_is_trained_on_as_it_says(tmp_path):
    page = (CHECKOUT / "docs/openenv.md").read_text()
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    port = free_port()
    (tmp_path / "light.py").write_text(source.replace("port=8000", f"port={port}"))
    (command,) = re.findall(r"python -m ddppo.train (env=openenv .*8000 env.num_envs=8)", page)
    process = subprocess.Popen([BIN / "python", tmp_path / "light.py"])
    try:
        wait_until(lambda: is_up(f"http://127.0.0.1:{port}"))
        short = ("ppo.total_steps=2048", *TINY)
        run = door(*command.replace("8000", str(port)).split(), *short, run_dir=tmp_path / "run")
        assert run.code == 0, run.stderr
    finally:
        process.kill()
        process.wait()


GRPO = (
    *TINY, "env=openenv", "model=token_policy", "ppo=grpo", "model.obs_tokens=16", "model.turn_tokens=4",
    "ppo.rollout_steps=64", "ppo.group_size=2", "env.num_envs=4", "ppo.total_steps=64",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["echo", "shell"])
def test_text_and_tools_of_its_servers_are_episodes_of_text(tmp_path, kind):
    with package(kind) as url:
        run = door(*GRPO, f"env.url={url}", run_dir=tmp_path)
        assert run.code == 0, run.stderr
    assert lines(tmp_path)[-1]["env_steps"] >= 64
