"""W ranks compute what one computes on the union of their samples. One launch serves all tests."""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks

from ddppo.collectives import torch_distributed
from ddppo.collectives.group import Group
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, make_gradient_sync
from ddppo.errors import NonFiniteError
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution
from ddppo.ppo import losses
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.ppo.rollout import Rollout
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

CPU, DOUBLE = torch.device("cpu"), torch.float64
SPEC = EnvSpec(ArraySpec((3,)), ActionSpec("box", (2,)))
NUM_ENVS, STEPS, NUM_SAMPLES = 8, 6, 24
KINDS = ["flat", "flat, large", "ddp"]
TINY_BUCKETS_MB = 0.001  # a model of about 700 float64 takes several
SPLITS = {
    2: {"equal": [12, 12], "unequal": [5, 19], "empty": [24, 0]},
    4: {"equal": [6, 6, 6, 6], "unequal": [1, 10, 2, 11], "empty": [0, 9, 0, 15]},
}


def built():
    model = build_model(SPEC, settings_of("model", hidden_sizes=[16, 16]), 0, DOUBLE)
    return model, FlatParameters(model)


# -- gradients -------------------------------------------------------------------------------------------------------


def samples():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(NUM_SAMPLES, *shape, dtype=DOUBLE, generator=generator)

    names = ("logprobs", "advantages", "values", "returns")
    return {"obs": random(3), "actions": random(2), **{name: random() for name in names}}


def loss_of(at, part, count):
    """A local sum over a global count, as the learner's."""
    params, values = at(part["obs"], part["actions"])
    policy = action_distribution(SPEC.action, params)
    log_ratio = policy.log_prob(part["actions"]) - part["logprobs"]
    per_sample = (
        losses.clipped_surrogate_loss(log_ratio, part["advantages"], clip_coef=0.2)
        + losses.value_loss(values, part["values"], part["returns"], clip_value_coef=None)
        - 0.1 * policy.entropy()
    )
    return per_sample.sum() / count


def gradients_of(group, kind, splits):
    """The gradient for every way to split the samples among the ranks of `group`, and how it came about."""
    model, parameters = built()
    sync = make_gradient_sync(
        kind, model, parameters, group, bucket_cap_mb=TINY_BUCKETS_MB if kind == "ddp" else None
    )
    group.records.clear()
    found = {}
    for name, sizes in splits.items():
        part = {key: x.split(sizes)[group.rank] for key, x in samples().items()}
        sync.backward_(loss_of(sync.model, part, NUM_SAMPLES))
        found[name] = parameters.gradient.clone()
    start = parameters.gradient.data_ptr()
    offsets = [(p.grad.data_ptr() - start) // 8 for p in model.parameters()]
    ends = [sum(p.numel() for p in list(model.parameters())[:i]) for i in range(len(offsets))]
    return {
        "gradients": found,
        "shares_storage": offsets == ends and parameters.vector.grad is parameters.gradient,
        "records": [(r.start, r.end, r.hidden) for r in group.records],
    }


def counted(call):
    """Return what `call` returns, and how many all-reduces it started."""
    num_calls, all_reduce = 0, dist.all_reduce

    def counting(*args, **more):
        nonlocal num_calls
        num_calls += 1
        return all_reduce(*args, **more)

    dist.all_reduce = counting
    try:
        return call(), num_calls
    finally:
        dist.all_reduce = all_reduce


# -- whole updates ---------------------------------------------------------------------------------------------------


def rollout(seed):
    """Random rows of all environments; about a fifth are pseudo-steps, and more of the first environments'."""
    generator = torch.Generator().manual_seed(seed)
    shape = (STEPS, NUM_ENVS)

    def random(*more):
        return torch.randn(*shape, *more, dtype=DOUBLE, generator=generator)

    def flag(probability):
        return torch.rand(shape, generator=generator) < probability

    valid = flag(torch.linspace(0.5, 1.0, NUM_ENVS))
    obs = random(3)
    model, _ = built()
    with torch.no_grad():
        params, values = model(obs)
        policy = action_distribution(SPEC.action, params)
        actions = policy.sample(random(2))
        logprobs = policy.log_prob(actions)
    return Rollout(
        obs=obs,
        actions=actions,
        logprobs=logprobs,
        values=values,
        next_values=random(),
        rewards=random() * valid,
        terminated=flag(0.1) & valid,
        truncated=flag(0.1) & valid,
        valid=valid,
        episode_start=flag(0.1),
        action_mask=None,
        raw_obs=obs,
    )


def share(whole, group):
    """The environments of this rank."""
    envs = NUM_ENVS // group.world_size
    columns = slice(group.rank * envs, (group.rank + 1) * envs)
    kept = {f.name: getattr(whole, f.name) for f in fields(whole)}
    return Rollout(
        **{name: x[:, columns].contiguous() if isinstance(x, torch.Tensor) else x for name, x in kept.items()}
    )


@dataclass
class Scenario:
    """What is learned, how often, from which rollouts."""

    kind: str
    settings: dict
    iterations: int = 1
    normalize: bool = False
    offset: float = 0.0  # of the log ratio, in environment 0 alone


SCENARIOS = {
    "normalised": Scenario(
        "flat",
        {"num_epochs": 3, "num_minibatches": 5, "lr_schedule": "adaptive"},
        iterations=3,
        normalize=True,
    ),
    "empty_minibatches": Scenario(
        "ddp", {"num_epochs": 2, "num_minibatches": 24, "clip_value_coef": 0.2, "entropy_coef": 0.01}
    ),
    "early_stop": Scenario(
        "flat",
        {"num_epochs": 12, "num_minibatches": 3, "target_kl": 0.014, "learning_rate": 1e-3},
        offset=0.8,
    ),
}


def learner_of(group, scenario):
    config = settings_of("ppo", **{"lr_schedule": "none", **scenario.settings})
    model, parameters = built()
    sync = make_gradient_sync(
        scenario.kind,
        model,
        parameters,
        group,
        bucket_cap_mb=TINY_BUCKETS_MB if scenario.kind == "ddp" else None,
    )
    shape = BatchShape(NUM_ENVS, STEPS, group.world_size, config.num_minibatches, config.num_epochs)
    return Learner(
        config,
        shape,
        model,
        sync,
        group,
        Normalizers(
            ObsNormalizer(ArraySpec((3,)), CPU, DOUBLE) if scenario.normalize else None,
            (
                RewardNormalizer(NUM_ENVS // group.world_size, config.gamma, CPU)
                if scenario.normalize
                else None
            ),
        ),
        seed=0,
    )


def updates_of(group, scenario):
    """Learn as this rank of `group`; return all that learning left behind."""
    learner = learner_of(group, scenario)
    updates = []
    for iteration in range(1, scenario.iterations + 1):
        whole = rollout(seed=iteration)
        whole.logprobs[:, 0] -= scenario.offset
        updates.append(learner.update(share(whole, group), iteration, progress=0.0))
    agreed = ("num_samples", "steps", "epochs", "grad_norm", "learning_rate", "explained_variance")
    return {
        "parameters": learner.parameters.detach().clone(),
        "agreed": [[float(getattr(update, name)) for name in agreed] for update in updates],
        "local_sums": [update.local_sums for update in updates],
        "learning_rate": learner.learning_rate,
        "moments": [n.state for n in (learner.obs_normalizer, learner.reward_normalizer) if n is not None],
    }


def poisoned_by(group, bad_rank):
    """Learn from a rollout that is not finite on one rank alone; return its message and what it changed."""
    learner = learner_of(group, Scenario("flat", {"num_epochs": 2, "num_minibatches": 1}))
    before = learner.parameters.detach().clone()
    part = share(rollout(seed=1), group)
    if group.rank == bad_rank:
        part.obs[part.valid] = math.nan
    with pytest.raises(NonFiniteError) as caught:
        learner.update(part, iteration=7, progress=0.0)
    state = learner.optimizer.state[learner.parameters]
    return {
        "message": str(caught.value),
        "untouched": torch.equal(before, learner.parameters) and not any(x.any() for x in state.values()),
    }


# -- the ranks -------------------------------------------------------------------------------------------------------


def everything(group):
    """What one rank does for all tests of this file."""
    splits = SPLITS[group.world_size]
    small = gradients_of(group, "flat", splits)
    gather_up_to, torch_distributed._GATHER_UP_TO = (
        torch_distributed._GATHER_UP_TO,
        0,
    )  # as if the model were large
    large, num_large = counted(lambda: gradients_of(group, "flat", splits))
    torch_distributed._GATHER_UP_TO = gather_up_to
    ddp, num_ddp = counted(lambda: gradients_of(group, "ddp", splits))
    return {
        "flat": small,
        "flat, large": {**large, "num_all_reduces": num_large / len(splits)},
        "ddp": {**ddp, "num_all_reduces": num_ddp / len(splits)},
        "updates": {name: updates_of(group, scenario) for name, scenario in SCENARIOS.items()},
        "poisoned": poisoned_by(group, bad_rank=1),
    }


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return run_ranks(everything, [4, 2], tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def ranks(request, worlds):
    """What every rank found."""
    return worlds[request.param]


@pytest.fixture(scope="module")
def alone():
    """What a single process finds on the union."""
    return {
        "gradient": gradients_of(Group(), "flat", {"all": [NUM_SAMPLES]})["gradients"]["all"],
        "updates": {name: updates_of(Group(), scenario) for name, scenario in SCENARIOS.items()},
    }


def assert_equal(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("split", ["equal", "unequal", "empty"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_over_all_ranks_is_that_of_one_process_on_the_union(ranks, alone, kind, split):
    assert alone["gradient"].abs().max() > 0.01
    for found in ranks:
        assert_equal(found[kind]["gradients"][split], alone["gradient"])
        assert torch.equal(found[kind]["gradients"][split], ranks[0][kind]["gradients"][split])


def test_a_large_flat_gradient_takes_one_all_reduce_and_ddp_one_for_each_of_several_buckets(ranks):
    for found in ranks:
        assert found["flat, large"]["num_all_reduces"] == 1
        assert found["ddp"]["num_all_reduces"] > 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_flat_gradient_stays_the_storage_of_every_parameters_gradient(ranks, kind):
    assert all(found[kind]["shares_storage"] for found in ranks)


def test_every_step_leaves_one_record_of_what_it_lost_to_communication_and_what_it_hid(ranks):
    for found in ranks:
        for kind in KINDS:
            records = found[kind]["records"]
            assert len(records) == 3
            assert all(start <= end for start, end, _ in records)
            assert all(before[1] <= after[0] for before, after in pairwise(records))
        assert all(hidden == 0 for kind in KINDS[:2] for *_, hidden in found[kind]["records"])
        assert all(hidden >= 0 for *_, hidden in found["ddp"]["records"])
    assert any(hidden > 0 for found in ranks for *_, hidden in found["ddp"]["records"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_whole_update_of_all_ranks_is_that_of_one_process_on_the_union(ranks, alone, scenario):
    expected = alone["updates"][scenario]
    start, _ = built()
    for found in ranks:
        result = found["updates"][scenario]
        for name in ("parameters", "agreed", "learning_rate", "moments"):
            assert_equal(result[name], expected[name])
        assert torch.equal(result["parameters"], ranks[0]["updates"][scenario]["parameters"])
    sums = [sum(parts) for parts in zip(*(r["updates"][scenario]["local_sums"] for r in ranks), strict=True)]
    assert_equal(sums, expected["local_sums"])
    moved = expected["parameters"] - torch.cat([p.detach().flatten() for p in start.parameters()])
    assert moved.abs().max() > 1e-3


def test_all_ranks_end_their_epochs_where_the_divergence_over_all_ranks_says(ranks, alone):
    [[_, _, expected, *_]] = alone["updates"]["early_stop"]["agreed"]
    assert 1 < expected < SCENARIOS["early_stop"].settings["num_epochs"]
    assert all(found["updates"]["early_stop"]["agreed"][0][2] == expected for found in ranks)
    by_rank = [found["updates"]["early_stop"]["local_sums"][0][3].item() for found in ranks]
    assert by_rank[0] > 2 * max(by_rank[1:])  # left to itself, each rank would have ended elsewhere


def test_what_is_not_finite_on_one_rank_stops_all_of_them_before_any_parameter_moves(ranks):
    for found in ranks:
        assert found["poisoned"]["untouched"]
        assert found["poisoned"]["message"].startswith("the loss of rank 1 is not finite in iteration 7;")
        assert found["poisoned"]["message"] == ranks[0]["poisoned"]["message"]
