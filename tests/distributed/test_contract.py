"""The contract of algorithms: it carries PPO, and an algorithm of a user's own runs under any topology unchanged."""

import pytest
import torch

from ddppo import native
from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.learner import LearnerStep
from ddppo.collectives.group import Group
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.models.build import build_model
from ddppo.ppo.rollout import Transitions
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.distributed.forked_ranks import forked_ranks
from tests.support import TINY, door, lines, summary

EXACT = (*TINY, "env=cartpole", "dtype=float64", "checkpoint.every_steps=0")


def parameters(run_dir):
    (path,) = (run_dir / "checkpoints").glob("iteration_*.pt")
    return torch.load(path, weights_only=True)


def trained(run_dir, *arguments):
    done = door(*EXACT, *arguments, run_dir=run_dir)
    assert done.code == 0, done.stderr
    return parameters(run_dir)


def largest_difference(a, b):
    assert a["env_steps"] == b["env_steps"] > 0
    assert a["window"] == b["window"] != []
    return max((a["model"][name] - x).abs().max().item() for name, x in b["model"].items())


# -- The contract carries PPO.

BY_CONTRACT = "ddppo.study.bench.own:OwnPPO"
PPO = {"total_steps": 1024, "rollout_steps": 32, "num_epochs": 3, "num_minibatches": 3, "entropy_coef": 0.01}


@pytest.mark.parametrize(
    "more",
    [
        ["normalize_obs=true", "reward_scale=0.1"],
        pytest.param(["gamma=0.9", "gae_lambda=0.7", "learning_rate=1e-2"], marks=pytest.mark.slow),
    ],
    ids=["normalised", "other numbers"],
)
def test_ppo_on_the_contract_alone_learns_what_ppo_learns(tmp_path, more):
    common = [*(f"{key}={value}" for key, value in PPO.items()), *more]
    base = {"gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4}
    common += [
        f"{key}={value}" for key, value in base.items() if not any(x.startswith(f"{key}=") for x in more)
    ]
    ours = trained(tmp_path / "ppo", "compile=off", *(f"ppo.{x}" for x in common))
    theirs = trained(tmp_path / "own", f"algorithm={BY_CONTRACT}", *(f"algorithm.{x}" for x in common))
    assert largest_difference(ours, theirs) < 1e-10


# -- One file under any topology.

OWN = ("algorithm=tests.unit.own_reinforce:Reinforce", "algorithm.total_steps=1024")
TOPOLOGIES = {
    "ddp": ("distributed=ddp", "dist.world_size=2"),
    "sync_actors": ("distributed=sync_actors", "dist.world_size=3"),
    "multi_learner": ("distributed=multi_learner", "dist.world_size=6", "dist.num_learners=2"),
    "env_workers": ("distributed=env_workers", "dist.world_size=3"),
    "central_inference": ("distributed=central_inference", "dist.world_size=3"),
}


@pytest.fixture(scope="module")
def by_one_process(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one") / "run", *OWN)


@pytest.mark.quick_cases("sync_actors")
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_an_algorithm_of_ones_own_learns_under_any_topology_what_it_learns_in_one_process(
    topology, by_one_process, tmp_path
):
    run = trained(tmp_path / "run", *OWN, *TOPOLOGIES[topology])
    assert largest_difference(by_one_process, run) < 1e-10


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_a_run_says_whether_an_algorithm_of_ones_own_acts_and_learns_by_a_network_in_cpp(tmp_path):
    in_cpp = door(*EXACT, *OWN, run_dir=tmp_path / "run")
    assert (in_cpp.code, in_cpp.stderr) == (0, "")
    assert summary(tmp_path / "run")["derived"]["network"] == "C++, also in acting"
    clamping = "model.name=tests.unit.test_compilation:Own"
    in_torch = door(*EXACT, *OWN, clamping, run_dir=tmp_path / "other")
    assert in_torch.code == 0
    assert in_torch.stderr.startswith(
        "warning: the network runs in PyTorch, not in C++: Own.forward calls clamp (test_compilation.py:"
    )
    assert "network" not in summary(tmp_path / "other")["derived"]


ASYNC = ("distributed=async_actors", "dist.world_size=3")


def test_actors_at_their_own_pace_keep_to_the_lag_that_the_algorithm_tolerates(by_one_process, tmp_path):
    run = trained(tmp_path / "run", *OWN, *ASYNC)
    found = [line["dist/lag_max"] for line in lines(tmp_path / "run") if line["rank"] == 0]
    assert set(found) == {0}
    # In step, each update learns from one episode of every environment: that is the run of one process.
    assert largest_difference(by_one_process, run) < 1e-10


def test_a_larger_lag_than_the_algorithm_tolerates_is_refused(tmp_path):
    done = door(*EXACT, *OWN, *ASYNC, "dist.max_lag=2", run_dir=tmp_path / "run")
    assert done.code == 2
    assert done.stderr == (
        f"error: dist.max_lag=2 with {OWN[0]}, which learns from parameters at most 0 updates old: use at most 0, or "
        "leave it out\n"
    )


# -- What `step` offers is the same for any number of learners.

SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (2,)))
NUM_STEPS, NUM_ENVS = 5, 4


class Anything(Algorithm):
    def learn(self, rollout, step):
        return {}


def offered(group):
    """Return what the step of this learner gives for its share of one random rollout, as [T, N] or whole."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_STEPS, NUM_ENVS, dtype=torch.float64, generator=generator)
    valid = torch.rand(NUM_STEPS, NUM_ENVS, generator=generator) < 0.8
    share = slice(group.rank * NUM_ENVS // group.world_size, (group.rank + 1) * NUM_ENVS // group.world_size)
    own, own_valid = x[:, share], valid[:, share]
    model = build_model(SPEC, settings_of("model"), 0, torch.float64)
    algorithm = Anything(SPEC, settings_of("algorithm", name="reinforce"), model)
    shape = BatchShape(NUM_ENVS, NUM_STEPS, group.world_size, 1, 1)
    sync = FlatSync(model, FlatParameters(model), group)
    step = LearnerStep(algorithm, shape, sync, group, seed=3)
    step.begin(7, algorithm.parts(), 1.0)
    rollout = Transitions(
        obs=own, actions=own, rewards=own, terminated=own_valid, truncated=own_valid, valid=own_valid,
        episode_start=own_valid, action_mask=None, raw_obs=own,
    )  # fmt: skip
    # Which steps (t, i) of all environments are in each minibatch, and what divides its loss.
    batches, counts = [], []
    for rows, count in step.minibatches(rollout, 2, 3):
        t, i = rows // own.shape[1], rows % own.shape[1]
        batches.append({(int(a), int(b) + share.start) for a, b in zip(t, i, strict=True)})
        counts.append(count)
    return {
        "sum": step.sum(own[own_valid].sum()).item(),
        "normalized": step.gather(step.normalized(own, own_valid).T).T.tolist(),
        "gather": step.gather(own.T).tolist(),
        "stream": step.stream(2, 5).random(3).tolist(),
        "other stream": step.stream(5, 2).random(3).tolist(),
        "counts": counts,
        "batches": batches,
        "envs": step.envs.tolist(),
        "num_envs": step.num_envs,
    }


def test_what_step_offers_does_not_depend_on_the_number_of_learners():
    alone = offered(Group())  # first: what it imports, the forked ranks need not
    found = [[alone]]
    for world_size in (2, 4):
        with forked_ranks(world_size, offered) as (_, results):
            found.append(results())
    assert alone["stream"] != alone["other stream"]
    assert alone["envs"] == list(range(NUM_ENVS))
    for ranks in found:
        assert [env for rank in ranks for env in rank["envs"]] == alone["envs"]
        for number, batch in enumerate(alone["batches"]):
            parts = [rank["batches"][number] for rank in ranks]
            assert set.union(*parts) == batch
            assert sum(map(len, parts)) == len(batch) == alone["counts"][number]
        for rank in ranks:
            for name in ("gather", "stream", "other stream", "counts", "num_envs"):
                assert rank[name] == alone[name]
            assert rank["sum"] == pytest.approx(alone["sum"], rel=1e-12)
            torch.testing.assert_close(
                torch.tensor(rank["normalized"]), torch.tensor(alone["normalized"]), rtol=1e-12, atol=1e-12
            )
