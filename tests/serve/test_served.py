"""Training on served environments: the numbers of local ones, a server for all ranks, refusals before a start."""

import re

import pytest

for needed in ("msgpack", "websockets", "uvicorn", "fastapi"):
    pytest.importorskip(needed, reason="needs the extra serve: pip install '.[serve]'")

from ddppo.config.settings import EnvConfig  # noqa: E402
from ddppo.serve.server import ServeSettings, served  # noqa: E402
from tests.support import TINY, door, lines, summary  # noqa: E402

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


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_on_one_server_is_the_run_on_local_environments_to_the_bit(of_server, tmp_path, world_size):
    ranks = f"dist.world_size={world_size}"
    local = numbers("env=cartpole", "env.backend=sync", ranks, run_dir=tmp_path / "local")
    assert numbers(*of_server, ranks, run_dir=tmp_path / "served") == local


@pytest.mark.slow
def test_ranks_may_have_servers_of_their_own(tmp_path):
    local = numbers("env=cartpole", "env.backend=sync", "dist.world_size=2", run_dir=tmp_path / "local")
    own = numbers("env=cartpole", "env.backend=remote", "dist.world_size=2", run_dir=tmp_path / "own")
    assert own == local


TEXT = (
    *(
        *TINY,
        "env=gym",
        "env.id=tests.domains.text.text_tasks:tests/Repeat-v0",
        "model=token_policy",
        "ppo=grpo",
    ),
    *(
        "model.obs_tokens=8",
        "model.turn_tokens=4",
        "ppo.rollout_steps=48",
        "ppo.group_size=2",
        "env.num_envs=4",
    ),
    *("ppo.total_steps=64", "eval.final_episodes=6"),
)


def test_served_episodes_of_text_are_those_of_this_process_to_the_bit_and_so_is_their_evaluation(tmp_path):
    found = []
    for backend in ("sync", "remote"):
        run = door(*TEXT, f"env.backend={backend}", run_dir=tmp_path / backend)
        assert run.code == 0, run.stderr
        told = summary(tmp_path / backend)
        found.append((told["params_hash"], told["env_steps"], told["eval"]["final"]["success_rate"]))
    assert found[0] == found[1]


def test_episodes_of_text_that_are_lost_are_counted_and_the_run_goes_on(tmp_path):
    failing = ("env.kwargs.fails=[north,up]", "env.backend=remote", "dist.on_lost=restart")
    run = door(*TEXT, *failing, "dist.max_restarts=1000", "eval.final_episodes=0", run_dir=tmp_path)
    assert run.code == 0, run.stderr
    last = lines(tmp_path)[-1]
    assert last["dist/lost_episodes"] > 0
    assert last["dist/restarts"] == 0
    assert run.stderr.count("its episode is lost") == last["dist/lost_episodes"]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("env.num_envs=8", "env.num_envs=8 takes 8 slots of .*, which has 4: start it with pool=8 or more"),
        ("eval.every_steps=64", "eval.every_steps takes 1 slots besides those of env.num_envs=4"),
        ("env.id=Pendulum-v1", "serve CartPole-v1: leave it out"),
        ("env.token_file=null", "needs a token: set env.token_file"),
        ("env.batch_wait_ms=3", "has no effect with served, as its actions are no text"),
    ],
)
def test_what_a_server_cannot_give_is_said_before_anything_starts(of_server, tmp_path, argument, said):
    run = door(*CARTPOLE, *of_server, argument, run_dir=tmp_path / "run")
    assert run.code == 2
    assert re.search(said, run.stderr), run.stderr
