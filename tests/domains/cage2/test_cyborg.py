"""The adapter to CybORG, on a stand-in for it: what reaches it, what comes back, and whose dice are thrown."""

import importlib
import json
import random
import sys

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.cage2.orders import KIND_REPAIRED
from ddppo.domains.cage2.rules import ACTION, ACTIONS, HOST
from ddppo.domains.cage2.search.orders import KINDS, ORDERS, PRESETS, code
from ddppo.domains.cage2.search.outcomes import decode_outcomes
from ddppo.envs.make import choose_backend, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from tests.support import CHECKOUT, TINY, Program, run

STAND_IN = str(CHECKOUT / "tests" / "domains" / "cage2" / "fake_cyborg")
ORDER = "critical_first"


def forget_cyborg():
    for name in [name for name in sys.modules if name.partition(".")[0] == "CybORG"]:
        del sys.modules[name]


@pytest.fixture
def cyborg(monkeypatch):
    """The stand-in can be imported, by this process and those to come."""
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    yield
    forget_cyborg()


@pytest.fixture
def make(cyborg):
    def made(**kwargs):
        return gym.make("ddppo/CybORG-v0", disable_env_checker=True, **kwargs).unwrapped

    return made


def host_of(kind):
    return next(host for host in HOST if host.lower().startswith(KINDS[kind]))


def episode(env, seed, steps=30):
    observed, rewards = [env.reset(seed=seed)[0]], []
    for step in range(steps):
        obs, reward, *_ = env.step(step)
        observed.append(obs)
        rewards.append(reward)
    return np.array(observed).tolist(), rewards


def test_every_action_reaches_cyborg_by_its_name_whatever_number_it_has_there(make):
    env = make(episode_steps=200)
    env.reset(seed=0)
    for action in range(len(ACTIONS)):
        env.step(action)
    assert tuple(env.game.played) == ACTIONS


@pytest.mark.parametrize(
    ("red", "agent"),
    [
        *(("b_line", "B_lineAgent"), ("meander", "RedMeanderAgent"), ("sleep", "SleepAgent")),
        *(("B_lineAgent", "B_lineAgent"), ("RedMeanderAgent", "RedMeanderAgent")),
    ],
)
def test_cyborg_plays_the_challenges_scenario_against_the_red_agent_asked_for(red, agent, make):
    inner = make(red=red).game.env
    assert {name: kind.__name__ for name, kind in inner.agents.items()} == {"Red": agent}
    assert inner.scenario_file.endswith("Shared/Scenarios/Scenario2.yaml")


def test_an_episode_is_truncated_after_its_steps_and_never_terminated(make):
    env = make(episode_steps=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_environments_of_one_process_throw_their_own_dice_and_leave_the_process_its_own(make):
    alone = {seed: episode(make(), seed) for seed in (1, 2)}
    assert alone[1] != alone[2]
    random.seed(7)
    np.random.seed(7)
    envs = {seed: make() for seed in (1, 2)}
    both = {seed: ([env.reset(seed=seed)[0].tolist()], []) for seed, env in envs.items()}
    for step in range(30):
        for seed, env in envs.items():
            obs, reward, *_ = env.step(step)
            both[seed][0].append(obs.tolist())
            both[seed][1].append(reward)
    assert both == alone
    drawn = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    assert drawn == (random.random(), np.random.random())


def test_an_environment_without_a_seed_goes_on_to_other_episodes(make):
    env = make()
    first = episode(env, 3)
    assert episode(env, None) != first
    assert episode(env, 3) == first


def test_auto_gives_each_a_process_and_the_numbers_are_those_of_one_process(cyborg):
    env = EnvConfig(id="ddppo/CybORG-v0", kwargs={"episode_steps": 5})
    chosen = choose_backend(env, probe(env), 4, cores=2)
    assert (chosen.backend, chosen.num_workers) == ("pool", 4)
    found = []
    for backend in ("auto", "sync"):
        envs = make_vec_env(
            EnvConfig(id=env.id, kwargs=env.kwargs, backend=backend), range(4), rank=0, cores=2
        )
        obs, _ = envs.reset(range(4))
        steps = [envs.step(np.arange(4) + 15 * step) for step in range(9)]
        found.append([obs.tolist(), *((step.obs.tolist(), step.rewards.tolist()) for step in steps)])
        envs.close()
    assert found[0] == found[1]


# -- the true state --------------------------------------------------------------------------------------------------


def test_the_true_state_is_read_once_in_as_many_steps_as_it_may_be_old(make):
    env = make(true_state_every=10)
    env.reset(seed=0)
    for _ in range(30):
        assert env.compromised[HOST["User0"]] == 2
        env.step(0)
    assert env.game.env.num_reads == 3


def test_the_true_state_of_an_episode_is_never_that_of_the_one_before(make):
    env = make(true_state_every=1000)
    env.reset(seed=0)
    while env.game.env.sessions["Defender"] != ["root"]:
        env.step(0)
        assert env.compromised[HOST["Defender"]] == 0  # as old as it may be
    env.reset()
    assert env.compromised.tolist() == [0] * 8 + [2] + [0] * 4


def test_sessions_of_red_alone_compromise_a_host_and_root_is_more_than_a_user(make):
    env = make(true_state_every=1)
    env.reset(seed=0)
    env.game.env.sessions |= {"Defender": ["user"], "Op_Server0": ["user", "root"], "User0": []}
    assert env.compromised.tolist() == [1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("sessions", "complies"), [({"Op_Server0": ["user"]}, False), ({}, True)], ids=["compromised", "mended"]
)
def test_a_repair_is_judged_by_the_true_state_before_it_and_never_by_one_read_earlier(
    sessions, complies, make
):
    env = make(true_state_every=1000, order=ORDER)
    env.reset(seed=0)
    inner = env.game.env
    earlier = {} if sessions else {"Op_Server0": ["user"]}  # what is wrong by now
    inner.sessions |= earlier
    assert env.compromised.any()
    env.step(ACTION["Sleep"])
    inner.sessions = {host: sessions.get(host, []) for host in inner.sessions}
    _, reward, *_ = env.step(ACTION["Restore User1"])
    roots = sum("root" in users for users in inner.sessions.values())
    assert reward == pytest.approx(30.0 * complies - 0.1 * roots)


@pytest.mark.parametrize(("rule", "reads"), [("state", 26), ("history", 0)])
def test_the_true_state_is_read_for_repairs_alone_and_for_none_where_their_history_decides(rule, reads, make):
    env = make(compliance=rule, episode_steps=200, order=ORDER)
    env.reset(seed=0)
    for action in range(len(ACTIONS)):
        env.step(action)
    assert (KIND_REPAIRED >= 0).sum() == 26
    assert env.game.env.num_reads == reads


def test_an_episode_without_a_repair_is_paid_less_and_one_without_an_order_what_cyborg_says(make):
    paid = []
    for order in (None, ORDER):
        env = make(episode_steps=4, order=order)
        env.reset(seed=5)
        paid.append([env.step(0)[1] for _ in range(4)])
    assert np.subtract(paid[1], paid[0]).tolist() == pytest.approx([0, 0, 0, -0.2 * 30])


def test_an_order_is_observed_taken_from_a_resets_options_and_told_of_with_what_came_of_it(make):
    env = make(episode_steps=2, order=ORDER)
    obs, _ = env.reset(seed=0)
    assert obs["context"].tolist() == code(PRESETS[ORDER]).tolist()
    obs, _ = env.reset(seed=0, options={"context": code(ORDERS[77])})
    assert env.observation_space.contains(obs)
    assert obs["context"].tolist() == code(ORDERS[77]).tolist()
    rewards = [env.step(ACTION[name])[1] for name in ("Sleep", f"Restore {host_of(ORDERS[77][0])}")]
    (outcome,) = decode_outcomes([env.publish()])
    assert (outcome.order, outcome.repairs, outcome.compliant) == (
        ORDERS[77],
        1,
        1,
    )  # nothing is before the first
    assert outcome.reward + outcome.alignment == pytest.approx(sum(rewards))
    assert env.publish() == b""


@pytest.mark.slow
def test_a_search_over_orders_runs_on_cyborg(cyborg, tmp_path):
    run_dir = tmp_path / "run"
    train = [sys.executable, "-m", "ddppo.train", f"hydra.run.dir={run_dir}"]
    search = [
        *TINY, "env=gym", "env.id=ddppo/CybORG-v0", "+env.kwargs={order: reverse, episode_steps: 8}", "env.num_envs=4",
        "model=order_conditioned", "ppo.rollout_steps=8", "ppo.num_minibatches=1", "search.name=orders",
        "search.budget_episodes=24", "search.max_episodes_per_order=2", "ppo.total_steps=192",
    ]  # fmt: skip
    result = run(Program([*train, *search]), run_dir)  # one that reads PYTHONPATH as it starts
    assert result.code == 0, result.stderr
    trials = json.loads((run_dir / "search.json").read_text())["trials"]
    assert sum(trial["episodes"] for trial in trials) == 24


# -- what cannot be --------------------------------------------------------------------------------------------------


def test_without_cyborg_one_is_told_where_it_is_and_that_a_package_of_the_name_is_another(monkeypatch):
    monkeypatch.setitem(sys.modules, "CybORG", None)
    with pytest.raises(
        ConfigError, match=r"ddppo/CybORG-v0: CybORG is not installed: git clone .*another thing"
    ):
        probe(EnvConfig(id="ddppo/CybORG-v0"))


def test_the_cyborg_of_another_challenge_is_told_from_this_ones(cyborg, monkeypatch):
    monkeypatch.delattr(importlib.import_module("CybORG.Agents.Wrappers"), "ChallengeWrapper")
    with pytest.raises(ConfigError, match="is not that of CAGE challenge 2"):
        probe(EnvConfig(id="ddppo/CybORG-v0"))


def test_a_cyborg_with_other_actions_is_refused(cyborg, monkeypatch):
    monkeypatch.setattr(importlib.import_module("CybORG.Agents.Wrappers"), "ON_HOSTS", ("Restore", "Remove"))
    with pytest.raises(ConfigError, match="it has not those 145 actions"):
        probe(EnvConfig(id="ddppo/CybORG-v0"))


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"red": "bline"}, r"red=bline is none of b_line \(or B_lineAgent\), meander"),
        ({"true_state_every": 0}, "true_state_every=0 must be a whole number of steps, at least 1"),
        ({"episode_steps": 0}, "episode_steps=0 must be a whole number"),
        ({"order": ORDER, "compliance": "both"}, "compliance=both: must be one of state, history"),
    ],
)
def test_settings_that_cannot_be_are_named(kwargs, said, cyborg):
    with pytest.raises(ConfigError, match=said):
        probe(EnvConfig(id="ddppo/CybORG-v0", kwargs=kwargs))
