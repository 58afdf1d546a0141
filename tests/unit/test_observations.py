"""Observations keep their shape, and pixels their type, from environment to model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.envs.make import make_eval_env, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import EnvNames, check_finite
from ddppo.errors import ConfigError, EnvOutputError
from ddppo.loop.evaluation import Policy, play_episodes
from ddppo.models.actor_critic import flat_obs, random_obs
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.cpp.network import CppNetwork, why_not_native
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each, leaves
from tests.unit.seen_tasks import Looking

CPU = torch.device("cpu")
MIXED = {
    "camera": ArraySpec((1, 8, 8), "uint8"),
    "cards.0": ArraySpec((3,)),
    "cards.1": ArraySpec((1,), high=9),
    "state": ArraySpec((2, 2), "float64"),
}
SPEC = EnvSpec(MIXED, ActionSpec("discrete", (2,)))
LOOKING = settings_of("model", name="tests.unit.seen_tasks:Looking")


def task(name, **settings):
    return EnvConfig(id=f"tests.unit.seen_tasks:seen/{name}-v0", **settings)


def played(env, steps=20):
    """What a batch of two answers to the same actions: all observations, and final ones by step."""
    envs = make_vec_env(env, range(2), rank=0, cores=2)
    try:
        obs, _ = envs.reset([0, 1])
        seen, finals = [each(np.copy, obs)], {}
        for t in range(steps):
            step = envs.step(np.array([t % 2, 0]))
            seen.append(each(np.copy, step.obs))
            if len(step.ended):
                finals[t] = (step.ended.tolist(), each(np.copy, step.final_obs))
        return seen, finals
    finally:
        envs.close()


def assert_same(found, expected):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    for x, y in zip(leaves(found), leaves(expected), strict=True):
        assert x.dtype == y.dtype
        assert np.array_equal(x, y)


def test_a_spec_describes_every_array_by_its_path():
    assert probe(task("Mixed")) == SPEC
    assert list(probe(task("Mixed")).obs) == list(MIXED)
    assert SPEC.obs_size == 72
    assert probe(task("Picture")).obs == ArraySpec((1, 8, 8), "uint8")


@pytest.mark.parametrize("name", ["Picture", "Mixed"])
def test_sync_and_a_pool_hand_over_the_same_arrays_of_the_types_of_the_spec(name):
    spec = probe(task(name))
    seen, finals = played(task(name, backend="sync"))
    for obs in seen:
        of_spec = each(lambda leaf: (leaf.shape, leaf.dtype), spec.obs)
        assert each(lambda x: (x.shape[1:], x.dtype.name), obs) == of_spec
    assert list(finals) == [6, 13]
    other, other_finals = played(task(name, backend="pool", num_workers=2))
    for x, y in zip(seen, other, strict=True):
        assert_same(y, x)
    for (ended, x), (other_ended, y) in zip(finals.values(), other_finals.values(), strict=True):
        assert other_ended == ended == [0, 1]
        assert_same(y, x)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_a_natively_batched_task_may_observe_a_dict_of_boxes(mode):
    kwargs = {"cards": False, "draws": False}
    seen, _ = played(task("Mixed", backend="sync", kwargs=kwargs), steps=6)
    native = task("Mixed", backend="gym_vector", kwargs={**kwargs, "mode": mode})
    other, other_finals = played(native, steps=8)
    for x, y in zip(seen, other, strict=False):
        assert_same(y, x)
    assert other_finals[6][0] == [0, 1]
    assert other_finals[6][1]["camera"].dtype == np.uint8
    assert other_finals[6][1]["state"][:, 0].tolist() == [[7, -7], [7, -7]]


def collector(name, model_config, *, normalize=False, dtype=torch.float32, backend="sync"):
    env = make_vec_env(task(name, backend=backend), range(4), rank=0, cores=2)
    model = build_model(env.spec, model_config, 0, dtype)
    normalizer = ObsNormalizer(env.spec.obs, CPU, dtype) if normalize else None
    made = Collector(env, model, normalizer, rollout_steps=10, first_env=0, device=CPU, dtype=dtype)
    made.reset([0, 1, 2, 3])
    return made


def noise(k=0):
    return np.random.default_rng(k).random((10, 4, 1))


def learner(made):
    """A learner of the collector's model."""
    parameters, group = FlatParameters(made.model), Group()
    sync = FlatSync(made.model, parameters, group)
    return Learner(
        PPOSettings(num_epochs=2, num_minibatches=4, learning_rate=1e-2),
        BatchShape(4, 10, 1, 4, 2),
        made.model,
        sync,
        group,
        Normalizers(made.normalizer, None),
        seed=0,
    )


def act_and_learn_in_cpp(made, learn):
    if why := why_not_native(made.model, CPU):
        pytest.skip(why)
    network = CppNetwork(made.model, made.env.spec, learn.parameters)
    made.use_cpp(network)
    learn.step = CppStep(network, learn.config, learn.optimizer, Group())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_model_is_given_what_its_task_observes_in_acting_and_in_learning(backend, normalize):
    made = collector("Mixed", LOOKING, backend=backend, normalize=normalize)
    learn = learner(made)
    before = learn.parameters.detach().clone()
    learn.update(made.collect(noise(1))[0], 1, 0.0)
    assert not torch.equal(before, learn.parameters)
    frozen = ObsNormalizer(MIXED, CPU, torch.float32)
    frozen.load(made.normalizer.state if normalize else frozen.state)
    rollout, episodes = made.collect(noise(2))
    made.env.close()
    assert [episode.length for episode in episodes] == [7] * 4
    raw, obs = rollout.raw_obs, rollout.obs
    assert each(lambda x: tuple(x.shape[2:]), obs) == each(lambda leaf: leaf.shape, MIXED)
    assert obs["camera"].dtype == torch.uint8
    assert obs["camera"].data_ptr() == raw["camera"].data_ptr()
    assert {x.dtype for name, x in obs.items() if name != "camera"} == {torch.float32}
    assert_same(each(torch.Tensor.numpy, obs), each(torch.Tensor.numpy, frozen(raw) if normalize else raw))
    assert raw["state"][:, 0, 0, 0].tolist() == [3, 4, 5, 6, 0, 1, 2, 3, 4, 5]
    assert raw["cards.0"][:3, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    with torch.no_grad():
        values = made.model.value(each(lambda x: x.flatten(0, 1), obs)).reshape(10, 4)
    torch.testing.assert_close(rollout.values, values)
    assert not torch.allclose(
        rollout.next_values[3], rollout.values[4]
    )  # the final observation's, not the reset's


def test_moments_are_those_of_the_floats_alone():
    made = collector("Mixed", LOOKING, normalize=True)
    rollout, _ = made.collect(noise())
    learner(made).update(rollout, 1, 0.0)
    state = made.normalizer.state
    assert state.shape == (3, 8)
    floats = torch.cat([rollout.raw_obs[name].flatten(2) for name in ("cards.0", "cards.1", "state")], dim=-1)
    torch.testing.assert_close(state[1], floats.flatten(0, 1).double().mean(dim=0))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_mlp_learns_of_a_dict_what_it_learns_of_the_same_numbers_in_one_vector(normalize, native):
    """To the bit: a task may be wrapped in FlattenObservation or not, and was flattened always once."""
    found = []
    for name in ("Float", "FlatFloat"):
        made = collector(name, settings_of("model", hidden_sizes=[16]), normalize=normalize)
        learn = learner(made)
        if native:
            act_and_learn_in_cpp(made, learn)
        for k in (1, 2, 3):
            rollout, _ = made.collect(noise(k))
            learn.update(rollout, k, 0.0)
        found.append((rollout, learn.parameters.detach(), made.normalizer and made.normalizer.state))
    (rollout, parameters, moments), (flat, flat_parameters, flat_moments) = found
    assert isinstance(rollout.obs, dict)
    assert not isinstance(flat.obs, dict)
    assert torch.equal(flat_obs(rollout.obs, probe(task("Float")), torch.float32), flat.obs)
    for field in ("actions", "logprobs", "values", "next_values"):
        assert torch.equal(getattr(rollout, field), getattr(flat, field)), field
    assert torch.equal(parameters, flat_parameters)
    assert moments is None or torch.equal(moments, flat_moments)


def test_the_mlp_takes_pixels_as_parts_of_one_though_not_in_cpp():
    obs = {"camera": torch.full((2, 1, 8, 8), 255, dtype=torch.uint8), "cards.0": torch.eye(3)[:2]}
    obs |= {"cards.1": torch.zeros(2, 1), "state": torch.arange(8.0).reshape(2, 2, 2)}
    flat = flat_obs(obs, SPEC, torch.float32)
    assert flat[1].tolist() == [1.0] * 64 + [0, 1, 0, 0, 4, 5, 6, 7]
    model = build_model(SPEC, settings_of("model"), 0, torch.float32)
    assert model(random_obs(SPEC, 5, torch.float32))[0].shape == (5, 2)
    assert why_not_native(model, CPU) == "the task observes pixels"


def test_evaluation_plays_by_what_the_task_observes():
    model = build_model(SPEC, LOOKING, 0, torch.float32)
    policy = Policy(model, ObsNormalizer(MIXED, CPU, torch.float32), SPEC)
    env = make_eval_env(task("Mixed"), 3)
    scores = play_episodes(policy, env, range(5), seed=0)
    assert scores.lengths == (7,) * 5
    assert scores == play_episodes(policy, make_eval_env(task("Mixed"), 5), range(5), seed=0)


def test_the_model_in_the_docs_is_one(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (tmp_path / "their_models.py").write_text(page.split("```python")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    space = {"camera": ArraySpec((3, 64, 64), "uint8"), "speed": ArraySpec((1,))}
    spec, named = EnvSpec(space, ActionSpec("box", (2,))), settings_of("model", name="their_models:Driver")
    assert check_model(spec, named, torch.float32, num_envs=4) is None


# -- what goes wrong -------------------------------------------------------------------------------------------------


class Popping(Looking):
    def value(self, obs):
        return super().value({"camera": obs.pop("camera"), **obs})


class Scaling(Looking):
    def value(self, obs):
        obs["camera"] //= 2
        return super().value(obs)


class Scalar(Looking):
    def value(self, obs):
        return super().value(obs)[..., None]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Popping, "Popping.value changes the observations that it gets: compute on a copy of them"),
        (Scaling, "Scaling.value changes the observations that it gets"),
        (
            Scalar,
            r"values of shape \[4, 1\] for obs {camera: \[4, 1, 8, 8\], cards.0: \[4, 3\], cards.1: \[4, 1\], "
            r"state: \[4, 2, 2\]}, but they must be \[4\]: add .squeeze\(-1\)",
        ),
    ],
)
def test_a_model_is_tried_on_what_its_task_observes(kind, said):
    assert check_model(SPEC, LOOKING, torch.float32, num_envs=4) is None
    with pytest.raises(ConfigError, match=said):
        check_model(SPEC, settings_of("model", name=f"{__name__}:{kind.__name__}"), torch.float32, num_envs=4)


def test_a_number_that_is_not_finite_is_told_with_its_array():
    obs = {"camera": np.zeros((3, 2, 1, 8, 8), np.uint8), "state": np.zeros((3, 2, 2, 2))}
    check_finite(EnvNames(range(4, 6), 1), 10, obs, np.zeros((3, 2)), [])
    obs["state"][1, 1, 1, 0] = np.inf
    with pytest.raises(EnvOutputError) as caught:
        check_finite(EnvNames(range(4, 6), 1), 10, obs, np.zeros((3, 2)), [])
    assert str(caught.value).startswith(
        "environment 5 of rank 1 returned inf in the observation of step 11 (entry 2 of 4 of state, flattened): "
    )
