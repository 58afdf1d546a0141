"""Batches whose environments publish: news, states and lost processes, in turn and in a pool."""

import os
import signal

import numpy as np
import pytest
import torch

from ddppo.collectives.group import Group, gather_bytes
from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.observers import Observers
from ddppo.envs.backends.pool_memory import History
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvOutputError, EnvWorkerLost
from ddppo.loop.env_messages import EnvMessages
from tests.distributed.telling import LENGTH, number
from tests.support import NEVER_S, PATIENCE_S

TELLING = "tests.distributed.telling:tests/Telling-v0"
SEEDS = [3, 5, 7, 11]


def config(backend="sync", name=TELLING, **kwargs):
    workers = {"num_workers": 3} if backend == "pool" else {}
    return EnvConfig(id=name, backend=backend, kwargs=kwargs, **workers)


@pytest.fixture
def closing():
    made = []
    yield lambda envs: made.append(envs) or envs
    for envs in made:
        envs.close()


@pytest.fixture(params=["sync", "pool", "observers"])
def batch(request, closing):
    def make(max_restarts=0, **kwargs):
        if request.param == "observers":
            env = config("pool", **kwargs)
            return closing(Observers(env, probe(env), EnvNames(range(4), 0), PATIENCE_S, 1, max_restarts))
        return closing(
            make_vec_env(config(request.param, **kwargs), range(4), 0, 1, PATIENCE_S, max_restarts)
        )

    return make


def stepped(envs, action=1):
    """Step all and return what they observe."""
    actions = np.full(4, action)
    if not isinstance(envs, Observers):
        return envs.step(actions).obs.copy()
    for k, part in enumerate(envs.parts):
        envs.ask(k, actions[part])
    waiting = set(range(len(envs.parts)))
    while waiting:
        waiting -= set(envs.ready(None))
    return np.concatenate([envs.answer(k).obs for k in range(len(envs.parts))])


def heard(news):
    return [number(each) for each in news]


def test_news_come_from_every_environment_and_reach_every_one_in_order(batch):
    envs = batch()
    envs.reset(SEEDS)
    stepped(envs)
    first = envs.publish()
    assert len(set(first)) == 4
    envs.receive(first)
    second = envs.publish()
    assert second != first
    envs.reset(SEEDS)
    stepped(envs)
    assert envs.publish() == first
    envs.receive(first[::-1])
    assert envs.publish() != second  # the order counts
    assert envs.made_anew() == []


def test_news_may_go_to_some_alone(batch):
    envs = batch()
    envs.reset(SEEDS)
    before = envs.publish()
    envs.receive(before, [1, 2])
    changed = [a != b for a, b in zip(before, envs.publish(), strict=True)]
    assert changed == [False, True, True, False]


def test_ten_megabytes_pass_through_a_line_both_ways(batch):
    envs = batch(padding=10_000_000)
    envs.reset(SEEDS)
    news = envs.publish()
    assert [len(each) for each in news] == [10_000_008] * 4
    envs.receive(news)
    assert heard(envs.publish()) != heard(news)


def test_a_batch_goes_on_from_its_state_as_if_it_had_not_been_interrupted(batch):
    envs = batch()
    envs.reset(SEEDS)
    for _ in range(LENGTH + 2):
        obs = stepped(envs)
    envs.receive(envs.publish())
    state = envs.state()
    expected = [obs, stepped(envs, action=0), envs.publish()]
    other = batch()
    found = [other.restore(state)[0].copy(), stepped(other, action=0), other.publish()]
    assert np.array_equal(expected[0], found[0])
    assert np.array_equal(expected[1], found[1])
    assert expected[2] == found[2]


def test_what_is_no_bytes_is_refused_before_it_travels(batch):
    envs = batch(fault="publishes text")
    envs.reset(SEEDS)
    with pytest.raises(
        EnvOutputError, match=r"environment 0 of rank 0 returned str from publish\(\) after step 0"
    ):
        envs.publish()


def nobody_knows_the_past(monkeypatch):
    monkeypatch.setattr(History, "replay", lambda history, rows: None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_lost_between_two_iterations_tells_nothing_and_the_next_step_starts_another(
    closing, capsys, monkeypatch, number
):
    nobody_knows_the_past(monkeypatch)
    timeout_s = NEVER_S if number == signal.SIGKILL else 5.0
    envs = closing(make_vec_env(config("pool"), range(4), 0, 1, timeout_s, max_restarts=1))
    envs.reset(SEEDS)
    stepped(envs)
    stepper = envs._stepper
    os.kill(stepper.workers[2].process.pid, number)
    news = envs.publish()
    assert [len(each) for each in news] == [8, 8, 0, 0]
    envs.receive(news)
    assert envs.made_anew() == []
    assert envs.step(np.ones(4, int)).valid.tolist() == [True, True, False, False]
    assert envs.made_anew() == [2, 3]
    assert envs.made_anew() == []
    assert [len(each) for each in envs.publish()] == [8] * 4
    assert (envs.num_restarts, envs.num_lost_episodes) == (1, 2)
    assert "it is started again (restart 1 of 1)" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["pool", "observers"])
def test_one_lost_when_it_is_asked_comes_to_where_it_was_and_tells_the_same(closing, backend):
    whole, disturbed = (
        closing(
            Observers(config("pool"), probe(config()), EnvNames(range(4), 0), PATIENCE_S, 1, max_restarts)
            if backend == "observers"
            else make_vec_env(config("pool"), range(4), 0, 1, PATIENCE_S, max_restarts)
        )
        for max_restarts in (0, 3)
    )
    pool = disturbed._stepper
    for envs in (whole, disturbed):
        envs.reset(SEEDS)
    for k in range(3):
        obs = [stepped(envs, action=k % 2) for envs in (whole, disturbed)]
        assert np.array_equal(*obs)
        os.kill(pool.workers[k].process.pid, signal.SIGKILL)
        news = disturbed.publish()
        assert news == whole.publish()
        for envs in (whole, disturbed):
            envs.receive(news)
    assert packed(whole.state()) == packed(disturbed.state())
    assert (disturbed.num_restarts, disturbed.num_lost_episodes, disturbed.made_anew()) == (3, 0, [])


def test_one_that_may_not_be_started_again_is_named(closing):
    envs = closing(make_vec_env(config("pool"), range(4), 0, 1, PATIENCE_S))
    envs.reset(SEEDS)
    os.kill(envs._stepper.workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(EnvWorkerLost, match=r"environment 0 of rank 0, .*ended \(exit code -9\)"):
        envs.publish()


def test_environments_that_were_made_anew_hear_what_the_run_knows_before_the_news(closing, monkeypatch):
    nobody_knows_the_past(monkeypatch)
    envs = closing(make_vec_env(config("pool"), range(4), 0, 1, PATIENCE_S, max_restarts=1))
    known = [(5).to_bytes(8, "little")]
    asked = []
    exchange = EnvMessages(Group(), {0: 4}, envs, lambda: asked.append(1) or known)
    envs.reset(SEEDS)
    exchange.begin()
    exchange.exchange()
    assert len(asked) == 1
    os.kill(envs._stepper.workers[0].process.pid, signal.SIGKILL)
    stepped(envs)
    assert len(exchange.exchange()) == 4
    assert len(asked) == 2
    exchange.exchange()
    assert len(asked) == 2


class Three(Group):
    """The first of three ranks; `others` are what the other two hand over in each gather."""

    world_size = 3

    def __init__(self, *others):
        super().__init__()
        self._others = list(others)

    def gather(self, values):
        return torch.stack([values, *self._others.pop(0)])


def test_bytes_of_all_ranks_are_as_long_as_they_were():
    sizes = torch.tensor([[0, 0], [2, 1]])
    group = Three(sizes, [torch.zeros(3, dtype=torch.uint8), torch.tensor([7, 8, 0], dtype=torch.uint8)])
    assert gather_bytes(group, b"abc") == ([b"abc", b"", b"\x07\x08"], True)
    assert gather_bytes(Three(torch.zeros(2, 2, dtype=torch.int64)), b"") == ([b"", b"", b""], False)
    assert gather_bytes(Group(), b"abc", flag=True) == ([b"abc"], True)


def test_bytes_for_the_root_reach_no_other_rank():
    class Second(Three):
        def gather_at_root(self, values):
            assert values.tolist() == [97, 98, 99, 0]
            return None

    assert gather_bytes(Second(torch.tensor([[4, 0], [2, 1]])), b"abc", at_root=True) == ([], True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mute", r"it names a journal, .*Notebook, but has no receive\(\)"),
        ("Unjournalled", r"its journal=tests.distributed.telling:Diary cannot be imported \(AttributeError"),
    ],
)
def test_half_of_what_it_takes_is_refused_when_the_task_is_made(name, said):
    with pytest.raises(ConfigError, match=said):
        probe(config(name=f"tests.distributed.telling:tests/{name}-v0"))


def test_other_tasks_have_no_journal():
    assert probe(EnvConfig(id="CartPole-v1")).journal is None
    assert probe(config()).journal == "tests.distributed.telling:Notebook"
