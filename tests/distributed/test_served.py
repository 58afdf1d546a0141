"""Training on served environments: the numbers of local ones, a server for all ranks, refusals before a start."""

import re

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve")

from ddppo.config import EnvConfig  # noqa: E402
from ddppo.serve.server import ServeSettings, served  # noqa: E402
from tests.support import TINY, door, summary  # noqa: E402

CARTPOLE = (*TINY, "ppo=cartpole", "env.num_envs=4", "ppo.total_steps=512", "eval.final_episodes=3")
TOKEN = "a secret of 20 chars"


def numbers(*arguments, run_dir):
    run = door(*CARTPOLE, *arguments, run_dir=run_dir)
    assert run.code == 0, run.stderr
    told = summary(run_dir)
    return told["params_hash"], told["eval"]["final"]["return_mean"]


@pytest.fixture(scope="module")
def server():
    with served(ServeSettings(EnvConfig(id="CartPole-v1"), pool=4, port=0, token=TOKEN)) as url:
        yield url


@pytest.fixture
def of_server(server, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return ("env=remote", f"env.urls=[{server}]", f"env.token_file={tmp_path / 'token'}")


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_on_one_server_is_the_run_on_local_environments_to_the_bit(of_server, tmp_path, world_size):
    ranks = f"dist.world_size={world_size}"
    local = numbers("env=cartpole", "env.backend=sync", ranks, run_dir=tmp_path / "local")
    assert numbers(*of_server, ranks, run_dir=tmp_path / "served") == local


def test_ranks_may_have_servers_of_their_own(tmp_path):
    local = numbers("env=cartpole", "env.backend=sync", "dist.world_size=2", run_dir=tmp_path / "local")
    own = numbers("env=cartpole", "env.backend=remote", "dist.world_size=2", run_dir=tmp_path / "own")
    assert own == local


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("env.num_envs=8", "env.num_envs=8 takes 8 slots of .*, which has 4: start it with pool=8 or more"),
        ("eval.every_steps=64", "eval.every_steps takes 1 slots besides those of env.num_envs=4"),
        ("env.id=Pendulum-v1", "serve CartPole-v1: leave it out"),
        ("env.token_file=null", "wants a token: set env.token_file"),
        ("env.batch_wait_ms=3", "has no effect with served, whose actions are no text"),
    ],
)
def test_what_a_server_cannot_give_is_said_before_anything_starts(of_server, tmp_path, argument, said):
    run = door(*CARTPOLE, *of_server, argument, run_dir=tmp_path / "run")
    assert run.code == 2
    assert re.search(said, run.stderr), run.stderr
