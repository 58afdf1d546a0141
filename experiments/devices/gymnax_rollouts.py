"""Rate of rollouts in gymnax' CartPole-v1: by env.backend=device, and by rejax, which compiles the whole rollout.

    python experiments/devices/gymnax_rollouts.py [num_envs ...]

Both have the policy and value networks of 2 x 64 tanh, and 32 steps. The process may use one core, and its CPU time
counts, so that other work on the machine hardly matters. They take turns; the ratio is the median over the rounds.
"step" is the simulator alone behind the adapter, and "compiled" the same function of JAX without it.
"""

import os
import statistics
import sys
import time

STEPS, ROUNDS = 32, 15

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax  # noqa: E402 (after the choice of the core, which its threads inherit)
import torch  # noqa: E402
from gymnax.environments.classic_control.cartpole import CartPole  # noqa: E402
from rejax import get_algo  # noqa: E402

from ddppo.config.variants import settings_of  # noqa: E402
from ddppo.device_random import action_noise  # noqa: E402
from ddppo.distributed.gradient_sync import FlatParameters  # noqa: E402
from ddppo.envs.backends.device import DeviceEnvs  # noqa: E402
from ddppo.envs.simulators.jax_simulators import GymnaxEnvs, make_gymnax  # noqa: E402
from ddppo.envs.vec_env import EnvNames  # noqa: E402
from ddppo.models.build import build_model  # noqa: E402
from ddppo.ppo.cpp.network import CppNetwork  # noqa: E402
from ddppo.ppo.device_collector import DeviceCollector  # noqa: E402

CPU = torch.device("cpu")


def ours(num_envs, *, in_cpp):
    """Return a function that collects one rollout as `ddppo.train env=gymnax_cartpole` does."""
    names = EnvNames(range(num_envs), 0)
    simulator = GymnaxEnvs(make_gymnax("CartPole-v1", num_envs, CPU, 0), num_envs, CPU, names, 0)
    envs = DeviceEnvs(simulator, names)
    model = build_model(envs.spec, settings_of("model"), 0, torch.float32)
    collector = DeviceCollector(envs, model, None, rollout_steps=STEPS, first_env=0, dtype=torch.float32)
    if in_cpp:
        collector.use_cpp(CppNetwork(model, envs.spec, FlatParameters(model).vector))
    collector.reset(range(num_envs))
    iterations = iter(range(10**9))

    def collect():
        noise = action_noise(
            0, next(iterations), range(num_envs), STEPS, 1, normal=False, dtype=torch.float32, device=CPU
        )
        collector.collect(noise)

    return collect


class Joined(CartPole):
    """gymnax' CartPole as rejax 0.1.3 expects it: of gymnax before 1.0, with one flag for both kinds of end."""

    def step(self, key, state, action, params=None):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def steps_alone(num_envs):
    """Return two functions that make 32 steps without a policy: by the adapter, and by its compiled function alone."""
    names = EnvNames(range(num_envs), 0)
    envs = GymnaxEnvs(make_gymnax("CartPole-v1", num_envs, CPU, 0), num_envs, CPU, names, 0)
    envs.reset(torch.arange(num_envs))
    actions = torch.arange(num_envs) % 2
    in_jax = jax.dlpack.from_dlpack(actions.int())

    def adapted():
        for _ in range(STEPS):
            envs.step(actions)

    def compiled():
        carry = envs._carry
        for _ in range(STEPS):
            carry, _ = jax.block_until_ready(envs._advance(carry, in_jax))

    return adapted, compiled


def theirs(num_envs):
    """Return a function that collects one rollout of rejax' PPO."""
    env = Joined()
    algorithm = get_algo("ppo").create(
        env=env,
        env_params=env.default_params,
        num_envs=num_envs,
        num_steps=STEPS,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    )
    state = algorithm.init_state(jax.random.PRNGKey(0))
    rollout = jax.jit(type(algorithm).collect_trajectories)

    def collect():
        nonlocal state
        state, trajectories = rollout(algorithm, state)
        jax.block_until_ready(trajectories)

    return collect


def main():
    torch.set_num_threads(1)
    print("| environments | ours, C++ policy | ours, eager | step | compiled | rejax | rejax / ours, C++ |")
    print("|---|---|---|---|---|---|---|")
    for num_envs in map(int, sys.argv[1:] or ("64", "256", "1024", "4096")):
        both = ours(num_envs, in_cpp=True), ours(num_envs, in_cpp=False)
        ways = [*both, *steps_alone(num_envs), theirs(num_envs)]
        seconds = [[] for _ in ways]
        for round_ in range(ROUNDS + 2):
            for way, taken in zip(ways, seconds, strict=True):
                begun = time.process_time()
                way()
                if round_ >= 2:  # the first ones compile
                    taken.append(time.process_time() - begun)
        rates = [num_envs * STEPS / statistics.median(taken) for taken in seconds]
        ratio = statistics.median(mine / other for mine, other in zip(seconds[0], seconds[-1], strict=True))
        cells = [str(num_envs), *(f"{rate:,.0f}" for rate in rates), f"{ratio:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
