"""Steps per second of CPU time of 1,024 CartPoles in one process: tensors, and the batch in C++.

    python experiments/devices/cartpole_rollouts.py

Seconds are CPU time of one thread (time.process_time), so that other programs on the machine count less. A rollout is
acting, stepping and values, as training does them; an update is PPO's in C++ (ppo=cartpole_device).
"""

import time

import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.device_random import action_noise
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.envs.backends.device import make_device_envs
from ddppo.envs.make import make_vec_env
from ddppo.envs.vec_env import EnvNames
from ddppo.models.build import build_model
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.device_collector import DeviceCollector

CPU, ENVS, STEPS, ROLLOUTS = torch.device("cpu"), 1024, 32, 30


def seconds(collector, noise):
    """Return the least CPU seconds of a rollout."""
    collector.reset(range(ENVS))
    best = float("inf")
    for _ in range(ROLLOUTS):
        start = time.process_time()
        collector.collect(noise)
        best = min(best, time.process_time() - start)
    return best


def main():
    torch.set_num_threads(1)
    env = EnvConfig(id="ddppo.envs.native_tasks:TensorCartPole", num_envs=ENVS, backend="device")
    noise = action_noise(0, 1, range(ENVS), STEPS, 1, normal=False, dtype=torch.float32, device=CPU)
    settings = {"rollout_steps": STEPS, "first_env": 0, "dtype": torch.float32}
    rows = {}
    for name in ("in C++", "on the device, policy in C++", "on the device, policy in torch"):
        on_device = name != "in C++"
        if on_device:
            envs = make_device_envs(env, EnvNames(range(ENVS), 0), CPU, 0)
        else:
            envs = make_vec_env(
                EnvConfig(id="CartPole-v1", num_envs=ENVS, backend="batched"), range(ENVS), 0, 1
            )
        model = build_model(envs.spec, settings_of("model"), 0, torch.float32)
        if on_device:
            collector = DeviceCollector(envs, model, None, **settings)
        else:
            collector = Collector(envs, model, None, device=CPU, **settings)
        parameters = FlatParameters(model)
        if name != "on the device, policy in torch":
            collector.use_cpp(CppNetwork(model, envs.spec, parameters.vector))
        rows[name] = seconds(collector, noise if on_device else noise.double().numpy())
    for name, took in rows.items():
        print(f"{name:32}{ENVS * STEPS / took:>12,.0f} steps/s  {rows['in C++'] / took:.2f} of C++")


if __name__ == "__main__":
    main()
