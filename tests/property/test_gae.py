"""GAE against a slow oracle: on random rows, and on rollouts of real environments of every backend."""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.envs.make import make_vec_env
from ddppo.models.build import build_model
from ddppo.ppo.advantages import gae
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.scaling import BatchShape
from ddppo.seeding import action_noise
from ddppo.spaces import ArraySpec

GAMMA, LAMBDA = 0.97, 0.9
NUM_ENVS, STEPS, ROLLOUTS, LIMIT = 3, 25, 4, 12
CPU = torch.device("cpu")


@dataclass
class Row:
    """One row of one environment: what the oracle needs, and nothing else."""

    reward: float
    value: float
    next_value: float
    terminated: bool
    truncated: bool
    valid: bool


def slow_advantages(rows, gamma, gae_lambda):
    """Sum (gamma lambda)^k delta_{t+k} over what is left of each row's episode, in pure Python."""
    advantages = []
    for t, first in enumerate(rows):
        total, k = 0.0, 0
        while first.valid and t + k < len(rows) and rows[t + k].valid:
            row = rows[t + k]
            future = 0.0 if row.terminated else row.next_value
            total += (gamma * gae_lambda) ** k * (row.reward + gamma * future - row.value)
            if row.terminated or row.truncated:
                break
            k += 1
        advantages.append(total)
    return advantages


NUMBERS = st.floats(-100, 100, width=32)
ROWS = st.builds(
    Row,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from([False, False, True]),
    st.sampled_from([False, False, True]),
    st.sampled_from([True, True, False]),
)
BATCHES = st.tuples(st.integers(1, 12), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(
        st.lists(ROWS, min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1]
    )
)
UNIT = st.floats(0, 1)


def field(columns, name):
    """One field of E columns of T rows as `[T, E]`."""
    values = np.array([[getattr(row, name) for row in column] for column in columns])
    return torch.from_numpy(values).T  # [E, T] -> [T, E]


def fast_advantages(columns, gamma, gae_lambda):
    floats = [field(columns, name) for name in ("reward", "value", "next_value")]
    flags = [field(columns, name) for name in ("terminated", "truncated", "valid")]
    return gae(*floats, *flags, gamma=gamma, gae_lambda=gae_lambda)


@given(BATCHES, UNIT, UNIT)
def test_gae_is_the_decayed_sum_of_td_errors_within_each_episode(columns, gamma, gae_lambda):
    expected = [slow_advantages(column, gamma, gae_lambda) for column in columns]
    result = fast_advantages(columns, gamma, gae_lambda)
    np.testing.assert_allclose(result.T, expected, rtol=1e-9, atol=1e-9)


@given(BATCHES, UNIT)
def test_lambda_0_is_the_td_error(columns, gamma):
    for column, advantages in zip(columns, fast_advantages(columns, gamma, 0.0).T.tolist(), strict=True):
        for row, advantage in zip(column, advantages, strict=True):
            bootstrap = 0.0 if row.terminated else gamma * row.next_value
            assert advantage == pytest.approx(row.valid * (row.reward + bootstrap - row.value), abs=1e-9)


@given(BATCHES, UNIT)
def test_lambda_1_is_the_discounted_return_minus_the_value(columns, gamma):
    for column in columns:
        for row, after in pairwise(column):
            row.next_value = after.value  # so that the values in between cancel
    for column, advantages in zip(columns, fast_advantages(columns, gamma, 1.0).T.tolist(), strict=True):
        for t, advantage in enumerate(advantages):
            episode = []
            for row in column[t:]:
                if not row.valid:
                    break
                episode.append(row)
                if row.terminated or row.truncated:
                    break
            if not episode:
                assert advantage == 0
                continue
            rewards = sum(gamma**k * row.reward for k, row in enumerate(episode))
            end = episode[-1]
            rest = 0.0 if end.terminated else gamma ** len(episode) * end.next_value
            assert advantage == pytest.approx(rewards + rest - column[t].value, abs=1e-6)


@given(BATCHES, UNIT)
def test_without_a_future_the_advantage_is_the_reward_minus_the_value(columns, gae_lambda):
    expected = (field(columns, "reward") - field(columns, "value")) * field(columns, "valid")
    torch.testing.assert_close(fast_advantages(columns, 0.0, gae_lambda), expected)


class Tape(gym.vector.VectorWrapper):
    """Writes down what a batched task really answered, whatever is made of it."""

    def reset(self, **kwargs):
        obs, infos = super().reset(**kwargs)
        self.steps = [(obs.copy(), None, None, None)]
        return obs, infos

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = super().step(actions)
        self.steps.append((obs.copy(), rewards.copy(), terminated.copy(), truncated.copy()))
        return obs, rewards, terminated, truncated, infos


@dataclass
class Transition:
    """One true step of one environment, and the row of the rollouts laid end to end in which it was taken."""

    row: int
    obs: np.ndarray
    reward: float
    next_obs: np.ndarray
    terminated: bool
    truncated: bool


def replayed(seed, actions):
    """Play `actions` `[rows]` in a plain environment that is reset by hand."""
    env = gym.make("CartPole-v1", max_episode_steps=LIMIT)
    obs, _ = env.reset(seed=seed)
    transitions = []
    for row, action in enumerate(actions):
        next_obs, reward, terminated, truncated, _ = env.step(action)
        transitions.append(Transition(row, obs, reward, next_obs, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    return transitions


def from_tape(steps, i):
    """The transitions of environment i of a task that resets in the step after an end."""
    transitions, just_ended = [], False
    for row, (before, after) in enumerate(pairwise(steps)):
        if just_ended:  # this step ignored the action and only reset
            just_ended = False
            continue
        terminated, truncated = bool(after[2][i]), bool(after[3][i])
        transitions.append(
            Transition(row, before[0][i], float(after[1][i]), after[0][i], terminated, truncated)
        )
        just_ended = terminated or truncated
    return transitions


class Played:
    """Several rollouts of CartPole by one backend, beside what the environments really did."""

    def __init__(self, backend, *, normalize):
        config = EnvConfig(id="CartPole-v1", backend=backend, max_episode_steps=LIMIT)
        env = make_vec_env(config, range(NUM_ENVS), rank=0, cores=1)
        try:
            self._play(env, backend, normalize)
        finally:
            env.close()

    def _play(self, env, backend, normalize):
        if backend == "gym_vector":
            env._envs = tape = Tape(env._envs)
        self.spec = env.spec
        self.model = build_model(env.spec, settings_of("model", hidden_sizes=[16]), 3, torch.float64)
        self.normalizer = ObsNormalizer(ArraySpec((4,)), CPU, torch.float64) if normalize else None
        self.collector = Collector(
            env,
            self.model,
            self.normalizer,
            rollout_steps=STEPS,
            first_env=0,
            device=CPU,
            dtype=torch.float64,
        )
        seeds = [11, 12, 13]
        self.collector.reset(seeds)
        self.rollouts, self.episodes, self.values = [], [], []
        for k in range(ROLLOUTS):
            noise = action_noise(0, k, range(NUM_ENVS), STEPS, 1, normal=False)
            rollout, episodes = self.collector.collect(noise)
            self.rollouts.append(copied(rollout))
            self.values.append(self.value_function())
            self.episodes += [(e.env_index, k * STEPS + e.step, e.episode_return, e.length) for e in episodes]
            if self.normalizer is not None:
                self.normalizer.update_(moments(rollout.raw_obs[rollout.valid]))
        if backend == "gym_vector":
            self.transitions = [from_tape(tape.steps, i) for i in range(NUM_ENVS)]
        else:
            actions = torch.cat([rollout.actions for rollout in self.rollouts]).numpy()
            self.transitions = [replayed(seed, actions[:, i]) for i, seed in enumerate(seeds)]

    def value_function(self):
        """V as it was during this rollout."""
        frozen = ObsNormalizer(ArraySpec((4,)), CPU, torch.float64)
        if self.normalizer is not None:
            frozen.load(self.normalizer.state.clone())

        @torch.no_grad()
        def value(obs):
            x = torch.from_numpy(obs).double()
            return self.model.value(x if self.normalizer is None else frozen(x)).item()

        return value

    def rows(self, k, i):
        """Rollout k of environment i, made of its true transitions."""
        taken = {t.row: t for t in self.transitions[i]}
        value = self.values[k]
        rows = []
        for row in range(k * STEPS, (k + 1) * STEPS):
            t = taken.get(row)
            rows.append(
                Row(0.0, 0.0, 0.0, False, False, False)
                if t is None
                else Row(t.reward, value(t.obs), value(t.next_obs), t.terminated, t.truncated, True)
            )
        return rows


def copied(rollout):
    """A rollout that the next one does not overwrite."""
    kept = {name: getattr(rollout, name) for name in (f.name for f in dataclasses.fields(rollout))}
    return type(rollout)(
        **{name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in kept.items()}
    )


@pytest.fixture(scope="module")
def played():
    """Play each backend once for all tests."""
    made = {}

    def play(backend, *, normalize=False):
        if (backend, normalize) not in made:
            made[backend, normalize] = Played(backend, normalize=normalize)
        return made[backend, normalize]

    return play


BACKENDS = pytest.mark.parametrize("backend", ["sync", "pool", "gym_vector"])


@BACKENDS
@pytest.mark.parametrize("normalize", [False, True])
def test_gae_on_rollouts_is_the_oracle_on_the_true_transitions(played, backend, normalize):
    game = played(backend, normalize=normalize)
    num_ends = {"terminated": 0, "truncated": 0}
    for k, rollout in enumerate(game.rollouts):
        result = gae(
            rollout.rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            gamma=GAMMA,
            gae_lambda=LAMBDA,
        )
        for i in range(NUM_ENVS):
            rows = game.rows(k, i)
            expected = slow_advantages(rows, GAMMA, LAMBDA)
            np.testing.assert_allclose(result[:, i], expected, rtol=1e-9, atol=1e-9)
            for flag in num_ends:
                num_ends[flag] += sum(getattr(row, flag) for row in rows)
    assert min(num_ends.values()) >= 3, num_ends


@BACKENDS
def test_truncated_steps_bootstrap_from_their_true_final_observation(played, backend):
    game = played(backend)
    num_truncated = 0
    for i in range(NUM_ENVS):
        for before, after in pairwise(game.transitions[i]):
            if not before.truncated:
                continue
            k, t = divmod(before.row, STEPS)
            result = game.rollouts[k].next_values[t, i].item()
            assert game.rollouts[k].truncated[t, i]
            assert result == pytest.approx(game.values[k](before.next_obs), abs=1e-12)
            assert result != pytest.approx(game.values[k](after.obs), abs=1e-6)  # not the reset's
            num_truncated += 1
    assert num_truncated >= 3


@BACKENDS
def test_rollouts_hold_exactly_the_true_transitions(played, backend):
    game = played(backend)
    for name, expected in (
        ("obs", lambda t: t.obs.tolist()),
        ("rewards", lambda t: t.reward),
        ("terminated", lambda t: t.terminated),
        ("truncated", lambda t: t.truncated),
    ):
        rows = torch.cat([getattr(rollout, name) for rollout in game.rollouts])
        for i in range(NUM_ENVS):
            assert [rows[t.row, i].tolist() for t in game.transitions[i]] == list(
                map(expected, game.transitions[i])
            )
    valid = torch.cat([rollout.valid for rollout in game.rollouts])
    for i in range(NUM_ENVS):
        assert valid[:, i].nonzero().flatten().tolist() == [t.row for t in game.transitions[i]]
    assert valid.all() == (backend != "gym_vector")


@BACKENDS
def test_environments_live_on_so_that_episodes_span_rollouts(played, backend):
    game = played(backend)
    expected, spanning = [], 0
    for i in range(NUM_ENVS):
        total, length, first_row = 0.0, 0, 0
        for t in game.transitions[i]:
            first_row = t.row if length == 0 else first_row
            total, length = total + t.reward, length + 1
            if t.terminated or t.truncated:
                expected.append((i, t.row, total, length))
                spanning += first_row // STEPS != t.row // STEPS
                total, length = 0.0, 0
    assert sorted(game.episodes) == sorted(expected)
    assert spanning >= 2


@BACKENDS
def test_pseudo_steps_reach_no_count_no_moment_and_no_gradient(played, backend):
    game = played(backend)
    rollout = game.rollouts[1]
    num_valid = sum(STEPS <= t.row < 2 * STEPS for i in range(NUM_ENVS) for t in game.transitions[i])
    assert (num_valid == STEPS * NUM_ENVS) == (backend != "gym_vector")
    garbled = copied(rollout)
    for x in (
        garbled.obs,
        garbled.raw_obs,
        garbled.values,
        garbled.next_values,
        garbled.logprobs,
        garbled.rewards,
    ):
        x[~garbled.valid] += 5.0
    outcomes = []
    for samples in (rollout, garbled):
        config = PPOSettings(num_epochs=2, num_minibatches=4, gamma=GAMMA, gae_lambda=LAMBDA)
        model = build_model(game.spec, settings_of("model", hidden_sizes=[16]), 3, torch.float64)
        parameters, group = FlatParameters(model), Group()
        sync = FlatSync(model, parameters, group)
        learner = Learner(
            config,
            BatchShape(NUM_ENVS, STEPS, 1, 4, 2),
            model,
            sync,
            group,
            Normalizers(ObsNormalizer(ArraySpec((4,)), CPU, torch.float64), None),
            seed=0,
        )
        update = learner.update(samples, iteration=1, progress=0.0)
        assert update.num_samples == 2 * num_valid
        assert learner.obs_normalizer.state[0].tolist() == [num_valid] * 4
        outcomes.append(
            (parameters.vector.tolist(), learner.obs_normalizer.state.tolist(), update.explained_variance)
        )
    assert outcomes[0] == outcomes[1]
