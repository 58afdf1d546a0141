"""Every transition is learned from once, in order, and none is lost: in every topology, whoever is killed meanwhile."""

import json
import os
import signal
import sys

import numpy as np
import pytest

from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.seeding import derived_seed
from tests.distributed.counted import SCALE, length
from tests.support import NEVER_S, PATIENCE_S, TINY, door, lines, started, summary, wait_until

NUM_ENVS, STEPS = 8, 16
BATCH = NUM_ENVS * STEPS
TASK = (
    "env=gym", "env.id=tests.distributed.counted:Counted-v0", f"env.num_envs={NUM_ENVS}", "dtype=float64",
    f"ppo.rollout_steps={STEPS}", "ppo.num_epochs=1", f"ppo.total_steps={5 * BATCH}",
)  # fmt: skip
NO_TASK_OF_ONES_OWN = {"device"}  # its tasks are ours, in C++; what it learns is compared with ddp
HOW = {
    # What is too old is refused, by design; here nothing is.
    "async_actors": ("dist.world_size=3", "dist.max_lag=100000"),
    "env_workers_hetero": ("dist.world_size=3", "dist.env_shares=[5,3]"),
    "ddp": ("dist.world_size=2",),
    "ddp_preempt": ("dist.world_size=2",),
    "multi_learner": ("dist.world_size=4",),  # two learners
    "central_inference": (
        "dist.world_size=2",
        "env.num_workers=2",
        "dist.max_wait_ms=0",
        "env.kwargs.sleep_s=0.001",
    ),
}


def spread(topology):
    is_known = topology in TOPOLOGIES  # the others are presets
    backend = () if is_known and TOPOLOGIES[topology].env_backend else ("env.backend=sync",)
    return (*TINY, *TASK, f"distributed={topology}", *HOW.get(topology, ("dist.world_size=3",)), *backend)


@pytest.fixture
def counted(tmp_path):
    folder = tmp_path / "counted"
    folder.mkdir()
    return {"COUNTED": str(folder)}


@pytest.fixture
def trained(tmp_path, counted):
    def run(topology, *arguments, **environ):
        result = door(*spread(topology), *arguments, run_dir=tmp_path / "run", **counted, **environ)
        assert result.code == 0, result.stderr
        return result

    return run


def rollouts(run_dir):
    """Return what learners learned from, oldest first."""
    for path in sorted((run_dir.parent / "counted").glob("*.npz")):
        if path.stem.endswith(".part"):
            continue
        with np.load(path) as arrays:
            yield dict(arrays)


def learned(run_dir):
    """Return every stream's transitions (episode, step) in the order in which they were learned from.

    Checks on the way that each has its own reward and ends, and what comes before and after a pseudo-step.
    """
    streams = {}
    for rollout in rollouts(run_dir):
        at = (rollout["raw_obs"] / SCALE).astype(int)  # [T, E, 3]
        for e in range(at.shape[1]):
            before = None
            for t, (stream, episode, step) in enumerate(at[:, e].tolist()):
                if rollout["valid"][t, e]:
                    is_last = step + 1 == length(stream, episode)
                    assert rollout["rewards"][t, e] == step + 1
                    assert rollout["terminated"][t, e] == (is_last and episode % 2 == 0)
                    assert rollout["truncated"][t, e] == (is_last and episode % 2 == 1)
                    assert rollout["episode_start"][t, e] == (step == 0)
                    streams.setdefault(stream, []).append((episode, step))
                else:  # its process was lost: the row before bootstraps from the observation that is here
                    assert rollout["rewards"][t, e] == 0
                    if before is not None:
                        assert (stream, episode, step) in (before, (before[0], before[1] + 1, 0))
                        if before[1] == episode:
                            assert rollout["next_values"][t - 1, e] == rollout["values"][t, e]
                before = (stream, episode, step + 1)
    return streams


def assert_each_once_and_in_order(streams):
    for stream, found in streams.items():
        wanted = ((episode, step) for episode in range(10**6) for step in range(length(stream, episode)))
        assert found == [next(wanted) for _ in found]


def first_seeds(iteration):
    return {derived_seed(0, "env", i, iteration) for i in range(NUM_ENVS)}


@pytest.mark.quick_cases("ddp", "env_workers_hetero", "central_inference", "async_actors", "ddp_preempt")
@pytest.mark.parametrize("topology", sorted({*TOPOLOGIES, "env_workers_hetero"} - NO_TASK_OF_ONES_OWN))
def test_each_transition_is_learned_from_once(trained, topology):
    run_dir = trained(topology).run_dir
    streams = learned(run_dir)
    assert_each_once_and_in_order(streams)
    assert set(streams) == first_seeds(0)
    assert sum(map(len, streams.values())) == summary(run_dir)["env_steps"] == 5 * BATCH


@pytest.mark.parametrize(
    ("how", "said"), [("1:45", "ended (exit code -9)"), ("1:45:hangs", "no answer within 10 s")]
)
def test_an_observer_that_dies_or_hangs_costs_no_transition(trained, how, said):
    timeout_s = 20 if how.endswith("hangs") else NEVER_S  # another agent waits meanwhile
    arguments = ("dist.on_lost=restart", f"dist.timeout_s={timeout_s:g}")
    result = trained("central_inference", *arguments, VICTIM=how)  # in its second rollout
    streams = learned(result.run_dir)
    assert_each_once_and_in_order(streams)
    assert set(streams) == first_seeds(0)
    assert all(rollout["valid"].all() for rollout in rollouts(result.run_dir))
    of_rank_1 = [line for line in lines(result.run_dir) if line["rank"] == 1][:3]
    assert [line["dist/restarts"] for line in of_rank_1] == [0, 1, 1]
    assert [line["rollout/env_restarts"] for line in of_rank_1] == [0, 2, 2]
    assert [line["dist/lost_episodes"] for line in of_rank_1] == [0, 0, 0]
    assert said in result.stderr
    assert "it is started again (restart 1 of 3), and repeats its steps" in result.stderr
    assert summary(result.run_dir)["restarts"] == 0


def test_an_observer_whose_place_nobody_can_take_costs_the_step_under_way_and_no_other(trained):
    how = ("dist.on_lost=restart", "log.episode_window=100000")
    result = trained("central_inference", *how, VICTIM="1:45:astray")  # in its second rollout
    streams = learned(result.run_dir)
    assert_each_once_and_in_order(streams)
    assert first_seeds(0) < set(streams)
    assert len(streams) == NUM_ENVS + 2  # two environments were made anew
    assert sum(map(len, streams.values())) == summary(result.run_dir)["env_steps"]
    assert sum((~rollout["valid"]).sum() for rollout in rollouts(result.run_dir)) == 2
    assert [line["dist/restarts"] for line in lines(result.run_dir) if line["rank"] == 1][:3] == [0, 1, 1]
    assert "of rank 1 ended (exit code -9)" in result.stderr
    assert "do not come to where they were: they begin new episodes" in result.stderr
    # Of episodes that were cut nobody saw the return.
    whole = [step + 1 for n, found in streams.items() for at, step in found if step + 1 == length(n, at)]
    last = [line for line in lines(result.run_dir) if line["rank"] == 0][-1]
    assert last["rollout/length_mean"] == pytest.approx(np.mean(whole))
    assert last["rollout/return_mean"] == pytest.approx(np.mean([n * (n + 1) / 2 for n in whole]))


def test_what_follows_the_last_checkpoint_is_learned_from_again(trained):
    # 4 environments of a rank, 64 steps an iteration: it dies in the third, and two are saved.
    result = trained("ddp", "dist.on_lost=restart", "checkpoint.every_steps=1", VICTIM="1:140")
    streams = learned(result.run_dir)
    assert_each_once_and_in_order(streams)
    assert set(streams) == first_seeds(0)  # environments go on in the midst of their episodes
    assert sum(map(len, streams.values())) == 5 * BATCH
    assert summary(result.run_dir)["env_steps"] == 5 * BATCH
    assert summary(result.run_dir)["restarts"] == 1
    (restart,) = [json.loads(line) for line in (result.run_dir / "restarts.jsonl").read_text().splitlines()]
    assert restart["goes_on_from"] == 2
    assert "rank 1 of 2 ended with signal 9" in result.stderr
    assert "going on from iteration 2 (restart 1 of 3)" in result.stderr


@pytest.mark.slow
def test_a_killed_actor_costs_the_rollout_under_way_and_the_others_go_on(tmp_path, counted):
    run_dir = tmp_path / "run"
    arguments = [*spread("async_actors"), "dist.on_lost=restart", "ppo.total_steps=100000000"]
    command = [sys.executable, "-m", "ddppo.train", *arguments, f"hydra.run.dir={run_dir}"]

    def has_come_back():
        assert process.poll() is None, process.communicate()
        return len(learned(run_dir)) > NUM_ENVS

    with started(command, **counted, VICTIM="1:140") as process:
        wait_until(has_come_back, "rollout of the actor's next process")
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    streams = learned(run_dir)
    assert_each_once_and_in_order(streams)
    assert first_seeds(0) < set(streams)
    assert len(streams) == NUM_ENVS + 4  # those of one actor began anew
    assert sum(map(len, streams.values())) == summary(run_dir)["env_steps"]
    assert summary(run_dir)["restarts"] == 1
    assert "rank 1 ended with signal 9; it is started again, the others go on (restart 1 of 3)" in stderr
