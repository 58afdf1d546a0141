"""Environments that live on a device (env.backend=device), here on the CPU: the tasks, and the collector's rollouts."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from ddppo.envs.backends.device import DeviceEnvs
from ddppo.envs.native_tasks import Quadruped, TensorCartPole
from ddppo.envs.vec_env import EnvNames

CPU = torch.device("cpu")


def cartpole(num_envs=3, first=0, **kwargs):
    task = TensorCartPole(num_envs, CPU, dtype="float64", **kwargs)
    return DeviceEnvs(task, EnvNames(range(first, first + num_envs), 0))


def test_cartpole_moves_as_gymnasiums_does():
    envs = cartpole(4)
    obs = envs.reset([1, 2, 3, 4])
    assert (obs.abs() <= 0.05).all()
    theirs = [gym.make("CartPole-v1").unwrapped for _ in range(4)]
    for i, env in enumerate(theirs):
        env.reset(seed=0)
        env.state = tuple(obs[i].tolist())
    generator = torch.Generator().manual_seed(0)
    ended = torch.zeros(4, dtype=torch.bool)
    while not ended.all():
        actions = torch.randint(2, (4,), generator=generator)
        step = envs.step(actions)
        for i, env in enumerate(theirs):
            if not ended[i]:
                _, reward, terminated, _, _ = env.step(int(actions[i]))
                assert np.allclose(step.final_obs[i], env.state, atol=1e-13)
                assert (step.rewards[i], step.terminated[i]) == (reward, terminated)
        ended |= step.terminated


def test_an_environment_begins_anew_in_the_step_in_which_its_episode_ends():
    envs = cartpole(2, max_episode_steps=5)
    envs.reset([7, 8])
    first = [envs.step(torch.tensor([0, 1])) for _ in range(4)]
    assert not any(step.truncated.any() for step in first)
    step = envs.step(torch.tensor([0, 1]))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert (step.obs.abs() <= 0.05).all()
    assert (step.final_obs[:, 1].abs() > 0.5).all()  # five pushes in one direction
    assert not torch.equal(step.obs, cartpole(2).reset([7, 8]))  # the second episode is another one


def test_an_environments_episodes_follow_from_its_own_seed():
    def played(envs, seeds):
        first = envs.reset(seeds).clone()
        pushes = [torch.full((envs.num_envs,), t // 2 % 2) for t in range(60)]
        return torch.stack([first, *(envs.step(push).obs.clone() for push in pushes)])

    whole = played(cartpole(5), [11, 12, 13, 14, 15])
    parts = [played(cartpole(2), [11, 12]), played(cartpole(3), [13, 14, 15])]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_a_state_goes_on_to_the_bit_in_another_batch():
    envs = cartpole(3, max_episode_steps=9)
    envs.reset([1, 2, 3])
    for _ in range(25):
        envs.step(torch.tensor([0, 1, 1]))
    states = envs.state()["envs"]
    other = cartpole(2, max_episode_steps=9)
    other.go_on_from({"envs": states[1:]})
    other.reset([0, 0])
    for _ in range(20):
        ours, theirs = envs.step(torch.tensor([0, 1, 1])), other.step(torch.tensor([1, 1]))
        assert torch.equal(ours.obs[1:], theirs.obs)
        assert torch.equal(ours.truncated[1:], theirs.truncated)


# -- The quadruped.


def quadruped(num_envs=4, **kwargs):
    task = Quadruped(num_envs, CPU, dtype="float64", **kwargs)
    return DeviceEnvs(task, EnvNames(range(num_envs), 0))


def test_a_quadruped_stands_on_straight_legs_at_its_height():
    envs = quadruped()
    envs.reset(range(4))
    for _ in range(150):
        step = envs.step(torch.zeros(4, 12, dtype=torch.float64))
        assert not step.terminated.any()
    assert step.metrics["height"].item() == pytest.approx(0.3, abs=1e-3)
    gravity = step.obs["actor"][:, 3:6]
    torch.testing.assert_close(
        gravity, torch.tensor([0.0, 0.0, -1.0]).double().expand(4, 3), atol=1e-2, rtol=0
    )


def test_feet_that_move_backwards_on_the_ground_push_the_body_ahead_and_lifted_feet_do_not():
    def speed_after(actions):
        envs = quadruped(2)
        envs.reset([1, 2])
        for _ in range(50):
            envs.step(torch.zeros(2, 12, dtype=torch.float64))
        for _ in range(5):
            step = envs.step(actions)
        return step.obs["critic"][:, 0].mean().item()

    legs = torch.zeros(2, 4, 3, dtype=torch.float64)
    legs[:, :, 1] = -2.0  # all thighs swing backwards
    pushing = speed_after(legs.flatten(1))
    legs[:, 1:3, 1], legs[:, 1:3, 2] = 2.0, 2.0  # two swing ahead, lifted by the calf
    alternating = speed_after(legs.flatten(1))
    legs[:, 1:3, 2] = 0.0  # the same on the ground
    dragging = speed_after(legs.flatten(1))
    assert pushing > alternating > dragging


def test_a_quadruped_that_lies_down_terminates():
    envs = quadruped(2)
    envs.reset([1, 2])
    lying = torch.zeros(2, 4, 3, dtype=torch.float64)
    lying[..., 0] = lying[..., 2] = 20.0  # legs spread and folded
    ended = [envs.step(lying.flatten(1)).terminated for _ in range(50)]
    assert torch.stack(ended).any(0).all()
