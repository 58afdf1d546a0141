"""The server of one rank's environments, without the rank."""

import json
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig
from ddppo.envs.probing.probe import probe
from ddppo.serve.protocol import plain_spec
from tests.support import CHECKOUT, PATIENCE_S


def test_a_server_whose_rank_is_gone_before_it_serves_ends():
    env = EnvConfig(id="CartPole-v1")
    task = {"env": asdict(env), "spec": plain_spec(probe(env)), "pool": 1, "token": "t" * 24, "step_s": 10.0}
    told = json.dumps(task).encode()
    ours, theirs = socket.socketpair()
    with theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        server = subprocess.Popen(
            [sys.executable, "-m", "ddppo.serve.own"], stdin=theirs, stderr=subprocess.DEVNULL, cwd=CHECKOUT
        )
        with ours:
            socket.send_fds(ours, [len(told).to_bytes(8, "big")], [listener.fileno()])
            ours.sendall(told)
    try:
        assert server.wait(PATIENCE_S) == 1
    finally:
        server.kill()
        server.wait()
