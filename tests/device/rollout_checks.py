"""Rollouts on the stand-in accelerator and on the CPU, for test_device_rollouts.py."""

import copy
from dataclasses import replace
from unittest import mock

import torch

from ddppo.config.variants import settings_of
from ddppo.device_random import action_noise
from ddppo.envs.backends.device import DeviceEnvs
from ddppo.envs.native_tasks import TensorCartPole
from ddppo.envs.vec_env import EnvNames
from ddppo.models.build import build_model
from ddppo.ppo.device_collector import DeviceCollector
from ddppo.ppo.normalization import ObsNormalizer, moments
from tests.device import checks
from tests.device.standin import counted

STEPS, ENVS = 12, 4
READ = ("actions", "logprobs", "values", "next_values", "rewards", "terminated", "truncated", "episode_start")


def rollouts(model, device, settings):
    """Return two rollouts of short CartPoles as tensors on the host, their episodes, and what the host waited for."""
    device = torch.device(device)
    envs = DeviceEnvs(TensorCartPole(ENVS, device, max_episode_steps=5), EnvNames(range(ENVS), 0))
    normalizer = None
    if settings.get("normalized"):
        normalizer = ObsNormalizer(envs.spec.obs, device, torch.float32)
        normalizer.load(moments(torch.rand(50, 4, generator=torch.Generator().manual_seed(0))))
    collector = DeviceCollector(
        envs,
        copy.deepcopy(model).to(device),
        normalizer,
        rollout_steps=STEPS,
        first_env=0,
        dtype=torch.float32,
    )
    collector.reset(range(ENVS))
    found, episodes, waits = [], [], []
    for iteration in (1, 2):
        noise = action_noise(
            0, iteration, range(ENVS), STEPS, 1, normal=False, dtype=torch.float32, device=device
        )
        with counted() as copies:
            rollout, ended = collector.collect(noise)
        found += [getattr(rollout, name).cpu().double() for name in READ]
        found += [rollout.obs.cpu().double()]
        episodes += [(e.step, e.env_index, e.length) for e in ended]
        waits += [f"{each.op} {each.where.rpartition(':')[0]}" for each in copies]
    return found, episodes, waits


def compared_rollouts(settings):
    """Return the largest difference between the two devices, whether episodes are equal, and the stand-in's waits."""
    torch.manual_seed(0)
    task = TensorCartPole(1, "cpu")
    chosen = {name: x for name, x in settings.items() if name != "normalized"}
    model = build_model(task.spec, settings_of("model", hidden_sizes=[8], **chosen), 0, torch.float32)
    on_cpu, cpu_episodes, none = rollouts(model, "cpu", settings)
    on_sim, sim_episodes, waits = rollouts(model, "sim", settings)
    assert not none
    apart = max((x - y).abs().max().item() for x, y in zip(on_cpu, on_sim, strict=True))
    return [apart, cpu_episodes == sim_episodes and len(cpu_episodes) > 0, waits]


def waits_in_a_step():
    """Train with a task whose step asks the device for a number."""

    class Asking(TensorCartPole):
        def step(self, actions):
            step = super().step(actions)
            return replace(step, rewards=step.rewards * float(step.rewards.mean()))

    with mock.patch("ddppo.envs.native_tasks.TensorCartPole", Asking):
        checks.trained_without_waiting("env=cartpole_device", "ppo.rollout_steps=8", "ppo.total_steps=64")
