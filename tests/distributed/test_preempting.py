"""ddp_preempt on real ranks: who ends early, that nobody waits, and that nothing is learned but what was collected."""

import json
import socket
from statistics import median

import numpy as np
import pytest
import torch

from ddppo.collectives.group import Group
from ddppo.launch.arguments import composed
from ddppo.loop.rank import Rank
from ddppo.records import checkpoint
from tests.distributed.forked_ranks import forked_ranks
from tests.distributed.test_independence import largest_difference
from tests.distributed.test_machines import TORCHRUN
from tests.support import PATIENCE_S, TINY, door, lines, run, started, summary, wait_until

T = 32
SIZES = [
    *TINY, "env.num_envs=8", f"ppo.rollout_steps={T}", "ppo.num_epochs=2", "ppo.num_minibatches=4", "dtype=float64",
    "dist.check_every=1",
]  # fmt: skip
PREEMPT = ["distributed=ddp_preempt", "dist.world_size=4"]


def state(run_dir):
    return checkpoint.load(checkpoint.last(run_dir / "checkpoints"))


def taken(run_dir, num_envs=2):
    """Steps of each of a rank's environments, `[iterations][ranks]`."""
    found = {}
    for line in lines(run_dir):
        steps = round(T * (1 - line["dist/preempted_fraction"]))
        assert line["rollout/local_steps"] == num_envs * steps
        found.setdefault(line["iteration"], []).append(steps)
    return list(found.values())


@pytest.mark.quick_cases("native")
@pytest.mark.parametrize(
    "task",
    [
        ["env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true"],  # in C++, network and tasks
        ["env=cartpole", "compile=off", "env.backend=sync"],
    ],
    ids=["native", "eager"],
)
def test_what_ranks_learn_is_what_one_process_learns_from_the_pooled_batch(task, tmp_path, monkeypatch):
    sizes = [*SIZES, *task, "ppo.total_steps=1500"]
    slow = "env.slow_ranks={1: 0.01, 3: 0.05}"  # those that are not go as fast as they can
    result = door(*sizes, *PREEMPT, slow, "dist.min_frac=.1", run_dir=tmp_path / "ranks")
    assert result.code == 0, result.stderr
    cuts = taken(tmp_path / "ranks")
    assert any(min(steps) < T for steps in cuts), cuts
    (tmp_path / "cuts").write_text(json.dumps(cuts))
    monkeypatch.setenv("CUTS", str(tmp_path / "cuts"))
    config = composed([*sizes, "distributed=tests.distributed.pooled:Pooled", "device=cpu"])
    worker = Rank(config, tmp_path, Group(), torch.device("cpu"))
    worker.run()
    found, expected = state(tmp_path / "ranks"), state(tmp_path)
    assert largest_difference(found["model"], expected["model"]) < 1e-9
    assert found["env_steps"] == expected["env_steps"] == sum(2 * sum(steps) for steps in cuts)
    np.testing.assert_allclose(found["window"], expected["window"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fraction", "throughput"])
def test_nobody_waits_for_more_than_a_third_of_the_steps_of_one_rank_of_four_that_is_far_slower(
    rule, tmp_path
):
    # A rollout of rank 3 takes 8 s, and is cut once the others are done, who take as long only on a machine so loaded
    # that their 32 steps of .003 s last for 2.
    slow = "env.slow_ranks={0: 0.003, 1: 0.003, 2: 0.003, 3: 0.25}"
    how = [*PREEMPT, f"dist.preempt_rule={rule}", "dist.min_frac=.05", f"ppo.total_steps={8 * 6 * T}"]
    result = door(*SIZES, "env=cartpole", slow, *how, run_dir=tmp_path)
    assert result.code == 0, result.stderr
    late = [line for line in lines(tmp_path) if line["iteration"] > 2]  # after warm-up
    assert {line["dist/awaited_ranks"] for line in late if line["rank"] == 3} == {3}
    assert median(x["dist/preempted_fraction"] for x in late if x["rank"] == 3) >= 0.7


def test_a_time_cap_ends_rollouts_of_any_rank_and_the_run_counts_what_was_done(tmp_path):
    how = [*SIZES, "env=cartpole", *PREEMPT, "dist.world_size=2", "dist.rollout_time_cap_s=.05"]
    result = door(*how, "env.slow_ranks={0: 0.01, 1: 0.01}", "ppo.total_steps=300", run_dir=tmp_path)
    assert result.code == 0, result.stderr
    cuts = taken(tmp_path, num_envs=4)
    assert all(T / 4 <= steps < T for of_ranks in cuts for steps in of_ranks)
    assert 300 <= summary(tmp_path)["env_steps"] == 4 * sum(map(sum, cuts))


@pytest.mark.parametrize("machines", ["aaaa", "aabb"])
def test_a_board_tells_every_rank_of_any_machine_once_enough_have_posted(machines):
    def post_in_turn(group):
        board, seen = group.board(), []
        for number in range(1, 80):  # more than the store keeps
            awaited = board.begin(number, 3)
            group.barrier()
            is_said = lambda n=number, w=awaited: np.count_nonzero(board.cells >= n) >= w  # noqa: E731
            seen.append(is_said())
            group.barrier()
            if (group.rank + number) % 4:  # another one is late each time, and hears of the three others
                board.post(number)
            wait_until(is_said, f"word of {number}")
            if not (group.rank + number) % 4:
                board.post(number)
            group.barrier()
        return any(seen), type(board).__name__

    with forked_ranks(4, post_in_turn, machines=dict(enumerate(machines))) as (_, results):
        said = results()
    assert said == [(False, "MemoryBoard" if machines == "aaaa" else "StoreBoard")] * 4


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    how = [*SIZES, "env=cartpole", *PREEMPT, "env.slow_ranks={3: 0.01}"]
    for arguments in ([*how, "ppo.total_steps=400"], [f"resume={tmp_path}", "ppo.total_steps=900"]):
        result = door(*arguments, run_dir=tmp_path)
        assert result.code == 0, result.stderr
    assert 900 <= summary(tmp_path)["env_steps"] == 2 * sum(map(sum, taken(tmp_path)))


@pytest.mark.slow
def test_over_two_machines_too_nobody_waits_for_the_slow_rank(tmp_path):
    how = [
        *SIZES,
        "env=cartpole",
        "distributed=ddp_preempt",
        "env.slow_ranks={3: 0.2}",
        "dist.min_frac=.05",
        "ppo.total_steps=1000",
    ]
    arguments = [*how, f"hydra.run.dir={tmp_path / 'run'}"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        unused_port = probe.getsockname()[1]
    at = ["--master-addr=127.0.0.1", f"--master-port={unused_port}"]
    first, second = ([*TORCHRUN, f"--node-rank={n}", *at, "-m", "ddppo.train", *arguments] for n in (0, 1))
    with started(second, DDPPO_MACHINE="b") as other:
        result = run(first, tmp_path / "run", DDPPO_MACHINE="a")
        assert result.code == 0, result.stderr
        assert other.wait(timeout=PATIENCE_S) == 0
    assert summary(tmp_path / "run")["derived"]["num_hosts"] == 2
    steps = [steps for *_, steps in taken(tmp_path / "run")]
    assert median(steps) <= T / 2
