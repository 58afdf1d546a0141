"""CAGE 2 with an order of priority: the same game, repairs judged by the state before them, alone and in a batch."""

import gymnasium as gym
import numpy as np
import pytest

from ddppo.config.settings import EnvConfig
from ddppo.domains.cage2.env import OrdersJournal
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.orders import Orders, ordered_step
from ddppo.domains.cage2.rules import ACTION, HOST, NUM_ACTIONS
from ddppo.domains.cage2.search.orders import ORDERS, PRESETS, code
from ddppo.domains.cage2.search.outcomes import decode_outcomes
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import ConfigError, EnvError
from ddppo.spaces import ArraySpec

ID = "ddppo/CAGE2-v0"
STEPS = 30
REPAIRS = [a for name, a in ACTION.items() if name.startswith(("Remove", "Restore"))]


def settings(**more):
    return EnvConfig(id=ID, kwargs={"episode_steps": STEPS, "order": "balanced"}, **more)


def options(*ids, **more):
    return [{"context": code(ORDERS[i]).tolist(), **more} for i in ids]


@pytest.fixture
def batch():
    """Make batches that are closed after the test."""
    made = []

    def make(num_envs=3, **more):
        made.append(make_vec_env(settings(**more), range(num_envs), 0, 1))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def actions_of(num_steps, num_envs, seed=0):
    rng = np.random.default_rng(seed)
    actions = rng.integers(NUM_ACTIONS, size=(num_steps, num_envs))
    repairs = rng.choice(REPAIRS, (num_steps, num_envs))
    return np.where(rng.random((num_steps, num_envs)) < 0.4, repairs, actions)


def played(envs, actions):
    """Return all that steps answered, as lists, and what was published."""
    answers = []
    for row in actions:
        step = envs.step(row)
        obs = {name: array.tolist() for name, array in step.obs.items()}
        finals = {name: array.tolist() for name, array in step.final_obs.items()}
        answers.append((obs, finals, step.rewards.tolist(), step.truncated.tolist(), step.ended.tolist()))
    return answers, envs.publish()


def test_what_it_observes_is_the_game_and_the_code_of_its_order(batch):
    assert probe(settings()).obs == {"context": ArraySpec((25,)), "obs": ArraySpec((52,))}
    assert probe(EnvConfig(id=ID)).obs == ArraySpec((52,))
    obs, _ = batch(backend="batched").reset([1, 2, 3])
    assert obs["context"].tolist() == [code(PRESETS["balanced"]).tolist()] * 3
    assert obs["obs"].tolist() == [[0] * 52] * 3


def test_a_batch_is_its_scalar_environments_to_the_bit_with_other_orders_and_across_ends(batch):
    alone, at_once, seeds = batch(backend="sync"), batch(backend="batched"), [5, 6, 7]
    for given in (None, options(3, 77, 119), None, options(0, 1, 2, alignment_weight=0.0)):
        first = [envs.reset(seeds, given)[0] for envs in (alone, at_once)]
        assert {k: x.tolist() for k, x in first[0].items()} == {k: x.tolist() for k, x in first[1].items()}
        actions = actions_of(2 * STEPS + 7, 3)
        expected, news = played(alone, actions)
        assert played(at_once, actions) == (expected, news)
        assert [len(each.splitlines()) for each in news] == [2, 2, 2]
        assert alone.publish() == at_once.publish() == [b""] * 3


def test_an_order_changes_nothing_of_the_game_and_rewards_are_its_own_and_alignment(batch):
    envs = batch(1, backend="sync")
    envs.reset([9], options(77))
    plain = gym.make(ID, episode_steps=STEPS)
    plain.reset(seed=9)
    actions = actions_of(STEPS, 1)
    rewards, alone = [], []
    for (action,) in actions:
        step = envs.step(np.array([action]))
        rewards.append(step.rewards.item())
        obs, reward, *_ = plain.step(action)
        alone.append(reward)
        seen = step.final_obs if len(step.ended) else step.obs
        assert seen["obs"].tolist() == [obs.tolist()]
    (told,) = decode_outcomes(envs.publish())
    assert (told.environment, told.order) == (0, ORDERS[77])
    assert told.reward == pytest.approx(sum(alone))
    assert told.reward + told.alignment == pytest.approx(sum(rewards))
    assert told.alignment == pytest.approx(30 * told.compliant / told.repairs)
    assert told.repairs == sum(int(action) in REPAIRS for (action,) in actions) > 5
    assert 0 < told.compliant < told.repairs


def test_evaluation_may_leave_alignment_out_of_the_return(batch):
    envs = batch(1, backend="batched")
    envs.reset([9], options(77, alignment_weight=0.0))
    rewards = [envs.step(row).rewards.item() for row in actions_of(STEPS, 1)]
    (told,) = decode_outcomes(envs.publish())
    assert (told.alignment, told.reward) == (0.0, pytest.approx(sum(rewards)))


def test_an_episode_without_a_repair_is_fined_at_its_last_step(batch):
    envs = batch(1, backend="batched")
    envs.reset([9])
    plain = Games(1)
    rewards = [envs.step(np.array([0])).rewards.item() for _ in range(STEPS)]
    (told,) = decode_outcomes(envs.publish())
    assert (told.repairs, told.compliance, told.alignment) == (0, 0.5, -6.0)
    assert sum(rewards) == pytest.approx(told.reward - 6.0)
    assert plain.num_games == 1


class Changing(Games):
    """Games of which Red is gone from every host once a step is done, as after a restore; true before."""

    def __init__(self, *hosts):
        super().__init__(1)
        self.now = np.zeros((1, 13), np.uint8)
        self.now[0, list(hosts)] = 1

    @property
    def compromised(self):
        return self.now

    @compromised.setter
    def compromised(self, value):
        self.now = value

    def step(self, actions):
        self.now[:] = 1 - self.now
        return np.zeros(1)


@pytest.mark.parametrize(("hosts", "compliant"), [((HOST["User1"],), 0), ((HOST["Op_Server0"],), 1)])
def test_a_repair_is_judged_by_the_true_state_before_it_and_not_by_what_it_leads_to(hosts, compliant):
    orders = Orders(1, "user>op_server>enterprise>defender>op_host", "state", 30.0)
    orders.begin(np.array([0]))
    paid = ordered_step(Changing(*hosts), orders, np.array([ACTION["Restore Op_Server0"]]), STEPS)
    assert paid.tolist() == [30.0 * compliant]


@pytest.mark.parametrize("backend", ["sync", "batched"])
def test_a_batch_goes_on_exactly_from_its_state(batch, backend):
    whole, other = batch(backend=backend), batch(backend=backend)
    whole.reset([1, 2, 3], options(3, 77, 119))
    played(whole, actions_of(STEPS + 11, 3))
    state = unpacked(packed(whole.state()))
    other.reset([4, 5, 6])
    other.restore(state)
    actions = actions_of(STEPS, 3, seed=1)
    assert played(whole, actions) == played(other, actions)


def test_the_order_may_be_written_in_three_ways(batch):
    for order in ("reverse", "user>op_host>enterprise>defender>op_server", [4, 3, 1, 0, 2]):
        task = gym.make(ID, order=order)
        assert task.reset(seed=0)[0]["context"].tolist() == code(PRESETS["reverse"]).tolist()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"order": "reversed"}, "order=reversed: must be one of critical_first,"),
        ({"order": [0, 1, 2, 3, 3]}, r"order=\[0, 1, 2, 3, 3\]: must be one of"),
        ({"order": "reverse", "compliance": "states"}, "compliance=states: must be one of state, history"),
        ({"order": "reverse", "alignment_weight": -1}, "alignment_weight=-1: must be a number of at least 0"),
        (
            {"order": "reverse", "alignment_weight": "much"},
            "alignment_weight=much: must be a number of at least 0",
        ),
        ({"compliance": "history"}, "compliance=history has no effect without an order"),
        ({"alignment_weight": 3.0}, "alignment_weight=3.0 has no effect without an order"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        probe(EnvConfig(id=ID, kwargs=wrong))


@pytest.mark.parametrize("backend", ["sync", "batched"])
def test_a_context_that_is_the_code_of_no_order_is_refused(batch, backend):
    envs = batch(backend=backend)
    for wrong in ([0] * 25, [1, 0, 0, 0, 0] * 5, [2 * x for x in code(ORDERS[0])]):
        with pytest.raises(
            EnvError, match="environment 0 of rank 0 raised ValueError in its first reset: the context"
        ):
            envs.reset([1, 2, 3], [{"context": wrong}] * 3)


def test_a_batch_without_an_order_takes_no_options_and_has_nothing_to_tell():
    envs = make_vec_env(EnvConfig(id=ID, backend="batched"), range(2), 0, 1)
    with pytest.raises(EnvError, match="takes no options"):
        envs.reset([0, 1], options(1, 2))
    assert probe(EnvConfig(id=ID)).journal is None


def test_the_journal_tells_means_over_episodes(batch, tmp_path):
    envs = batch(2, backend="batched")
    envs.reset([1, 2])
    for _ in range(STEPS):
        envs.step(np.array([0, ACTION["Restore Defender"]]))  # the highest in balanced
    journal = OrdersJournal(settings(), tmp_path)
    metrics = journal.note(envs.publish(), 0, 0.0)
    assert metrics["compliance"] == 0.75
    assert (metrics["repairs"], metrics["without_repairs"]) == (STEPS / 2, 0.5)
    assert metrics["alignment"] == pytest.approx((30 - 6) / 2)
    assert set(metrics) == set(journal.metrics)
    assert journal.note([b"", b""], 0, 0.0) == {}
