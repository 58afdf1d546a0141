"""Topologies learn what one process learns: the same run spread in other ways, with real processes."""

import sys

import pytest
import torch

from ddppo.distributed.topologies.contract import Sizes
from ddppo.distributed.topologies.known import TOPOLOGIES
from ddppo.fragments import fragments
from ddppo.launch.arguments import composed
from tests.distributed.test_independence import EVERYTHING, ITERATIONS, SIZES, largest_difference, state
from tests.support import TINY, door, lines, run, summary

SPREAD = {"sync_actors": 3, "env_workers": 3, "central_inference": 2}  # and of how many ranks
PACES = (
    (),
    ("dist.max_wait_ms=0",),
    ("dist.max_wait_ms=2", "env.num_workers=2", "compile=off"),
)  # of observers


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    def of(topology, world_size, *arguments):
        key = (topology, world_size, *arguments)
        if key not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            how = [
                f"distributed={topology}",
                f"dist.world_size={world_size}",
                "dtype=float64",
                "dist.reduction=fast",
            ]
            result = door(*TINY, *SIZES, *how, *arguments, run_dir=folder)
            assert result.code == 0, result.stderr
            done[key] = folder
        return done[key]

    done = {}
    return of


@pytest.mark.quick_cases("env_workers-cartpole", "central_inference-pendulum", "sync_actors-cartpole")
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
@pytest.mark.parametrize("topology", SPREAD)
def test_a_topology_learns_what_one_process_learns(learned, topology, env):
    alone, spread = learned("single", 1, f"env={env}"), learned(topology, SPREAD[topology], f"env={env}")
    a, b = state(alone), state(spread)
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == b["window"]  # every episode, once, to the bit


@pytest.mark.quick_cases("env_workers")
@pytest.mark.parametrize("topology", SPREAD)
def test_so_it_does_with_every_normaliser_and_schedule(learned, topology):
    arguments = ("env=cartpole", *EVERYTHING)
    a, b = state(learned("single", 1, *arguments)), state(learned(topology, SPREAD[topology], *arguments))
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    for moments in ("obs_moments", "return_moments"):
        torch.testing.assert_close(a[moments], b[moments], rtol=1e-10, atol=1e-10)
    assert a["learning_rate"] == b["learning_rate"]


@pytest.mark.parametrize(
    "topology", [x if x == "sync_actors" else pytest.param(x, marks=pytest.mark.slow) for x in SPREAD]
)
def test_so_it_does_with_memory(learned, topology):
    arguments = ("env=pendulum", "env.max_episode_steps=20", "model=gru", "ppo.sequence_length=8")
    a, b = state(learned("single", 1, *arguments)), state(learned(topology, SPREAD[topology], *arguments))
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == b["window"] != []


@pytest.mark.parametrize("pace", PACES, ids=" ".join)
def test_what_observers_collect_does_not_depend_on_who_waits_for_whom(learned, pace):
    a = state(learned("single", 1, "env=cartpole"))
    b = state(learned("central_inference", 2, "env=cartpole", *pace))
    assert largest_difference(a["model"], b["model"]) <= 1e-9
    assert a["window"] == b["window"]


def test_env_workers_hand_over_rollouts_equal_to_the_bit(learned):
    a, b = state(learned("single", 1, "env=cartpole")), state(learned("env_workers", 3, "env=cartpole"))
    assert largest_difference(a["model"], b["model"]) == 0


def test_so_they_do_where_every_rank_steps_another_number(learned):
    a = state(learned("single", 1, "env=cartpole"))
    b = state(learned("env_workers_hetero", 4, "env=cartpole", "dist.env_shares=[5,1,2]"))
    assert largest_difference(a["model"], b["model"]) == 0
    assert a["window"] == b["window"]


@pytest.mark.slow
def test_learners_with_two_actors_each_are_workers_of_ddp_to_the_bit(learned):
    arguments = ("env=cartpole", *EVERYTHING)
    a = state(learned("ddp", 2, *arguments))
    b = state(learned("multi_learner", 6, "dist.num_learners=2", *arguments))
    assert largest_difference(a["model"], b["model"]) == 0
    for kept in ("window", "learning_rate", "env_steps"):
        assert a[kept] == b[kept]
    for moments in ("obs_moments", "return_moments"):
        assert torch.equal(a[moments], b[moments])


def test_collectives_of_groups_of_some_ranks_are_timed_and_counted_too(learned):
    folder = learned("multi_learner", 6, "dist.num_learners=2", "env=cartpole", *EVERYTHING)
    for line in lines(folder):
        parts = sum(line[f"time/t_{part}"] for part in ("rollout", "learn", "sync", "comm", "other"))
        assert parts == pytest.approx(line["time/t_iter"], rel=1e-6)
        waits = line["time/t_wait_learner"] + line["time/t_wait_actor"]
        assert waits == pytest.approx(line["time/t_sync"], abs=1e-9)
        if line["rank"] in (0, 3):
            assert line["dist/messages"] > 3 + 7  # and the sums of gradients, 7 an epoch
        else:
            assert line["dist/messages"] == 3  # rollout; parameters, moments of observations
            assert line["time/t_wait_learner"] > 0
    assert sum(line["rollout/local_steps"] for line in lines(folder) if line["iteration"] == 1) == 256


@pytest.mark.parametrize("topology", SPREAD)
def test_parts_of_an_iteration_still_sum_on_every_rank_and_steps_are_counted_once(learned, topology):
    folder = learned(topology, SPREAD[topology], "env=cartpole")
    written = lines(folder)
    assert {line["rank"] for line in written} == set(range(SPREAD[topology]))
    for line in written:
        parts = sum(line[f"time/t_{part}"] for part in ("rollout", "learn", "sync", "comm", "other"))
        assert parts == pytest.approx(line["time/t_iter"], rel=1e-6)
    of_first = [line for line in written if line["iteration"] == 1]
    assert sum(line["rollout/local_steps"] for line in of_first) == 256
    assert summary(folder)["env_steps"] == ITERATIONS * 256


@pytest.mark.parametrize(
    ("topology", "roles"),
    [
        ("sync_actors", "learner actor"),
        ("env_workers", "learner environments"),
        ("central_inference", "agent observer"),
    ],
)
def test_waiting_is_told_by_whom_it_is_for_and_messages_are_counted(learned, topology, roles):
    folder = learned(topology, SPREAD[topology], "env=cartpole")
    for line in lines(folder):
        waits = {role: line[f"time/t_wait_{role}"] for role in roles.split()}
        assert sum(waits.values()) == pytest.approx(line["time/t_sync"], abs=1e-9)
        if topology == "central_inference":  # messages are of gradients, and two a step of every observer
            assert line["dist/messages"] > 2 * 32
            assert line["rollout/inference_batch"] == 4  # environments of an agent: all of them wait
            continue
        # Two a step; the answers to the reset came once, before the first iteration.
        assert line["dist/messages"] == (2 if topology == "sync_actors" else 2 * 32)
        assert line["dist/bytes"] > 0


@pytest.mark.parametrize(
    ("topology", "world_size", "more"),
    [
        *((topology, world_size, []) for topology, world_size in SPREAD.items()),
        ("multi_learner", 6, ["dist.num_learners=2"]),
        ("sync_actors", 4, []),
        ("env_workers_hetero", 4, ["dist.env_shares=[5,1,2]"]),
    ],
)
def test_a_rank_hands_over_the_bytes_that_its_declaration_says(learned, topology, world_size, more):
    how = [f"distributed={topology}", f"dist.world_size={world_size}", "dtype=float64", "env=cartpole", *more]
    layout = fragments(composed([*SIZES, *how]))
    for line in lines(learned(topology, world_size, "env=cartpole", *more)):
        roles = {layout.role(line["rank"]).name} | {role.name for role in layout.roles if not role.ranks}
        declared = sum(m.times * m.num_bytes for m in layout.messages if m.source in roles)
        # More by padding, the counts that learners agree on, and last observations.
        assert declared <= line["dist/bytes"] <= 1.1 * declared


def test_a_run_of_actors_resumes(learned, tmp_path):
    arguments = [*TINY, *SIZES, "env=cartpole", "distributed=sync_actors", "dist.world_size=3"]
    folder = tmp_path / "run"
    first = door(*arguments, "ppo.total_steps=512", run_dir=folder)
    assert first.code == 0, first.stderr
    again = run([sys.executable, "-m", "ddppo.train", f"resume={folder}", "ppo.total_steps=1280"], folder)
    assert again.code == 0, again.stderr
    assert summary(folder)["env_steps"] == 1280


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_every_rank_has_one_role_and_somebody_learns(topology, world_size):
    layout = topology.of(world_size, Sizes(24, 32, 20, 16, 16, 8, 1000, 4))
    assert layout.world_size == world_size
    assert layout.learning
    assert layout.stepping
    assert {layout.role(rank).name for rank in range(world_size)} == {
        role.name for role in layout.roles if role.ranks
    }
