"""Adapters of simulators in JAX: gymnax for real, and a task of Brax' form whose numbers are known."""

import builtins
import functools
import os
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.device import make_device_envs
from ddppo.envs.simulators import jax_simulators
from ddppo.envs.simulators.jax_simulators import BraxEnvs, GymnaxEnvs, make_brax, make_gymnax
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvStateError
from ddppo.spaces import ArraySpec
from tests.support import door, summary

CPU = torch.device("cpu")
# Compile for a few steps, not for speed.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def test_without_jax_the_commands_that_install_it_are_named(monkeypatch):
    known = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] in ("jax", "gymnax", "brax"):
            raise ImportError(f"No module named '{name}'")
        return known(name, *args, **kwargs)

    monkeypatch.setattr(jax_simulators.importlib, "import_module", without)
    with pytest.raises(
        ConfigError, match=r"gymnax.*pip.* install 'jax<0.12'.* && .*pip.* --no-deps 'gymnax>=1.0.1'"
    ):
        make_gymnax("CartPole-v1", 2, CPU, 0)
    with pytest.raises(ConfigError, match=r"needs the package brax, which cannot be imported .*install brax"):
        make_brax("ant", 2, CPU, 0)


def test_jax_computes_on_the_device_of_the_rank_and_leaves_memory_while_a_simulator_is_made(monkeypatch):
    noted, memory = [], "XLA_PYTHON_CLIENT_PREALLOCATE"

    def task(num_envs, device, seed):
        noted.append(os.environ.get(memory))
        raise ConfigError("it is called")

    fake = SimpleNamespace(
        devices=lambda kind: [f"{kind}:0", f"{kind}:1"],
        default_device=lambda place: noted.append(place) or nullcontext(),
    )
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setitem(sys.modules, "my_tasks", SimpleNamespace(task=task))
    monkeypatch.setenv(memory, "")
    env = EnvConfig(id="my_tasks:task", backend="device", simulator="brax")
    for device, expected in (("cpu", ["cpu:0", None]), ("cuda:1", ["cuda:1", "false"])):
        monkeypatch.delenv(memory)
        with pytest.raises(ConfigError, match="it is called"):
            make_device_envs(env, EnvNames(range(2), 0), torch.device(device), seed=0)
        assert noted == expected
        noted.clear()
        monkeypatch.setenv(memory, "")


# -- gymnax itself. --------------------------------------------------------------------------------------------


@pytest.fixture
def gymnax():
    pytest.importorskip("jax", reason="needs the package jax")
    return pytest.importorskip("gymnax", reason="needs the package gymnax")


@functools.cache  # compiling takes seconds
def cartpoles(num_envs, number=0, task="CartPole-v1", **kwargs):
    """Return gymnax' environments; other objects for other `number`s."""
    made = make_gymnax(task, num_envs, CPU, 0, **kwargs)
    return GymnaxEnvs(made, num_envs, CPU, EnvNames(range(num_envs), 0), 0)


def alternate(num_envs, k):
    return torch.full((num_envs,), k % 2)


def test_cartpole_of_gymnax_has_its_observations_and_actions(gymnax):
    spec = cartpoles(3).spec
    assert spec.obs == ArraySpec((4,))
    assert (spec.action.kind, spec.action.sizes) == ("discrete", (2,))


def test_the_last_observation_is_the_failed_one_and_the_next_begins_an_episode(gymnax):
    envs = cartpoles(4)
    envs.reset(torch.arange(4))
    num_failures = 0
    for _ in range(40):
        step = envs.step(torch.ones(4, dtype=torch.int64))
        angles, begun = step.final_obs[:, 2].abs(), step.obs.abs().amax(dim=1) <= 0.05
        assert torch.equal(step.terminated, angles > 12 * 2 * torch.pi / 360)
        assert torch.equal(step.terminated, begun)
        assert not step.truncated.any()
        num_failures += int(step.terminated.sum())
    assert num_failures >= 8


def test_a_time_limit_truncates_and_a_failure_terminates(gymnax):
    envs = cartpoles(4, max_episode_steps=6)
    envs.reset(torch.arange(4))
    steps = [envs.step(alternate(4, k)) for k in range(12)]
    assert [step.truncated.all().item() for step in steps] == [k in (5, 11) for k in range(12)]
    assert not any(step.terminated.any() for step in steps)
    # Truncated in the air: the last observation is far from a start.
    assert (steps[5].final_obs != steps[5].obs).any(dim=1).all()


def test_episodes_follow_from_seeds_and_not_from_the_other_environments(gymnax):
    whole, part = cartpoles(4), cartpoles(2)
    seeds = torch.tensor([5, 2**40, 2**40 + 2**33, 7])
    obs = whole.reset(seeds).clone()
    assert len(obs.unique(dim=0)) == 4  # all 64 bits of a seed count
    assert torch.equal(part.reset(seeds[2:]), obs[2:])
    for k in range(60):
        everything, some = whole.step(alternate(4, k // 3)), part.step(alternate(2, k // 3))
        assert torch.equal(everything.obs[2:], some.obs)
        assert torch.equal(everything.final_obs[2:], some.final_obs)


def test_a_step_is_compiled_once(gymnax):
    envs = cartpoles(4)
    for _ in range(3):
        envs.reset(torch.arange(4))
        for k in range(3):
            envs.step(alternate(4, k))
    assert envs._begin._cache_size() == 1
    assert envs._advance._cache_size() == 1


def test_a_restored_state_goes_on_with_the_same_bits_in_environments_that_never_began(gymnax):
    envs = cartpoles(4)
    envs.reset(torch.arange(4))
    for k in range(20):
        last = envs.step(alternate(4, k)).obs
    saved = envs.state()
    assert all(x.shape[0] == 4 for x in saved.values())
    later = [envs.step(torch.ones(4, dtype=torch.int64)).obs for _ in range(20)]
    again = cartpoles(4, number=1)
    assert torch.equal(again.restore(saved), last)
    assert all(torch.equal(again.step(torch.ones(4, dtype=torch.int64)).obs, x) for x in later)
    with pytest.raises(EnvStateError, match="environments 0 to 1 of rank 0 cannot go on"):
        cartpoles(2).restore(saved)


def test_what_a_rollout_does_to_its_tensors_does_not_reach_the_simulator(gymnax):
    clean, spoiled = cartpoles(4), cartpoles(4, number=1)
    clean.reset(torch.arange(4))
    spoiled.reset(torch.arange(4)).fill_(9)
    actions = torch.zeros(4, dtype=torch.int64)
    for k in range(30):
        wanted = clean.step(alternate(4, k)).obs
        actions.fill_(k % 2)
        step = spoiled.step(actions)
        actions.fill_(-1)
        assert torch.equal(step.obs, wanted)
        for x in (step.obs, step.rewards, step.final_obs):
            x.fill_(7)


def test_tensors_that_go_by_dlpack_as_on_a_gpu_hold_the_same_numbers(gymnax):
    by_numpy, by_dlpack = cartpoles(4), cartpoles(4, number=1)
    by_dlpack._is_on_cpu = False
    try:
        assert torch.equal(by_numpy.reset(torch.arange(4)), by_dlpack.reset(torch.arange(4)))
        for k in range(15):
            one, other = (envs.step(alternate(4, k // 3)) for envs in (by_numpy, by_dlpack))
            for name in ("obs", "final_obs", "rewards", "terminated", "truncated"):
                assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.equal(by_dlpack.restore(by_numpy.state()), one.obs)
    finally:
        by_dlpack._is_on_cpu = True


def test_continuous_actions_are_clipped_and_observed_numbers_are_one_hot(gymnax):
    pendulum = cartpoles(2, task="Pendulum-v1")
    assert (pendulum.spec.action.low, pendulum.spec.action.high) == ((-2.0,), (2.0,))
    seen = []
    for torque in (2.0, 50.0):
        pendulum.reset(torch.arange(2))
        seen.append(pendulum.step(torch.full((2, 1), torque)).obs)
    assert torch.equal(*seen)
    lake = cartpoles(2, task="FrozenLake-misc")
    assert lake.spec.obs.shape == (lake._env.n_states,)
    assert lake.reset(torch.arange(2)).sum(dim=1).tolist() == [1, 1]


def test_unknown_tasks_and_parameters_are_refused(gymnax):
    with pytest.raises(
        ConfigError, match=r"env.kwargs.task=CartPole-v7: gymnax has no such task .did you mean CartPole-v1"
    ):
        make_gymnax("CartPole-v7", 2, CPU, 0)
    with pytest.raises(
        ConfigError, match=r"env.kwargs.gravty: CartPole-v1 has no such parameter .did you mean gravity"
    ):
        make_gymnax("CartPole-v1", 2, CPU, 0, gravty=3)
    with pytest.raises(
        ConfigError, match=r"env.simulator=gymnax: SimpleNamespace lacks reset, step, action_space"
    ):
        GymnaxEnvs(SimpleNamespace(), 2, CPU, EnvNames(range(2), 0), 0)


def test_gymnax_before_1_0_is_refused_because_it_hides_time_limits(gymnax):
    env, params = make_gymnax("CartPole-v1", 2, CPU, 0)

    class Older(type(env)):
        def step(self, key, state, action, params):
            obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
            return obs, state, reward, terminated | truncated, {"discount": info["discount"]}

    with pytest.raises(ConfigError, match=r"does not tell a time limit from a failure.*gymnax>=1.0.1"):
        GymnaxEnvs((Older(), params), 2, CPU, EnvNames(range(2), 0), 0)


def test_a_device_that_jax_does_not_see_is_refused(gymnax):
    made = make_gymnax("CartPole-v1", 2, CPU, 0)
    with pytest.raises(
        ConfigError, match=re.escape("on cuda:0, and JAX sees no cuda, only cpu: set device=cpu")
    ):
        GymnaxEnvs(made, 2, torch.device("cuda:0"), EnvNames(range(2), 0), 0)
    with pytest.raises(ConfigError, match=re.escape("computes on cpu:3, and JAX sees 1 of this type")):
        GymnaxEnvs(made, 2, torch.device("cpu:3"), EnvNames(range(2), 0), 0)


# -- The form of Brax. -----------------------------------------------------------------------------------------

EDGE = 2.0


@pytest.fixture
def walker():
    """Return a class of Brax' form: a place moves by the action; 2 or more fails. It starts at random near 0.

    The state keeps the last action and a key in `info`, and the age in `data`, as tasks of Playground do.
    """
    jax = pytest.importorskip("jax", reason="needs the package jax")
    import dataclasses

    numpy = jax.numpy

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        data: object
        obs: object
        reward: object
        done: object
        metrics: dict
        info: dict

        def replace(self, **changes):
            return dataclasses.replace(self, **changes)

    class Walker:
        action_size = 1

        def observed(self, data, last):
            full = numpy.stack([data["place"], data["age"].astype(numpy.float32), last[0]])
            return {"state": full[:2], "privileged_state": full}

        def reset(self, key):
            place = jax.random.uniform(key, maxval=0.1)
            data = {"place": place, "age": numpy.zeros((), numpy.int32)}
            info = {"key": key, "last": numpy.zeros(1)}
            zero = numpy.zeros(())
            return State(data, self.observed(data, info["last"]), zero, zero, {"speed": zero}, info)

        def step(self, state, action):
            data = {"place": state.data["place"] + action[0], "age": state.data["age"] + 1}
            # Brax' tasks do not clear done: one that is left from before would end the next episode as well.
            done = numpy.maximum(state.done, (data["place"] >= EDGE).astype(numpy.float32))
            info = {"key": jax.random.split(state.info["key"])[0], "last": action}
            return State(data, self.observed(data, action), data["place"], done, {"speed": action[0]}, info)

    return Walker


def walkers(made, num_envs=3, limit=None, **options):
    made.max_episode_steps = limit
    return BraxEnvs(made, num_envs, CPU, EnvNames(range(num_envs), 0), 0, **options)


SPEEDS = torch.tensor([[0.9], [0.3], [0.0]])  # ends by failure after 3 steps, by the limit of 5, by the limit


def test_playgrounds_critic_reads_the_privileged_state(walker):
    spec = walkers(walker()).spec
    assert spec.obs == {"state": ArraySpec((2,)), "privileged_state": ArraySpec((3,))}
    assert (spec.policy_keys, spec.value_keys) == (("state",), ("privileged_state",))
    assert (spec.action.low, spec.action.high) == ((-1.0,), (1.0,))


@pytest.mark.parametrize("full_reset", [True, False])
def test_failures_and_limits_are_told_apart_and_last_observations_kept(walker, full_reset):
    envs = walkers(walker(), limit=5, full_reset=full_reset)
    start = envs.reset(torch.arange(3))["state"].clone()
    before = start
    starts = {i: [start[i, 0].item()] for i in range(3)}
    ages = torch.zeros(3)
    for _ in range(20):
        step = envs.step(SPEEDS)
        ages += 1
        place = before[:, 0] + SPEEDS[:, 0]
        assert torch.allclose(step.final_obs["state"], torch.stack([place, ages], dim=1))
        assert torch.allclose(step.rewards, place)
        assert torch.equal(step.terminated, place >= EDGE)
        assert torch.equal(step.truncated, (ages >= 5) & (place < EDGE))
        ended = step.terminated | step.truncated
        ages[ended] = 0
        assert torch.equal(step.obs["state"][:, 1], ages)
        for i in ended.nonzero().flatten().tolist():
            starts[i].append(step.obs["state"][i, 0].item())
        assert step.metrics["speed"] == pytest.approx(0.4)
        before = step.obs["state"].clone()
    # Anew each time, or the same start each time as Brax' AutoResetWrapper does.
    for begun in starts.values():
        assert len(begun) >= 5
        assert len(set(begun)) == (len(begun) if full_reset else 1)


def test_an_episode_of_brax_follows_from_its_seed_alone(walker):
    whole, part = (walkers(walker(), num_envs=n, limit=5) for n in (3, 1))
    whole.reset(torch.arange(3))
    part.reset(torch.tensor([2]))
    for _ in range(12):  # the others fail meanwhile, which resets nothing here
        assert torch.equal(whole.step(SPEEDS).obs["state"][2:], part.step(SPEEDS[2:]).obs["state"])


def test_an_action_that_the_state_keeps_is_not_the_rollouts_tensor(walker):
    envs = walkers(walker())
    envs.reset(torch.arange(3))
    actions = SPEEDS.clone()
    envs.step(actions)
    actions.fill_(77)
    assert torch.equal(envs._tensors(envs._carry[1][0].info["last"]), SPEEDS)


def test_an_action_may_be_repeated_as_the_tasks_configuration_says(walker):
    made = walker()
    made._config = {"episode_length": 4, "action_repeat": 2}
    envs = walkers(made)
    begun = envs.reset(torch.arange(3))["state"][:, 0].clone()
    step = envs.step(SPEEDS)
    assert torch.allclose(step.rewards, 2 * begun + 3 * SPEEDS[:, 0])  # two steps, two rewards
    assert not step.truncated.any()
    assert envs.step(SPEEDS).truncated[1:].all()


def test_wrapped_environments_are_refused_for_they_lose_last_observations(walker):
    class BraxAutoResetWrapper:
        def __init__(self, env):
            self.env = env
            self.action_size = env.action_size

    with pytest.raises(
        ConfigError, match="Walker is wrapped in BraxAutoResetWrapper: return the bare environment"
    ):
        walkers(BraxAutoResetWrapper(walker()))
    with pytest.raises(ConfigError, match="SimpleNamespace is no environment of Brax or Playground"):
        walkers(SimpleNamespace())


# -- Runs. -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_cartpole_of_gymnax_reaches_475(world_size, gymnax, tmp_path):
    """Seed 0, its preset of 655,360 steps, 20 deterministic episodes: 20 seconds."""
    arguments = ["env=gymnax_cartpole", f"dist.world_size={world_size}", "eval.final_episodes=20"]
    result = door(*arguments, "log.tensorboard=false", "log.progress=none", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 475
