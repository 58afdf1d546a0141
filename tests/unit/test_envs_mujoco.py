"""MuJoCo's robots stepped in C++ against Gymnasium's own, to the bit: all that a step and a reset return."""

import dataclasses
import importlib.metadata

import numpy as np
import pytest
import torch

from ddppo import native
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.envs.backends.classic_cpp import CppEnvs, why_not_batched
from ddppo.envs.make import choose_backend, make_eval_env, make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import ConfigError, EnvStateError
from ddppo.models.build import build_model
from ddppo.models.distributions import num_noise
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.seeding import action_noise

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))

ROBOTS = (
    *("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup"),
    *("Swimmer", "Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum"),
)
_WITHOUT = dict.fromkeys(
    (f"include_{name}_in_observation" for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")), False
)
# Constructor arguments that change numbers. Together they name each of a task at least once.
SETTINGS = (
    ("HalfCheetah", {"forward_reward_weight": 2, "ctrl_cost_weight": 0.3, "frame_skip": 3}),
    ("HalfCheetah", {"reset_noise_scale": 0, "exclude_current_positions_from_observation": False}),
    ("Hopper", {"healthy_reward": -0.7, "healthy_state_range": [-2.0, 2.0], "healthy_z_range": [0.5, 3]}),
    ("Hopper", {"terminate_when_unhealthy": False, "healthy_angle_range": [-0.1, 0.1]}),
    ("Walker2d", {"xml_file": "walker2d.xml", "healthy_z_range": [0.9, 1.9], "reset_noise_scale": 0.1}),
    ("Ant", {"main_body": "torso", "contact_force_range": [-0.3, 0.2], "contact_cost_weight": 0.1}),
    ("Ant", {"main_body": 2, "include_cfrc_ext_in_observation": False, "healthy_z_range": [0.3, 0.9]}),
    ("Humanoid", {"contact_cost_weight": 1e-3, "contact_cost_range": [0.5, 2], **_WITHOUT}),
    ("Humanoid", {"include_cvel_in_observation": False, "terminate_when_unhealthy": False}),
    ("HumanoidStandup", {"impact_cost_weight": 1e-3, "impact_cost_range": [0.5, 2], "uph_cost_weight": 3}),
    ("Swimmer", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 1}),
    ("Reacher", {"reward_dist_weight": 0.7, "reward_control_weight": 0.3}),
    ("Pusher", {"reward_near_weight": 0.9, "reward_dist_weight": 2, "reward_control_weight": 0.7}),
    ("InvertedPendulum", {"reset_noise_scale": 0.1, "width": 64, "height": 64}),
    ("InvertedDoublePendulum", {"healthy_reward": 3, "reset_noise_scale": 0.02}),
)
NUM_ENVS = 2


def robot(name, kwargs=None, limit=None):
    return EnvConfig(id=f"{name}-v5", kwargs=kwargs or {}, max_episode_steps=limit)


def batch(env, backend="batched", num_envs=NUM_ENVS, first=0):
    return make_vec_env(
        dataclasses.replace(env, backend=backend), range(first, first + num_envs), rank=0, cores=1
    )


def drawn_actions(spec, steps, num_envs=NUM_ENVS, held=1):
    """Return actions `[steps, E, ...]` as a model draws them: Gaussians beyond the bounds too."""
    drawn = np.random.default_rng(5).standard_normal((-(-steps // held), num_envs, *spec.action.shape))
    return np.repeat(drawn.astype(np.float32), held, axis=0)[:steps]


def assert_equal_steps(found, expected):
    for name in ("obs", "rewards", "terminated", "truncated", "valid", "ended", "final_obs"):
        x, y = getattr(found, name), getattr(expected, name)
        assert (x.dtype, x.shape) == (y.dtype, y.shape), name
        assert x.tobytes() == np.ascontiguousarray(y).tobytes(), (name, x, y)


def test_threads_change_no_number():
    env = robot("Hopper", limit=30)
    whole = batch(dataclasses.replace(env, num_workers=3), num_envs=7)
    alone = batch(env, num_envs=7)
    assert whole.reset(range(7))[0].tobytes() == alone.reset(range(7))[0].tobytes()
    for action in drawn_actions(whole.spec, 200, 7):
        assert_equal_steps(whole.step(action), alone.step(action))
    whole.close()


def assert_equal_to_gymnasium(env, steps, *, num_envs=NUM_ENVS, held=1):
    """Compare a batch in C++ with environments of Gymnasium; return how many episodes ended."""
    robots, scalars = batch(env, num_envs=num_envs), batch(env, "sync", num_envs)
    assert isinstance(robots, CppEnvs)
    seeds = range(100, 100 + num_envs)
    assert robots.reset(seeds)[0].tobytes() == scalars.reset(seeds)[0].tobytes()
    num_ended = 0
    for action in drawn_actions(robots.spec, steps, num_envs, held):
        expected = scalars.step(action)
        assert_equal_steps(robots.step(action), expected)
        num_ended += len(expected.ended)
    scalars.close()
    return num_ended


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_in_cpp_equals_gymnasiums_to_the_bit(name):
    assert assert_equal_to_gymnasium(robot(name, limit=40), 150) > 0


@pytest.mark.parametrize(("name", "kwargs"), SETTINGS)
def test_so_it_does_with_other_settings_of_the_task(name, kwargs):
    assert assert_equal_to_gymnasium(robot(name, kwargs, limit=20), 45) > 0


OWN = """<mujoco><option timestep="0.004"/><worldbody><geom type="plane" size="9 9 1"/>
<body pos="0 0 .5"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/>
<geom type="capsule" fromto="-.2 0 0 .2 0 0" size=".05"/><site name="back"/>
<body pos=".2 0 0"><joint name="knee" axis="0 1 0" range="-60 60"/>
<geom type="capsule" fromto="0 0 0 0 0 -.4" size=".04"/></body></body></worldbody>
<actuator><position joint="knee" kp="20" ctrlrange="-1 1"/></actuator>
<sensor><accelerometer site="back"/></sensor></mujoco>"""


def test_so_it_does_with_a_model_of_ones_own(tmp_path):
    (tmp_path / "own.xml").write_text(OWN)
    kwargs = {"xml_file": str(tmp_path / "own.xml"), "frame_skip": 2, "healthy_z_range": [-1, 9]}
    env = robot("Hopper", kwargs, limit=20)
    assert probe(env).obs.shape == (7,)
    assert assert_equal_to_gymnasium(env, 100) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_in_cpp_equals_gymnasiums_over_10_000_steps_and_their_resets(name):
    assert assert_equal_to_gymnasium(robot(name), 5000, held=3) > 0
    assert assert_equal_to_gymnasium(robot(name, limit=10), 1000) > 0


@pytest.mark.parametrize("name", ROBOTS)
def test_a_restored_robot_goes_on_to_the_bit_and_in_another_batch(name):
    env = robot(name, limit=45)
    whole = batch(env)
    whole.reset(range(NUM_ENVS))
    actions = drawn_actions(whole.spec, 90)
    for action in actions[:30]:
        whole.step(action)
    states = unpacked(packed(whole.state()))["envs"]
    obs = whole._obs.copy()
    # Environments that have lived, because a restored one may keep nothing of its life.
    parts = [batch(env, num_envs=1, first=i) for i in range(NUM_ENVS)]
    for i, part in enumerate(parts):
        part.reset([50 + i])
        part.step(actions[0, i : i + 1])
        assert part.restore({"envs": [states[i]]})[0].tobytes() == obs[i].tobytes()
    for action in actions[30:]:
        expected = whole.step(action)
        for i, part in enumerate(parts):
            step = part.step(action[i : i + 1])
            assert step.obs.tobytes() == expected.obs[i].tobytes()
            assert step.rewards.tobytes() == expected.rewards[i].tobytes()


def test_a_state_of_another_robot_is_refused():
    envs, other = batch(robot("Hopper")), batch(robot("Walker2d"))
    for each in (envs, other):
        each.reset(range(NUM_ENVS))
    state = other.state()
    for each, own in zip(state["envs"], envs.state()["envs"], strict=True):
        each["obs"] = own["obs"]
    with pytest.raises(EnvStateError, match="another model's mjData"):
        envs.restore(state)


@pytest.mark.parametrize("normalizes", ["not", "near", "far"])
def test_a_rollout_in_one_call_equals_one_of_gymnasiums_steps_to_the_bit(normalizes):
    """far: with means that the normaliser subtracts in float64."""
    env = robot("HalfCheetah", limit=12)
    spec = probe(env)
    normalizer = None
    if normalizes != "not":
        normalizer = ObsNormalizer(spec.obs, torch.device("cpu"), torch.float32)
        offset = 1e5 if normalizes == "far" else 0.2
        normalizer.update_(moments(0.3 * torch.randn(50, spec.obs_size, dtype=torch.float64) + offset))
        assert (normalizer.offsets is not None) == (normalizes == "far")
    both = []
    for backend in ("batched", "sync"):
        model = build_model(spec, settings_of("model", hidden_sizes=[16, 16]), 0, torch.float32)
        parameters = FlatParameters(model)
        made = Collector(
            batch(env, backend), model, normalizer, rollout_steps=30, first_env=0,
            device=torch.device("cpu"), dtype=torch.float32,
        )  # fmt: skip
        made.reset(range(NUM_ENVS))
        made.use_cpp(CppNetwork(model, spec, parameters.vector))
        both.append(made)
    for iteration in range(2):
        noise = action_noise(5, iteration, range(NUM_ENVS), 30, num_noise(spec.action), normal=True)
        (found, episodes), (expected, expected_episodes) = (made.collect(noise) for made in both)
        for field in dataclasses.fields(expected):
            x, y = getattr(found, field.name), getattr(expected, field.name)
            assert not isinstance(y, torch.Tensor) or torch.equal(x, y), field.name
        # Returns are added in another order.
        returns = [[e.episode_return for e in each] for each in (episodes, expected_episodes)]
        np.testing.assert_allclose(*returns, rtol=1e-12)
        assert returns[0]


def test_auto_and_evaluation_step_robots_in_cpp():
    env = robot("Hopper")
    assert choose_backend(env, probe(env), num_envs=8, cores=2).backend == "batched"
    envs = make_eval_env(env, 2)
    assert isinstance(envs._envs, CppEnvs)
    envs.close()


def test_an_unproved_version_is_refused_with_a_remedy_and_auto_says_that_gymnasium_steps(monkeypatch, capsys):
    monkeypatch.delenv("DDPPO_WARNED", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.3.7")
    env = robot("Hopper")
    with pytest.raises(ConfigError, match=r"proved for mujoco 4.0.0, and 3.3.7 is installed: pip install"):
        probe(dataclasses.replace(env, backend="batched"))
    assert choose_backend(env, probe(env), num_envs=1, cores=1).backend == "sync"
    assert "Hopper-v5 is stepped by Gymnasium's Python, not in C++" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"healthy_reward": float("nan")}, "healthy_reward=nan is no finite number"),
        ({"reset_noise_scale": -0.1}, "reset_noise_scale=-0.1 is negative"),
        ({"terminate_when_unhealthy": 1}, "terminate_when_unhealthy=1 must be true or false"),
        ({"healthy_z_range": [1]}, r"healthy_z_range=\[1\] must be a range of two numbers"),
    ],
)
def test_settings_that_cpp_does_not_take_are_refused_by_name(kwargs, expected):
    assert why_not_batched(robot("Hopper")) is None
    with pytest.raises(ConfigError, match=expected):
        probe(dataclasses.replace(robot("Hopper", kwargs), backend="batched"))


def test_a_keyword_that_the_task_does_not_have_is_told_as_for_every_backend():
    with pytest.raises(ConfigError, match="does not accept this keyword"):
        probe(dataclasses.replace(robot("Hopper", {"gravity": 1}), backend="batched"))


def test_a_trial_with_other_bits_leaves_the_task_to_gymnasium(monkeypatch):
    from ddppo.envs.backends import mujoco_batched

    monkeypatch.setattr(mujoco_batched, "_alike", {})
    monkeypatch.setattr(mujoco_batched, "_dots_are_fused", lambda: None)
    assert "other bits than Gymnasium's" in why_not_batched(robot("Reacher"))
