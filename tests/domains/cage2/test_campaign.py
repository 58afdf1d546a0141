"""A search over orders while a run trains: when trials end, what is told of them, whose policy the next begins with."""

import csv
import json

import numpy as np
import pytest

from ddppo.algorithms.task_sampler import TaskSampler, state_in
from ddppo.domains.cage2.search.campaign import Campaign
from ddppo.domains.cage2.search.orders import ORDERS, PRESETS, code, kendall, order_id, words
from ddppo.domains.cage2.search.outcomes import encode_episodes
from ddppo.domains.cage2.search.records import SearchRecords
from ddppo.domains.cage2.search.sampler import OrderSearch, ucb_over_orders
from ddppo.domains.cage2.search.settings import SearchSettings
from ddppo.errors import EnvOutputError, RunFolderError, TrainingError
from ddppo.search.ucb import COVERS, Estimate

NUM_ENVS = 4


class Listed:
    """Proposes orders from a list, and remembers what it was told; the posterior is the last value told."""

    def __init__(self, ids):
        self.ids, self.told, self.covariates = list(ids), [], []

    def ask(self, n=1):
        return [ORDERS[self.ids[len(self.told)]]]

    def tell(self, point, value, noise_variance=None, covariate=0.0):
        self.told.append((order_id(point), value))
        self.covariates.append(covariate)

    def posterior(self):
        mean = np.full(120, -100.0)
        for i, value in self.told:
            mean[i] = value
        return mean, np.ones(120)

    def best(self, k):
        mean, deviation = self.posterior()
        return [
            Estimate(ORDERS[i], mean[i] + 2, mean[i], deviation[i])
            for i in np.argsort(-mean, kind="stable")[:k]
        ]

    def state(self):
        return {"told": self.told}

    def restore(self, state):
        self.told = [tuple(each) for each in state["told"]]


def campaign(ids=range(120), **settings):
    defaults = {"name": "orders", "budget_episodes": 1000, "max_episodes_per_order": 5, "score_iterations": 2}
    defaults |= {"settle_iterations": 0}
    return Campaign(SearchSettings(**defaults | settings), NUM_ENVS, Listed(ids))


def news(order, compliant=10, repairs=10, reward=-1.0, num_envs=NUM_ENVS):
    told = {
        "order": order,
        "reward": reward,
        "alignment": 2.0,
        "compliant": compliant,
        "repairs": repairs,
        "steps": 9,
    }
    return [encode_episodes([told])] * num_envs


def iterate(search, compliant=10, repairs=10, reward=-1.0):
    """Play an iteration of the trial under way, begun if there is none; return the trial if it ended."""
    trial = search.current or search.begin(search.choose())
    return search.record(news(trial.order, compliant, repairs, reward))


def test_a_trial_ends_at_its_gate_with_compliance_and_repairs_enough():
    search = campaign(gate_compliance=0.95, gate_repairs=10)
    assert iterate(search, 18, 19) is None  # 0.947
    ended = iterate(search, 19, 20)
    assert (ended.ended_by, ended.passed, ended.episodes, ended.compliance, ended.repairs) == (
        "gate",
        True,
        8,
        0.95,
        80,
    )
    assert iterate(search, 2, 2) is None  # 8 repairs of 4 environments
    assert iterate(search, 3, 3).passed


def test_an_episode_without_a_repair_counts_half_so_that_few_repairs_do_not_pass():
    search = campaign()
    trial = search.begin(0)
    idle = news(trial.order, 0, 0)
    assert search.record([*news(trial.order, 20, 20)[:3], idle[0]]) is None
    assert trial.compliance == pytest.approx((3 + 0.5) / 4)


def test_a_trial_ends_at_the_limit_of_episodes_of_each_environment_and_has_failed():
    search = campaign(max_episodes_per_order=3)
    assert iterate(search, 0) is None
    assert iterate(search, 0) is None
    ended = iterate(search, 0)
    assert (ended.ended_by, ended.passed, ended.episodes) == ("limit", False, 3 * NUM_ENVS)


def test_a_plateau_ends_a_trial_whose_compliance_does_not_rise():
    search = campaign(plateau=2, max_episodes_per_order=100)
    assert iterate(search, 3) is None
    assert iterate(search, 5) is None
    assert iterate(search, 5) is None
    assert iterate(search, 5).ended_by == "plateau"
    for _ in range(9):
        assert iterate(campaign(max_episodes_per_order=100), 5) is None


def test_a_trial_that_is_to_settle_stays_at_its_gate_while_returns_rise():
    search = campaign(settle_iterations=2, score_iterations=1, max_episodes_per_order=100)
    for reward in (-50.0, -40.0, -30.0, -29.9):  # the last is no rise of 1 %
        assert iterate(search, reward=reward) is None
    assert iterate(search, 5, reward=-29.9) is None  # settled, but not at the gate
    ended = iterate(search, reward=-29.9)
    assert (ended.ended_by, ended.passed, ended.episodes, ended.score) == ("gate", True, 6 * NUM_ENVS, -29.9)


def test_the_budget_counts_the_episodes_of_all_environments_and_ends_the_last_trial():
    search = campaign(budget_episodes=5 * NUM_ENVS)
    for _ in range(3):
        iterate(search)
    assert (search.num_episodes, search.is_over) == (3 * NUM_ENVS, False)
    iterate(search, 0)
    ended = iterate(search, 0)
    assert (ended.ended_by, ended.passed, search.is_over) == ("budget", False, True)
    assert [trial.episodes_total for trial in search.trials] == [4, 8, 12, 20]
    assert [i for i, _ in search.proposer.told] == [0, 1, 2]  # the last was cut off, and is not scored
    assert (ended.score, ended.mean_return) == (None, -1.0)
    assert "trial 3 was cut off by the budget: " in search.said_of_end(ended)
    assert "not scored, it had a return of -1.00" in search.said_of_end(ended)


def test_a_run_that_ends_before_its_budget_as_where_episodes_were_lost_ends_its_trial_too():
    search = campaign()
    iterate(search)
    assert search.conclude() is None
    iterate(search, 0, reward=-7.0)
    ended = search.conclude()
    assert (ended.ended_by, ended.passed, search.current) == ("budget", False, None)
    assert len(search.proposer.told) == 1
    search.begin(5)  # of which nobody played an episode
    assert search.conclude() is None
    assert [trial.order_id for trial in search.trials] == [0, 1]
    assert len(search.candidates) == 2


def test_a_search_whose_only_trial_was_cut_off_has_a_best_order_without_a_posterior():
    search = campaign()
    iterate(search, 3, reward=-7.0)
    search.conclude()
    best = search.best()
    assert (best["order_id"], best["mean_return"], "mean" in best, "score" in best) == (0, -7.0, False, False)
    assert search.as_json()["posterior"] == {}


def test_the_age_of_a_policy_counts_the_episodes_of_all_its_ancestors_and_is_told_with_the_score():
    search = campaign(ids=[0, 119, 0, 1], inherit="same")
    for _ in range(4):
        iterate(search)
    assert [trial.age for trial in search.trials] == [4, 4, 8, 4]
    assert search.proposer.covariates == pytest.approx(np.log([4, 4, 8, 4]))
    alike = campaign(inherit="nothing")
    iterate(alike)
    assert alike.proposer.covariates == [0.0]  # trials that start alike


def test_the_progress_line_names_the_trial_its_order_both_rewards_and_the_best_so_far():
    search = campaign()
    iterate(search, 9, reward=-4.0)
    assert search.status() == [
        f"trial 0 {words(ORDERS[0])}",
        "game -4.00",
        "alignment +2.00",
        "compliance 90%",
    ]
    ended = iterate(search, 10, reward=-2.0)
    assert search.said_of_end(ended) == (
        f"trial 0 passed its gate: {words(ORDERS[0])}, score -3.00, compliance 100%, 8 episodes; best -3.00 "
        f"{words(ORDERS[0])}"
    )
    for _ in range(3):
        ended = iterate(search, reward=-2.0)
    assert search.status()[-1] == f"best -2.00 ({-2 - COVERS:.2f} to {-2 + COVERS:.2f}) {words(ORDERS[3])}"
    assert search.said_of_end(ended).endswith(search.status()[-1])


def test_the_score_is_the_mean_return_of_the_last_iterations_and_failed_gates_are_told_too():
    search = campaign(shortfall_weight=30.0, max_episodes_per_order=3)
    iterate(search, 5, reward=-100.0)
    iterate(search, 5, reward=-4.0)
    passed = iterate(search, 10, reward=-2.0)
    for reward in (-9.0, -4.0, -2.0):
        failed = iterate(search, 7, reward=reward)
    assert (passed.score, failed.score) == (-3.0, pytest.approx(-3.0 - 30 * (0.95 - 0.7)))
    assert search.proposer.told == [(0, passed.score), (1, failed.score)]
    assert passed.noise_variance == pytest.approx(np.var([-4] * 4 + [-2] * 4, ddof=1) / 8)


@pytest.mark.parametrize(
    ("inherit", "sources"),
    [
        ("nothing", [None, None, None, None]),
        ("shared", [None, 0, 1, 2]),
        ("same", [None, None, 0, None]),
        ("nearest", [None, 0, 0, 2]),
    ],
)
def test_a_trial_inherits_from(inherit, sources):
    search = campaign(ids=[0, 119, 0, 1], inherit=inherit)
    for _ in sources:
        iterate(search)
    assert (kendall(ORDERS[0], ORDERS[1]), kendall(ORDERS[0], ORDERS[119])) == (1, 10)
    assert [trial.inherited_from for trial in search.trials] == sources


def test_the_best_is_among_those_that_passed_if_any_did_whatever_the_others_return():
    search = campaign(shortfall_weight=0.0)
    assert search.best() is None
    for _ in range(5):
        iterate(search, 0, reward=50.0)
    assert (search.best()["order_id"], search.best()["passed"]) == (0, False)
    iterate(search, reward=-3.0)
    iterate(search, reward=-2.0)
    iterate(search, reward=-5.0)
    best = search.best()
    assert (best["order_id"], best["trial"], best["mean"], best["passed"]) == (2, 2, -2.0, True)
    assert best["order"] == words(ORDERS[2])


def test_the_best_trial_and_the_last_of_each_order_are_to_be_kept():
    search = campaign(ids=[7, 8, 7, 7], max_episodes_per_order=1)
    assert search.to_keep() == []
    iterate(search)
    iterate(search, 0, reward=-9.0)
    iterate(search)
    assert (search.best()["trial"], search.to_keep()) == (2, [1, 2])
    iterate(search, 0)  # fails where two passed: the best is still one of these
    assert (search.best()["trial"], search.to_keep()) == (2, [1, 2, 3])


def test_an_episode_of_another_order_and_an_iteration_without_one_are_errors():
    search = campaign()
    search.begin(0)
    with pytest.raises(
        TrainingError, match=r"environment 0 played an episode with the order defender>.* in trial 0 of"
    ):
        search.record(news(ORDERS[5]))
    with pytest.raises(
        TrainingError, match=r"no episode of trial 0 ended in an iteration: ppo\.rollout_steps must be"
    ):
        search.record([b""] * NUM_ENVS)
    once = news(ORDERS[0])
    with pytest.raises(
        TrainingError, match=r"environment 1 ended 2 episodes of trial 0 in an iteration: ppo\.roll"
    ):
        search.record([once[0], once[1] + b"\n" + once[1], *once[2:]])


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'{"order": [0, 1, 2, 3, 3], "reward": 0, "alignment": 0, "repairs": 0, "compliant": 0, "steps": 1}',
        b'{"order": [0, 1, 2, 3, 4], "reward": 0, "alignment": 0, "repairs": 1, "compliant": 2, "steps": 1}',
        b'{"order": [0, 1, 2, 3, 4], "reward": "much", "alignment": 0, "repairs": 1, "compliant": 1, "steps": 1}',
    ],
)
def test_news_that_tell_of_no_episode_name_the_environment(line):
    search = campaign()
    trial = search.begin(0)
    with pytest.raises(EnvOutputError, match="environment 1 published"):
        search.record([*news(trial.order, num_envs=1), line])


def test_a_restored_campaign_goes_on_to_the_same_trials_and_asks_for_the_same_orders():
    def play(search, first, last):
        for k in range(first, last):
            rng = np.random.default_rng(k)
            trial = search.current or search.begin(search.choose())
            reward = -float(kendall(trial.order, ORDERS[50])) + rng.normal()
            search.record(news(trial.order, int(rng.integers(7, 11)), 10, reward))

    def fresh():
        settings = SearchSettings(
            name="orders", max_episodes_per_order=2, inherit="same", plateau=4, settle_iterations=1
        )
        return Campaign(settings, NUM_ENVS, ucb_over_orders(beta=2.0, seed=3))

    whole = fresh()
    play(whole, 0, 40)
    assert len(whole.trials) > 15
    for stop in (1, 8, 17):
        part, again = fresh(), fresh()
        play(part, 0, stop)
        again.restore(json.loads(json.dumps(part.state())))
        assert again.digest("x") == part.digest("x")
        play(again, stop, 40)
        assert again.state() == whole.state()
        assert again.digest("x") == whole.digest("x") != part.digest("x")


# -- files ---------------------------------------------------------------------------------------------------------


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_episode_has_a_line_and_every_trial_its_three_best(tmp_path):
    preset = order_id(PRESETS["critical_first"])
    search = campaign(ids=[preset, 1, 2])
    records = SearchRecords(search, tmp_path)
    for compliant in (8, 10, 10):
        iterate(search, compliant)
        records.note()
    log = rows(tmp_path / "training_log.csv")
    assert [(row["trial"], row["episode"], row["environment"]) for row in log] == [
        (str(trial), str(4 * k + i + 1), str(i)) for k, trial in enumerate((0, 0, 1)) for i in range(4)
    ]
    assert list(log[0].values()) == [
        "0", str(preset), words(PRESETS["critical_first"]), "critical_first", "1", "0", "-1.0", "2.0", "1.0", "0.8",
        "10", "0", "train",
    ]  # fmt: skip
    assert (log[-1]["kind"], log[-1]["success"]) == ("other", "1")
    sampled = rows(tmp_path / "gp_sampling_log.csv")
    assert [(row["trial"], row["rank"]) for row in sampled] == [("1", "1"), ("1", "2"), ("1", "3")]
    assert (sampled[0]["order_id"], sampled[0]["mean"], sampled[0]["chosen"]) == (
        str(preset),
        "-1.0",
        "False",
    )
    orders = rows(tmp_path / "orders.csv")
    assert len(orders) == 120
    first = orders[0]
    assert [first[name] for name in ("rank", "ucb", "mean", "trials")] == ["1", "1.0", "-1.0", "1"]
    assert {row["trials"] for row in orders[2:]} == {"0"}
    assert (orders[-1]["ucb"], orders[-1]["trial_ids"]) == ("-98.0", "")
    assert [line.split(":")[0] for line in records.news()] == [
        "trial 0 passed its gate",
        "trial 1 passed its gate",
    ]
    assert records.news() == []
    told = json.loads((tmp_path / "search.json").read_text())
    assert [trial["ended_by"] for trial in told["trials"]] == ["gate", "gate"]
    assert len(told["posterior"]["mean"]) == len(told["posterior"]["deviation"]) == 120
    assert "2 trials, 2 passed" in records.summary()["search"]["said"]["search"]


def test_a_search_that_goes_on_from_a_checkpoint_drops_what_was_written_after_it(tmp_path):
    search = campaign(ids=[0, 1, 2, 3])
    records = SearchRecords(search, tmp_path)
    iterate(search)
    records.note()
    state = json.loads(json.dumps(search.state()))
    expected = (tmp_path / "training_log.csv").read_text()
    iterate(search, 5)
    records.note()
    with (tmp_path / "training_log.csv").open("a") as file:
        file.write("1,1,cut in the mid")
    again = campaign(ids=[0, 1, 2, 3])
    again.restore(state)
    records = SearchRecords(again, tmp_path)
    assert (tmp_path / "training_log.csv").read_text() == expected
    assert len(json.loads((tmp_path / "search.json").read_text())["trials"]) == 1
    iterate(again, 5)
    records.note()
    assert [row["trial"] for row in rows(tmp_path / "training_log.csv")] == ["0"] * 4 + ["1"] * 4


# -- as a task sampler -----------------------------------------------------------------------------------------------


class Run:
    """A run whose policy is a number; it learns by adding 1."""

    def __init__(self):
        self.policy = 0

    def policy_snapshot(self):
        return [self.policy]

    def put_policy_(self, snapshot):
        (self.policy,) = snapshot

    def number_of_rank_0(self, number):
        return number


def searching(ids=(5, 7, 5, 9), **settings):
    search, run = OrderSearch(campaign(ids, **settings), seed=3), Run()
    search.attach(run)
    return search, run


def learn(search, run, iteration, compliant=10):
    """Play an iteration by the order that is asked for, and learn from it; return its id."""
    _, options = search.sample(iteration).of(range(NUM_ENVS))
    assert options == [options[0]] * NUM_ENVS
    order = ORDERS[[code(order).tolist() for order in ORDERS].index(options[0]["context"])]
    run.policy += 1
    search.update(None, news(order, compliant))
    return order_id(order)


def test_a_search_says_the_order_of_the_trial_and_swaps_policies_where_it_ends():
    search, run = searching(inherit="same")
    assert search.every_iteration
    assert [learn(search, run, k, compliant) for k, compliant in ((1, 5), (2, 10))] == [5, 5]
    assert run.policy == 0  # order 7 was never tried, and begins with the first parameters
    assert learn(search, run, 3) == 7
    assert run.policy == 2  # of the last trial of order 5
    assert search.eval_options() == {"context": code(ORDERS[5]).tolist(), "alignment_weight": 0.0}
    assert search.metrics()["search/trial"] == 1


def test_seeds_of_a_search_are_new_in_every_iteration_and_those_of_other_runs():
    search, _ = searching()
    seeds = [search.sample(iteration).of(range(NUM_ENVS))[0] for iteration in (1, 2)]
    assert seeds == [TaskSampler(3).sample(iteration).of(range(NUM_ENVS))[0] for iteration in (1, 2)]


def test_a_search_ends_with_the_policy_of_the_best_order():
    search, run = searching(ids=(5, 7, 9), inherit="shared", budget_episodes=3 * NUM_ENVS)
    for k in (1, 2, 3):
        learn(search, run, k, compliant=10 if k == 2 else 5)
    run.policy = 99
    search.conclude()
    assert run.policy == 2
    assert search.eval_options()["context"] == code(ORDERS[5]).tolist()


# "program": as checkpoints of before there were samplers called it
@pytest.mark.parametrize("name", ["sampler", "program"])
def test_a_search_goes_on_from_checkpoints_of_now_and_of_before(name):
    search, run = searching(inherit="same")
    for k in (1, 2):
        learn(search, run, k)
    again, other = searching(inherit="same")
    again.load(state_in({"curriculum": None, name: search.state()}, again))
    other.policy = run.policy
    assert again.digest("x") == search.digest("x")
    assert learn(again, other, 3) == learn(search, run, 3)
    assert (other.policy, again.state()) == (run.policy, search.state())
    with pytest.raises(RunFolderError, match="the checkpoint holds no search"):
        again.load(state_in({"sampler": None}, again))
