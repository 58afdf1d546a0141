"""async_actors with real processes: in step where max_lag=0, else each at its own pace, with lags that are bounded."""

import json
import os
import re
import signal
import sys

import pytest
import torch
import torch.distributed as dist

from ddppo import native
from ddppo.collectives.peers import OwnPace
from ddppo.launch.arguments import composed
from ddppo.loop.compute import choose_compute
from ddppo.loop.rank import Rank
from ddppo.ppo.cpp.network import CppActing
from tests.distributed.test_independence import EVERYTHING, ITERATIONS, SIZES, largest_difference, state
from tests.fault.test_bad_endings import iterations, running, wait_for_end_of_ranks, wait_for_iteration
from tests.support import (
    NEVER_S,
    PATIENCE_S,
    TINY,
    descendants,
    door,
    lines,
    rank_of,
    run,
    summary,
    wait_until,
)

ASYNC = [*TINY, "distributed=async_actors", "dist.world_size=4"]
# A step waits and computes nothing, so that cores are not what actors share.
WAITING = [
    "env=synthetic", "env.num_envs=3", "env.backend=sync", "env.kwargs.step_time_s=0.003", "ppo.rollout_steps=16",
    "ppo.num_epochs=1", "ppo.num_minibatches=1", "ppo.total_steps=1200",
]  # fmt: skip
METRICS = ["log.metrics=[tests.distributed.own_parts:pushes,tests.distributed.own_parts:Longest]"]
LONG = [*ASYNC, *WAITING, "ppo.total_steps=100000000"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    def of(name, *arguments):
        if name not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            result = door(*arguments, run_dir=folder)
            assert result.code == 0, result.stderr
            done[name] = folder
        return done[name]

    done = {}
    return of


@pytest.fixture(scope="module")
def half_frozen(tmp_path_factory):
    """A run in whose midst rank 3 stood still, and the numbers of the iterations done before and meanwhile."""
    run_dir = tmp_path_factory.mktemp("run") / "run"
    with running(*LONG, f"dist.timeout_s={NEVER_S:g}", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 5, process)
        (actor,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 3]
        os.kill(actor, signal.SIGSTOP)
        before = iterations(run_dir)[-1]
        wait_for_iteration(run_dir, before + 30, process)
        meanwhile = iterations(run_dir)[-1]
        os.kill(actor, signal.SIGCONT)
        wait_until(lambda: sum(of_learner(run_dir, "dist/refused")) > 0, "rollout that is too old")
        wait_for_iteration(run_dir, iterations(run_dir)[-1] + 5, process)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    return run_dir, before, meanwhile


def steps_of(run_dir, rank):
    return [line["rollout/local_steps"] for line in lines(run_dir) if line["rank"] == rank]


def of_learner(run_dir, name):
    return [line[name] for line in lines(run_dir) if line["rank"] == 0]


def told(run_dir, name):
    return [line[name] for line in lines(run_dir) if name in line]


def test_with_max_lag_0_it_learns_what_sync_actors_learns(ran):
    how = [*TINY, *SIZES, *EVERYTHING, *METRICS, "env=cartpole", "dtype=float64", "dist.world_size=3"]
    a = state(ran("sync", *how, "distributed=sync_actors"))
    b = state(ran("async", *how, "distributed=async_actors", "dist.max_lag=0"))
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == b["window"]
    for name in ("user/push", "user/transitions", "user/longest/of_first"):
        found = told(ran("async"), name)
        assert found == pytest.approx(told(ran("sync"), name), rel=1e-12)
        assert len(found) >= ITERATIONS - 1  # the first episode may outlast an iteration
    assert told(ran("async"), "user/transitions") == [256] * ITERATIONS


def test_so_it_does_with_memory_in_sequences_whose_states_the_actors_kept(ran):
    how = [*TINY, *SIZES, "env=pendulum", "env.max_episode_steps=20", "model=gru", "ppo.sequence_length=8"]
    how += ["dtype=float64", "dist.world_size=3"]
    a = state(ran("sync with memory", *how, "distributed=sync_actors"))
    b = state(ran("async with memory", *how, "distributed=async_actors", "dist.max_lag=0"))
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == b["window"] != []


@pytest.mark.slow
def test_old_rollouts_of_a_policy_with_memory_are_corrected(ran):
    sizes = ["env=tmaze", "model=gru", "model.memory_size=8", "env.num_envs=8", "ppo.rollout_steps=16"]
    how = ["ppo.num_minibatches=2", "ppo.sequence_length=8", "ppo.total_steps=3000", "dist.correction=vtrace"]
    folder = ran("old with memory", *ASYNC, *sizes, *how, "ppo.rollouts_per_update=1")
    assert max(of_learner(folder, "dist/lag_max")) >= 1
    assert summary(folder)["env_steps"] >= 3000


def test_actors_of_3_3_and_2_environments_are_within_the_lag_and_an_update_learns_from_all_that_came(ran):
    sizes = ["env=cartpole", "env.num_envs=8", "ppo.rollout_steps=32", "ppo.total_steps=6000"]
    folder = ran("unequal", *ASYNC, *sizes, "ppo.normalize_rewards=true", "dist.max_lag=1")
    assert max(of_learner(folder, "dist/lag_max")) <= 1
    learned = of_learner(folder, "rollout/steps")
    assert all(3 * 2 * 32 <= steps <= 3 * 3 * 32 and steps % 32 == 0 for steps in learned)
    assert sum(learned) == summary(folder)["env_steps"]
    for rank, num_envs in (1, 3), (2, 3), (3, 2):
        assert all(steps % (32 * num_envs) == 0 for steps in steps_of(folder, rank))
        assert sum(steps_of(folder, rank)) > 0


@pytest.mark.slow
def test_one_rollout_of_any_of_them_is_learned_from_with_its_own_number_of_environments(ran):
    sizes = ["ppo=a3c", "env=cartpole", "env.num_envs=8", "ppo.total_steps=3000", "dist.correction=vtrace"]
    folder = ran("one of unequal", *ASYNC, *sizes, *METRICS)
    of_one = summary(folder)["config"]["ppo"]["rollout_steps"]
    assert set(of_learner(folder, "rollout/steps")) <= {2 * of_one, 3 * of_one}
    assert told(folder, "user/transitions") == of_learner(folder, "rollout/steps")


def test_an_actor_that_stands_still_holds_nobody_up_and_what_it_acted_is_never_too_old(half_frozen):
    run_dir, before, meanwhile = half_frozen
    assert max(of_learner(run_dir, "dist/lag_max")) == 1
    still = [line for line in lines(run_dir) if before + 2 < line["iteration"] <= meanwhile]
    assert {line["rollout/local_steps"] for line in still if line["rank"] == 3} == {0}
    assert sum(line["rollout/local_steps"] for line in still) == 3 * 16 * (meanwhile - before - 2)
    assert sum(of_learner(run_dir, "dist/refused")) > 0


def test_parts_of_an_actors_time_sum_to_it_and_lags_count_the_rollouts_of_an_update(half_frozen):
    folder, *_ = half_frozen
    for line in lines(folder):
        parts = sum(line[f"time/t_{part}"] for part in ("rollout", "learn", "sync", "comm", "other"))
        assert parts == pytest.approx(line["time/t_iter"], rel=1e-6)
        assert line["time/t_other"] > -1e-6
        waits = line["time/t_wait_learner"] + line["time/t_wait_actor"]
        assert waits == pytest.approx(line["time/t_sync"], rel=1e-6)
        if line["rank"] == 0:
            assert sum(line[f"dist/lag_{lag}"] for lag in ("0", "1", "2_3", "4_7", "8")) == 3
    actors = [line for line in lines(folder) if line["rank"] > 0]
    assert sum(line["rollout/local_steps"] for line in actors) == summary(folder)["env_steps"]
    assert [line["time/t_iter"] for line in actors if line["rank"] == 3].count(0) > 0  # no news


def test_actors_gain_nothing_by_the_time_of_evaluations(ran):
    how = ["ppo.total_steps=480", "eval.every_steps=48", "eval.episodes=1", "env.kwargs.episode_steps=30"]
    folder = ran("evaluated", *ASYNC, *WAITING, *how)
    evaluated = [line for line in lines(folder) if "eval/return_mean" in line]
    assert len(evaluated) >= 9  # of 90 ms each, longer than a rollout
    # Ten updates, each of a rollout of 48 ms of every actor.
    assert summary(folder)["wall_s"] > 9 * 0.048


@pytest.mark.quick_cases("vtrace")
@pytest.mark.parametrize("correction", ["vtrace", "clip", "none"])
def test_one_rollout_an_update_is_learned_from_by_every_correction(ran, correction):
    folder = ran(
        correction,
        *ASYNC,
        *METRICS,
        "ppo=a3c",
        "env=cartpole",
        "env.num_envs=12",
        "ppo.total_steps=2000",
        f"dist.correction={correction}",
    )
    sizes = summary(folder)["derived"]
    assert sizes["B"] == sizes["E"] * sizes["T"]
    assert {line["rollout/steps"] for line in lines(folder) if line["rank"] == 0} == {sizes["B"]}
    assert max(of_learner(folder, "dist/lag_max")) <= 3
    assert told(folder, "user/transitions") == [sizes["B"]] * len(of_learner(folder, "dist/lag_max"))


def test_a_killed_actor_is_named_and_ends_the_run(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        (victim,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 2]
        os.kill(victim, signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "rank 2 of 4 ended with signal 9" in stderr
        assert "lost rank 2, an actor" in stderr
        wait_for_end_of_ranks(run_dir)


def test_an_actor_that_hangs_is_named_though_others_have_rollouts(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "dist.timeout_s=10", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        (victim,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 2]
        os.kill(victim, signal.SIGSTOP)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert re.search(r"had no rollout from rank 2 for 1\d\.", stderr)
    assert re.search(r"rank 2 of 4 did not answer for 1\d\.", stderr)


@pytest.mark.slow
def test_a_killed_actor_comes_back_where_it_may_and_the_others_go_on(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "dist.on_lost=restart", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        before = {rank_of(pid): pid for pid in descendants(str(run_dir))}
        os.kill(before[2], signal.SIGKILL)
        wait_until(lambda: of_learner(run_dir, "dist/restarts")[-1] == 1, "actor that came back")
        wait_until(lambda: steps_of(run_dir, 2)[-1] > 0, "rollout of it")
        assert set(before.values()) - set(descendants(str(run_dir))) == {before[2]}
        os.kill(before[1], signal.SIGTERM)  # one rank, an actor, stops all in good order
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75
    assert "resume=" in stderr
    assert summary(run_dir)["status"] == "stopped"
    last = summary(run_dir)["env_steps"]
    command = [sys.executable, "-m", "ddppo.train", f"resume={run_dir}", f"ppo.total_steps={last + 500}"]
    refused = run(command, run_dir)
    assert refused.code == 2
    assert (
        "actors go at their own pace, and their timing is chance: resume_state=approximate" in refused.stderr
    )
    command.append("resume_state=approximate")
    again = run(command, run_dir)
    assert again.code == 0, again.stderr
    assert "goes on approximately" in again.stderr
    assert summary(run_dir)["env_steps"] >= last + 500


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["distributed=async_actors", "dist.world_size=1"], "takes at least 2 ranks"),
        (["distributed=async_actors", "dist.max_lag=-1"], "dist.max_lag=-1"),
        (["distributed=async_actors", "dist.correction=v_trace"], "vtrace"),
        (["distributed=async_actors", "dist.collective=gloo"], "has no collectives"),
        (["distributed=sync_actors", "dist.max_lag=1"], "it is of distributed=async_actors"),
        (["dist.correction=vtrace"], "it is of distributed=async_actors"),
        (["ppo.rollouts_per_update=2"], "has no effect with distributed=ddp"),
    ],
)
def test_what_cannot_be_is_a_sentence(arguments, said, tmp_path):
    result = door(*TINY, "env=cartpole", *arguments, run_dir=tmp_path / "run")
    assert result.code == 2
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_an_actor_computes_its_policy_in_cpp_where_the_learner_does(tmp_path):
    store, machine = dist.HashStore(), {"number": 1, "hostname": "", "cpu": "", "gpu": None, "cores": "1"}
    store.set("ddppo/machine/0", json.dumps(machine | {"quota": 1}))
    config = composed(["env=cartpole", "distributed=async_actors", "dist.world_size=2"])
    worker = Rank(config, tmp_path, OwnPace(store, 1, 2, timeout_s=PATIENCE_S), torch.device("cpu"))
    choose_compute(worker.context, worker.progress, only_cpp=True)
    assert isinstance(worker.context.topology.collector.acting, CppActing)
    worker.context.topology.close()
