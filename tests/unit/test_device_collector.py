"""Rollouts that stay on a device (ddppo/ppo/device_collector.py); tests/device has those on an accelerator."""

import numpy as np
import pytest
import torch

from ddppo.algorithms import device_episodes
from ddppo.algorithms.contract import Algorithm
from ddppo.algorithms.device_episodes import DeviceEpisodes
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.variants import settings_of
from ddppo.device_random import action_noise
from ddppo.envs.backends.device import DeviceEnvs, HostEnvs
from ddppo.envs.native_tasks import DeviceTask, TensorCartPole
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError, EnvOutputError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model
from ddppo.ppo import compiled
from ddppo.ppo.advantages import gae
from ddppo.ppo.collector import Collector
from ddppo.ppo.device_collector import DeviceCollector
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each, leaves

CPU, DTYPE = torch.device("cpu"), torch.float64
STEPS, ENVS, FIRST = 12, 5, 3
BOX = ActionSpec("box", (2,), (-1.0, -0.5), (1.0, 0.5))


class Walk(DeviceTask):
    """x moves on by the sum of two actions, and the state also keeps both. An episode ends at |x| > 2."""

    num_uniforms = 1
    action = BOX

    def __init__(self, num_envs=ENVS, device=CPU, seed=0, max_episode_steps=4):
        spec = EnvSpec({"x": ArraySpec((1,), "float64"), "acts": ArraySpec((2,), "float64")}, self.action)
        super().__init__(spec, num_envs, device, max_episode_steps, "float64")

    def begin(self, u):
        return torch.nn.functional.pad(u - 0.5, (0, 2))

    def advance(self, state, actions):
        x = state[:, 0] + actions.sum(1)
        return torch.stack([x, *actions.unbind(1)], 1), 0.1 * x + 1, x.abs() > 2

    def observe(self, state):
        return {"x": state[:, :1], "acts": state[:, 1:]}

    def metrics(self, state):
        return {"height": state[:, 0].abs().mean(), "ones": torch.tensor(1.0)}


class Bits(Walk):
    action = ActionSpec("multi_binary", (2,))


class Choices(Walk):
    action = ActionSpec("multi_discrete", (3, 2))

    def advance(self, state, actions):
        return super().advance(state, actions.to(DTYPE) - 0.6)


class ShortCartPole(TensorCartPole):
    def __init__(self):
        super().__init__(ENVS, CPU, max_episode_steps=7, dtype="float64")


def envs_of(task):
    return DeviceEnvs(task, EnvNames(range(FIRST, FIRST + ENVS), 0))


def network(spec, **settings):
    torch.manual_seed(0)
    return build_model(spec, settings_of("model", hidden_sizes=[8], **settings), 0, DTYPE)


def both(task, *, normalized=False, sequence_length=None, **settings):
    """Return a collector on the device and one on the host, of the same model in two batches of the same task."""
    first, second = envs_of(task()), HostEnvs(envs_of(task()))
    model = network(first.spec, **settings)
    normalizer = None
    if normalized:
        normalizer = ObsNormalizer(first.spec.obs, CPU, DTYPE)
        normalizer.load(moments(torch.rand(50, 3 if isinstance(first.spec.obs, dict) else 4, dtype=DTYPE)))
    sizes = {
        "rollout_steps": STEPS,
        "first_env": FIRST,
        "dtype": DTYPE,
        "sequence_length": sequence_length,
    }
    host = Collector(second, model, normalizer, device=CPU, **sizes)
    return DeviceCollector(first, model, normalizer, **sizes), host


def noise(model, iteration=1):
    return action_noise(
        0, iteration, range(FIRST, FIRST + ENVS), STEPS, model.num_noise,
        normal=model.spec.action.kind == "box", dtype=DTYPE, device=CPU,
    )  # fmt: skip


READ = ("obs", "actions", "logprobs", "values", "next_values", "rewards", "terminated", "truncated", "state")


def recorded(function):
    """Do as `record` does: call the function a few times, and return what starts it again."""
    function()
    function()
    return function


def compare(one, other, name=""):
    if isinstance(one, dict):
        for key in one:
            compare(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12, msg=lambda text: f"{name}: {text}")
    else:
        assert one == other, name


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (ShortCartPole, {}),
        (Walk, {}),
        (Bits, {}),
        (Choices, {}),
        (ShortCartPole, {"normalized": True}),
        (Walk, {"normalized": True}),
        (Walk, {"memory": "lstm", "sequence_length": 4}),
    ],
)
def test_a_rollout_on_the_device_equals_that_of_the_host(task, settings):
    device, host = both(task, **settings)
    for collector in (device, host):
        collector.reset(range(ENVS))
    for iteration in (1, 2):
        drawn = noise(device.model, iteration)
        ours, episodes = device.collect(drawn)
        theirs, other_episodes = host.collect(drawn.numpy())
        for name in ours.__dataclass_fields__:
            if name == "next_values":  # those of terminated rows are not read
                read = ~ours.terminated
                compare(ours.next_values[read], theirs.next_values[read], name)
            elif name not in ("extras", "is_full"):
                compare(getattr(ours, name), getattr(theirs, name), name)
        assert ours.truncated.any()
        for one, other in zip(episodes, other_episodes, strict=True):
            assert (one.step, one.env_index, one.length) == (other.step, other.env_index, other.length)
            assert one.episode_return == pytest.approx(other.episode_return, rel=1e-12)
        for name in ("starts", "returns", "lengths"):
            np.testing.assert_allclose(getattr(device, name), getattr(host, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (ShortCartPole, {}),
        (Walk, {"normalized": True}),
        (Bits, {}),
        (Choices, {}),
        (Walk, {"memory": "lstm", "sequence_length": 4}),
    ],
)
def test_recorded_kernels_act_as_the_model_does_call_by_call(task, settings, monkeypatch):
    monkeypatch.setattr(compiled, "record", recorded)
    eager, graph = (both(task, **settings)[0] for _ in range(2))
    for collector in (eager, graph):
        collector.reset(range(ENVS))
    graph.record_acting()  # also within a run, when episodes are under way
    for iteration in (1, 2):
        found = []
        for collector in (eager, graph):
            rollout, episodes = collector.collect(noise(collector.model, iteration))
            found.append(({name: getattr(rollout, name) for name in READ}, episodes))
        compare(*(x for x, _ in found))
        assert found[0][1] == found[1][1]
        for collector in (eager, graph):  # learning moves parameters where they are
            for p in collector.model.parameters():
                p.data.mul_(1.1)


def test_kernels_that_compute_something_else_when_started_again_are_not_used(monkeypatch):
    def record(function):
        recorded(function)
        return lambda: None  # as a graph that was recorded from other memory

    monkeypatch.setattr(compiled, "record", record)
    device, _ = both(Walk)
    eager = device.acting
    with pytest.raises(
        compiled.CannotRecord, match="recorded kernels give other actions than the model does"
    ):
        device.record_acting()
    assert device.acting is eager


class RecordableWalk(Walk):
    is_recordable = True


@pytest.mark.parametrize("task", [ShortCartPole, RecordableWalk])
def test_recorded_steps_of_environments_are_those_of_the_task_also_after_a_reset_and_a_restore(
    task, monkeypatch
):
    monkeypatch.setattr(compiled, "record", recorded)
    eager, graph = (both(task)[0] for _ in range(2))
    graph.record_env()
    kept = None
    for iteration, begins in enumerate(("reset", "goes on", "reset", "restored"), 1):
        found = []
        for collector in (eager, graph):
            if begins == "restored":
                collector.env.go_on_from(kept)
            if begins != "goes on":
                collector.reset(range(iteration, iteration + ENVS))
            rollout, episodes = collector.collect(noise(collector.model, iteration))
            # Copies, because a rollout lies in the collector's buffers.
            found.append(({name: each(torch.clone, getattr(rollout, name)) for name in READ[:-1]}, episodes))
            found[-1][0].update({name: torch.tensor(x) for name, x in collector.env_metrics.items()})
        compare(*(x for x, _ in found))
        assert found[0][1] == found[1][1]
        kept = eager.env.state()


def test_steps_that_compute_something_else_when_started_again_are_not_used(monkeypatch):
    def record(function):
        recorded(function)
        return lambda: None  # as a graph that was recorded from other memory

    monkeypatch.setattr(compiled, "record", record)
    device, _ = both(RecordableWalk)
    task = device.env.envs
    with pytest.raises(compiled.CannotRecord, match="step the environments otherwise than the task does"):
        device.record_env()
    assert device.env.envs is task


@pytest.mark.parametrize("learns_by_ratio", [True, False])
@pytest.mark.parametrize(("task", "rows"), [(ShortCartPole, 40), (Walk, 40), (Walk, 3)])
def test_whole_episodes_on_the_device_equal_those_of_the_host(task, rows, learns_by_ratio, monkeypatch):
    monkeypatch.setattr(device_episodes, "_LOOKS", 8)
    first, second = envs_of(task()), HostEnvs(envs_of(task()))
    model, sizes = network(first.spec), {"rollout_steps": rows, "first_env": FIRST, "dtype": DTYPE}
    device = DeviceEpisodes(first, model, None, **sizes, learns_by_ratio=learns_by_ratio)
    host = EpisodeCollector(second, model, None, device=CPU, **sizes)
    if not learns_by_ratio:
        host.use_algorithm(Algorithm(first.spec, None, model))
    for iteration in (1, 2):
        drawn = action_noise(
            0, iteration, range(FIRST, FIRST + ENVS), rows, model.num_noise,
            normal=model.spec.action.kind == "box", dtype=DTYPE, device=CPU,
        )  # fmt: skip
        for collector in (device, host):
            collector.reset(range(iteration, iteration + ENVS))
        ours, episodes = device.collect(drawn)
        theirs, other_episodes = host.collect(drawn.numpy())
        valid = theirs.valid
        assert torch.equal(ours.valid, valid)
        assert device.num_steps == valid.sum()
        for name in ("rewards", "terminated", "truncated", "episode_start", "ended_by"):
            if getattr(theirs, name) is not None:
                compare(getattr(ours, name), getattr(theirs, name), name)
        for name in ("obs", "raw_obs", "actions", *(["logprobs"] if learns_by_ratio else [])):
            one, other = getattr(ours, name), getattr(theirs, name)
            for x, y in zip(leaves(one), leaves(other), strict=True):
                compare(x[valid], y[valid], name)
        assert len(episodes) == len(other_episodes) == ENVS
        for one, other in zip(episodes, other_episodes, strict=True):
            assert (one.step, one.env_index, one.length) == (other.step, other.env_index, other.length)
            assert one.episode_return == pytest.approx(other.episode_return, rel=1e-12)


def test_actions_are_clipped_to_the_bounds_and_learned_from_as_drawn():
    device, _ = both(Walk)
    device.reset(range(ENVS))
    rollout, _ = device.collect(3 * noise(device.model))
    stepped = rollout.obs["acts"][1:]
    bounds = torch.tensor([1.0, 0.5], dtype=DTYPE)
    inside = ~rollout.episode_start[1:]
    clipped = rollout.actions[:-1].clamp(-bounds, bounds)
    assert torch.equal(stepped[inside], clipped[inside])
    assert (rollout.actions.abs() > bounds).any()


def test_metrics_of_the_simulator_are_means_over_the_steps():
    device, _ = both(Walk)
    device.reset(range(ENVS))
    device.collect(noise(device.model))
    total, count = device.env_metrics["ones"]
    assert (total, count) == (STEPS, STEPS)
    assert 0 < device.env_metrics["height"][0] / STEPS < 2


# -- A task whose last observation matters: x grows by 1, and r = (1 - gamma) x - gamma makes V(x) = x exact.

GAMMA = 0.9


class Growth(DeviceTask):
    num_uniforms = 1

    def __init__(self, *, has_final_obs):
        spec = EnvSpec(ArraySpec((1,), "float64"), ActionSpec("discrete", (2,)))
        super().__init__(spec, ENVS, CPU, 4, "float64")
        self.has_final_obs = has_final_obs

    def begin(self, u):
        return u

    def advance(self, state, actions):
        x = state[:, 0]
        return state + 1, (1 - GAMMA) * x - GAMMA, torch.zeros(ENVS, dtype=torch.bool)


class Exact(ActorCritic):
    """V(x) = x."""

    def __init__(self, spec):
        super().__init__(spec, settings_of("model"))
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=DTYPE))

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        return obs * self.w + torch.zeros(2, dtype=DTYPE)

    def value(self, obs):
        return obs[:, 0]


@pytest.mark.parametrize("has_final_obs", [True, False])
def test_true_final_observations_leave_no_error_of_values_and_the_fallback_leaves_that_of_one_step(
    has_final_obs,
):
    envs = envs_of(Growth(has_final_obs=has_final_obs))
    collector = DeviceCollector(envs, Exact(envs.spec), None, rollout_steps=STEPS, first_env=0, dtype=DTYPE)
    collector.reset(range(ENVS))
    rollout, _ = collector.collect(noise(collector.model))
    errors = gae(
        rollout.rewards, rollout.values, rollout.next_values, rollout.terminated, rollout.truncated, rollout.valid,
        gamma=PPOSettings(gamma=GAMMA).gamma, gae_lambda=0.0,
    )  # fmt: skip
    # V(s_t) instead of V(s_{t+1}) = V(s_t) + 1: gamma too little where the time limit cut an episode.
    expected = torch.zeros(STEPS, ENVS, dtype=DTYPE)
    if not has_final_obs:
        expected[3::4] = -GAMMA
    torch.testing.assert_close(errors, expected, rtol=0, atol=1e-12)


# -- Faults.


class Faulty(Walk):
    def __init__(self, what, where, row):
        super().__init__()
        self.what, self.where, self.row, self.taken = what, where, row, 0

    def step(self, actions):
        step = super().step(actions)
        self.taken += 1
        if self.taken == self.row:
            if self.what == "raise":
                raise RuntimeError("out of order")
            target = step.rewards if self.what == "reward" else step.obs["acts"]
            target[self.where] = float("nan")
        return step


@pytest.mark.parametrize(
    ("what", "row", "sentence"),
    [
        ("reward", 3, "environment 5 of rank 0 returned nan as the reward of step 3"),
        ("obs", 15, "environment 5 of rank 0 returned nan in the observation of step 15"),
    ],
)
def test_nan_is_reported_with_environment_and_step(what, row, sentence):
    envs = envs_of(Faulty(what, 2, row))
    collector = DeviceCollector(
        envs, network(envs.spec), None, rollout_steps=STEPS, first_env=FIRST, dtype=DTYPE
    )
    collector.reset(range(ENVS))
    if row > STEPS:
        collector.collect(noise(collector.model))
    with pytest.raises(EnvOutputError, match=sentence):
        collector.collect(noise(collector.model, 2))


def test_an_exception_of_the_simulator_names_the_environments_and_the_step():
    envs = envs_of(Faulty("raise", 0, 5))
    collector = DeviceCollector(
        envs, network(envs.spec), None, rollout_steps=STEPS, first_env=FIRST, dtype=DTYPE
    )
    collector.reset(range(ENVS))
    with pytest.raises(
        EnvError, match="environments 3 to 7 of rank 0 raised RuntimeError in step 5: out of order"
    ):
        collector.collect(noise(collector.model))


def test_numbers_whose_sum_overflows_are_no_fault():
    envs = envs_of(Growth(has_final_obs=True))
    collector = DeviceCollector(envs, Exact(envs.spec), None, rollout_steps=STEPS, first_env=0, dtype=DTYPE)
    collector.reset(range(ENVS))
    envs.envs._state.fill_(1e308)
    rollout, _ = collector.collect(noise(collector.model))
    assert rollout.rewards.isfinite().all()
