"""A search over orders on real ranks: the same trials whoever shares the work, and across kill -9."""

import json
import os
import signal
import sys

import numpy as np
import pytest
import torch

from ddppo.domains.cage2.search.orders import ORDERS, kendall
from tests.distributed.test_independence import largest_difference
from tests.domains.cage2.ordered import HIDDEN
from tests.support import TINY, descendants, door, lines, run, started, summary, wait_until

TASK = "tests.domains.cage2.ordered:tests/Ordered-v0"
SIZES = [
    "env=gym", f"env.id={TASK}", "env.num_envs=8", "model=order_conditioned", "ppo.rollout_steps=10",
    "ppo.num_minibatches=2", "ppo.learning_rate=5e-3", "ppo.lr_schedule=none", "dtype=float64", "dist.check_every=1",
    "checkpoint.every_steps=80",
]  # fmt: skip
BUDGET = 240
TWO_RANKS = ["dist.world_size=2", "env.backend=pool"]
SEARCH = [
    "search.name=orders", f"search.budget_episodes={BUDGET}", f"ppo.total_steps={10 * BUDGET}",
    "search.max_episodes_per_order=4", "search.gate_compliance=0.8", "search.settle_iterations=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    def of(*arguments, total=SEARCH):
        if arguments not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            result = door(*TINY, *SIZES, *total, *arguments, run_dir=folder)
            assert result.code == 0, result.stderr
            done[arguments] = folder
        return done[arguments]

    done = {}
    return of


def told(run_dir):
    return json.loads((run_dir / "search.json").read_text())


def log(run_dir, name="training_log.csv"):
    return [line.split(",") for line in (run_dir / name).read_text().splitlines()]


def state(run_dir, iteration=BUDGET // 8):
    return torch.load(run_dir / "checkpoints" / f"iteration_{iteration:08d}.pt", weights_only=True)


def assert_same(one, other, iteration=BUDGET // 8):
    """Compare all that two searches tried, heard and learned, but what orders of sums change."""
    for name in ("training_log.csv", "gp_sampling_log.csv"):
        for mine, theirs in zip(log(one, name), log(other, name), strict=True):
            for expected, found in zip(mine, theirs, strict=True):
                try:
                    assert float(found) == pytest.approx(float(expected), rel=1e-6, abs=1e-6), (
                        name,
                        mine,
                        theirs,
                    )
                except ValueError:
                    assert found == expected, (name, mine, theirs)
    for mine, theirs in zip(told(one)["trials"], told(other)["trials"], strict=True):
        assert mine.keys() == theirs.keys()
        assert mine == {
            key: pytest.approx(x, rel=1e-9) if isinstance(x, float) else x for key, x in theirs.items()
        }
    assert largest_difference(state(one, iteration)["model"], state(other, iteration)["model"]) <= 1e-9


def test_trials_and_policies_are_those_of_one_rank(searched):
    alone = searched()
    assert len(told(alone)["trials"]) > 5
    assert {trial["ended_by"] for trial in told(alone)["trials"]} > {"gate"}
    assert_same(alone, searched(*TWO_RANKS))


@pytest.mark.quick_cases("env_workers-3")
@pytest.mark.parametrize(
    ("topology", "world_size"),
    [("sync_actors", 3), ("multi_learner", 4), ("env_workers", 3), ("central_inference", 2)],
)
def test_trials_and_policies_are_the_same_under_every_topology_in_step(searched, topology, world_size):
    assert_same(searched(), searched(f"distributed={topology}", f"dist.world_size={world_size}"))


@pytest.mark.slow
def test_a_search_killed_with_minus_9_goes_on_to_the_same_trials(searched, tmp_path):
    run_dir, whole = tmp_path / "run", searched(*TWO_RANKS)
    command = ["-m", "ddppo.train", *TINY, *SIZES, *SEARCH, *TWO_RANKS, f"hydra.run.dir={run_dir}"]
    with started([sys.executable, *command]) as process:
        saved = run_dir / "checkpoints"
        reached = lambda: any(path.stem >= "iteration_00000010" for path in saved.glob("iteration_*.pt"))  # noqa: E731
        wait_until(reached, "checkpoint after 10 iterations")
        for pid in (*descendants(str(run_dir)), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert not (run_dir / "summary.json").exists()
    assert len(log(run_dir)) < len(log(whole))
    resumed = run([sys.executable, "-m", "ddppo.train", f"resume={run_dir}"], run_dir)
    assert resumed.code == 0, resumed.stderr
    assert_same(whole, run_dir)
    assert summary(run_dir)["params_hash"] == summary(whole)["params_hash"]
    assert summary(run_dir)["search"] == summary(whole)["search"]


def test_every_environment_begins_an_episode_of_the_trials_order_in_every_iteration(searched):
    header, *rows = log(searched())
    assert len(rows) == BUDGET
    column = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    assert column["environment"] == [str(i) for i in range(8)] * (BUDGET // 8)
    assert column["episode"] == [str(k + 1) for k in range(BUDGET)]
    trials = told(searched())["trials"]
    assert [trials[int(k)]["order_id"] for k in column["trial"]] == [int(x) for x in column["order_id"]]
    sums = [
        float(a) + float(b)
        for a, b in zip(column["reward_environment"], column["reward_alignment"], strict=True)
    ]
    assert [float(x) for x in column["reward_total"]] == pytest.approx(sums)
    assert sum(trial["episodes"] for trial in trials) == trials[-1]["episodes_total"] == BUDGET


def test_the_policy_of_the_end_is_that_of_the_best_order(searched):
    run_dir = searched()
    best, last = told(run_dir)["best"], state(run_dir)
    kept = last["sampler"]["kept"][best["trial"]][0]
    assert torch.equal(torch.cat([x.flatten() for x in last["model"].values()]), kept)
    latest = {trial["order_id"]: trial["trial"] for trial in told(run_dir)["trials"]}
    assert {*latest.values(), best["trial"]} <= set(last["sampler"]["kept"])
    passed = [trial for trial in told(run_dir)["trials"] if trial["passed"]]
    mean = told(run_dir)["posterior"]["mean"]
    assert best["order_id"] == max(passed, key=lambda trial: mean[trial["order_id"]])["order_id"]
    assert "best order" in summary(run_dir)["search"]["said"]
    code = np.eye(5)[list(ORDERS[best["order_id"]])].reshape(-1).tolist()
    assert last["options"] == {"context": code, "alignment_weight": 0.0}  # of evaluations
    scores = json.loads(door(f"run={run_dir}", "json=true", run_dir=run_dir, module="ddppo.evaluate").stdout)
    away = kendall(ORDERS[best["order_id"]], HIDDEN)
    assert -away - 1 < scores["return_mean"] <= -away  # by this order, and without alignment


def parameters_at(run_dir, iteration):
    return torch.cat([x.flatten() for x in state(run_dir, iteration)["model"].values()])


@pytest.mark.quick_cases("shared")
@pytest.mark.parametrize("inherit", ["nothing", "shared", "same", "nearest"])
def test_a_trial_begins_with_the_policy_that_it_inherits(searched, inherit):
    how = [f"search.inherit={inherit}", "checkpoint.keep=99"]
    run_dir = searched(*how)
    trials, last = told(run_dir)["trials"], state(run_dir)
    assert len(trials) > 4
    kept, start = {}, None  # policies as trials ended, and as the first began
    for trial in trials[:-1]:
        iteration = trial["episodes_total"] // 8
        at_end = state(run_dir, iteration)["sampler"]["kept"]
        kept[trial["trial"]] = at_end[trial["trial"]][0]
        following = trials[trial["trial"] + 1]
        source = following["inherited_from"]
        begun = parameters_at(run_dir, iteration)
        if source is None:
            assert inherit in ("nothing", "same")
            start = begun if start is None else start
            assert torch.equal(begun, start)
            assert not torch.equal(begun, kept[trial["trial"]])
        else:
            assert torch.equal(begun, kept[source])
    if inherit == "nothing":
        assert all(trial["inherited_from"] is None for trial in trials)
    assert last["env_steps"] == 10 * BUDGET


@pytest.mark.slow
def test_the_search_finds_an_order_near_the_hidden_one(searched):
    more = [
        "search.budget_episodes=800",
        "ppo.total_steps=8000",
        "dist.check_every=0",
        "checkpoint.every_steps=0",
    ]
    best = told(searched(*more))["best"]
    assert kendall(ORDERS[best["order_id"]], HIDDEN) <= 2


def test_a_task_that_plays_another_order_ends_the_run_and_is_named(tmp_path):
    how = [*TINY, *SIZES, *SEARCH, "env.kwargs.fault=plays-another-order", "dist.world_size=2"]
    result = door(*how, run_dir=tmp_path / "run")
    assert result.code == 1
    assert "environment 0 played an episode with the order" in result.stderr


@pytest.mark.slow
def test_the_workflows_of_cage_2_are_searched_alike_by_two_ranks(tmp_path):
    small = [
        *TINY, "experiment=workflows",
        "env.num_envs=8", "ppo.rollout_steps=20", "search.budget_episodes=80", "search.gate_compliance=0.5",
        "search.max_episodes_per_order=3", "search.settle_iterations=0", "dtype=float64", "dist.check_every=1",
    ]  # fmt: skip
    folders = [tmp_path / "one", tmp_path / "two"]
    for world_size, folder in enumerate(folders, start=1):
        ranks = [f"hydra.run.dir={folder}", f"dist.world_size={world_size}"]
        result = door(*small, *ranks, run_dir=folder)
        assert result.code == 0, result.stderr
    assert_same(*folders, iteration=10)
    assert [lines(folder)[0]["task/repairs"] > 0 for folder in folders] == [True, True]
    assert len(log(folders[0])) == 81


def test_the_search_as_the_original_system_runs_it_is_one_word_and_says_how_each_trial_ended(tmp_path):
    small = [
        *TINY, "experiment=workflows_original", "env.num_envs=4", "ppo.rollout_steps=10", "search.gate_repairs=1",
        "search.budget_episodes=16", "search.gate_compliance=0", "eval.final_episodes=2", "log.progress=plain",
    ]  # fmt: skip
    run_dir = tmp_path / "run"
    result = door(*small, run_dir=run_dir)
    assert result.code == 0, result.stderr
    assert [trial["ended_by"] for trial in told(run_dir)["trials"]] == [
        "gate"
    ] * 4  # each after one iteration
    config = summary(run_dir)["config"]
    assert (config["env"]["backend"], config["ppo"]["num_minibatches"]) == ("pool", 1)
    assert config["ppo"]["normalize_rewards"] is False
    assert result.stdout.count(" passed its gate: ") == 4
    assert "  trial 0 " in result.stdout  # on the line of progress
    assert "  alignment " in result.stdout


def test_a_search_that_is_complete_goes_on_with_a_larger_budget(tmp_path):
    run_dir, small = tmp_path / "run", ["search.budget_episodes=80", "ppo.total_steps=800"]
    assert door(*TINY, *SIZES, *SEARCH, *small, run_dir=run_dir).code == 0
    before = told(run_dir)["trials"]
    more = ["search.budget_episodes=160", "ppo.total_steps=1600"]
    result = run([sys.executable, "-m", "ddppo.train", f"resume={run_dir}", *more], run_dir)
    assert result.code == 0, result.stderr
    after = told(run_dir)["trials"]
    assert after[: len(before)] == before
    assert after[-1]["episodes_total"] == 160
    assert len(log(run_dir)) == 161
