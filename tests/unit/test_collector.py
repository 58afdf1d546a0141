import dataclasses

import numpy as np
import pytest
import torch

from ddppo.algorithms.ppo import with_ratios
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.topologies.messages import RolloutMessage
from ddppo.envs.make import make_vec_env
from ddppo.envs.vec_env import EnvNames, EnvStep
from ddppo.loop.evaluation import Policy
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution, num_noise
from ddppo.ppo.collector import Collector
from ddppo.ppo.normalization import ObsNormalizer, moments
from ddppo.ppo.rollout import FinishedEpisode
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

CPU = torch.device("cpu")


class CountingEnvs:
    """Two environments in memory that observe (number of the environment + 10, steps since reset).

    Environment 0 ends after 3 steps by termination, environment 1 after 5 by truncation; a step is worth the number
    of steps before it. `next_step` puts a pseudo-step, worth nonsense, after every end. The mask allows all choices
    but (steps mod 3). Arrays are reused, as the contract permits.
    """

    def __init__(self, action, *, next_step=False, masked=False):
        self.spec = EnvSpec(ArraySpec((2,)), action, mask_size=3 if masked else None)
        self.num_envs = 2
        self.names = EnvNames(range(6, 8), rank=3)
        self.next_step = next_step
        self.obs = np.zeros((2, 2), np.float32)
        self.final_obs = np.zeros((2, 2), np.float32)
        self.mask = np.ones((2, 3), bool) if masked else None
        self.actions = []

    def reset(self, seeds, options=None):
        self.steps = np.zeros(2, int)
        self.just_ended = np.zeros(2, bool)
        return self.observe()

    def step(self, actions):
        self.actions.append(actions.copy())
        valid = ~self.just_ended
        rewards = np.where(valid, self.steps, -99.0)
        self.steps = np.where(valid, self.steps + 1, 0)
        terminated, truncated = (self.steps == [3, -1]), (self.steps == [-1, 5])
        (ended,) = np.nonzero(terminated | truncated)
        final_obs = self.final_obs[: len(ended)]
        final_obs[:] = self.observe()[0][ended]
        if self.next_step:
            self.just_ended = terminated | truncated
        else:
            self.steps[ended] = 0
        obs, mask = self.observe()
        return EnvStep(obs, rewards, terminated, truncated, valid, ended, final_obs, mask)

    def observe(self):
        self.obs[:] = np.stack([[10, 11], self.steps], axis=1)
        if self.mask is not None:
            self.mask[:] = np.arange(3) != self.steps[:, None] % 3
        return self.obs, self.mask


DISCRETE = ActionSpec("discrete", (3,))


def collector(action=DISCRETE, *, rollout_steps=4, normalizer=None, first_env=0, **settings):
    env = CountingEnvs(action, **settings)
    model = build_model(env.spec, settings_of("model", hidden_sizes=[8]), 0, torch.float64)
    made = Collector(
        env,
        model,
        normalizer,
        rollout_steps=rollout_steps,
        first_env=first_env,
        device=CPU,
        dtype=torch.float64,
    )
    made.reset([0, 1])
    return made


def noise(made, seed=0):
    return np.random.default_rng(seed).random((made.rollout_steps, 2, num_noise(made.env.spec.action)))


def collect(made, rollouts=1):
    """Return the last of several rollouts, and the episodes of all."""
    episodes = []
    for k in range(rollouts):
        rollout, ended = made.collect(noise(made, k))
        episodes += ended
    return rollout, episodes


def test_values_that_come_beside_the_policy_are_those_computed_at_the_end(monkeypatch):
    whole, _ = collect(collector(), rollouts=2)
    monkeypatch.setattr("ddppo.models.actor_critic.MLP.values_are_beside", True)
    beside, _ = collect(collector(), rollouts=2)
    torch.testing.assert_close(beside.values, whole.values)
    torch.testing.assert_close(beside.next_values, whole.next_values)


def test_every_row_holds_the_observation_that_was_acted_on():
    rollout, _ = collect(collector())
    assert rollout.obs[:, 0].tolist() == [[10, 0], [10, 1], [10, 2], [10, 0]]
    assert rollout.obs[:, 1].tolist() == [[11, 0], [11, 1], [11, 2], [11, 3]]
    assert rollout.raw_obs.tolist() == rollout.obs.tolist()
    assert rollout.rewards.T.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert rollout.terminated.T.tolist() == [[False, False, True, False], [False] * 4]
    assert rollout.episode_start.T.tolist() == [[True, False, False, True], [True, False, False, False]]


def test_environments_live_on_from_one_rollout_to_the_next():
    rollout, episodes = collect(collector(first_env=6), rollouts=2)
    assert rollout.obs[:, 0, 1].tolist() == [1, 2, 0, 1]
    assert rollout.obs[:, 1, 1].tolist() == [4, 0, 1, 2]
    assert rollout.truncated.T.tolist() == [[False] * 4, [True, False, False, False]]
    assert rollout.episode_start.T.tolist() == [[False, False, True, False], [False, True, False, False]]
    # The third episode began in one rollout and ended in the next: 0 + 1 + 2 + 3 + 4.
    assert episodes == [
        FinishedEpisode(2, 6, 3.0, 3),
        FinishedEpisode(0, 7, 10.0, 5),
        FinishedEpisode(1, 6, 3.0, 3),
    ]


def test_an_end_for_learning_alone_ends_no_reported_episode():
    made = collector()
    step = made.env.step

    def with_two_lives(actions):  # environment 0 ends after every third step, its game after every sixth
        answer = step(actions)
        with_two_lives.ends += 0 in answer.ended
        if 0 in answer.ended and with_two_lives.ends % 2:
            answer.is_life_loss = answer.ended == 0
        return answer

    with_two_lives.ends = 0
    made.env.step = with_two_lives
    rollout, episodes = collect(made, rollouts=4)
    assert rollout.terminated[:, 0].any()
    # Twice 0 + 1 + 2, from one rollout into the next; environment 1 as ever.
    assert [e for e in episodes if e.env_index == 0] == [
        FinishedEpisode(1, 0, 6.0, 6),
        FinishedEpisode(3, 0, 6.0, 6),
    ]
    assert [e.length for e in episodes if e.env_index == 1] == [5, 5, 5]


def test_a_reset_forgets_the_episodes_that_were_under_way():
    made = collector()
    made.collect(noise(made))
    made.reset([0, 1])
    rollout, episodes = made.collect(noise(made))
    assert rollout.obs[0, :, 1].tolist() == [0, 0]
    assert rollout.episode_start[0].tolist() == [True, True]
    assert episodes == [FinishedEpisode(2, 0, 3.0, 3)]


def test_log_probabilities_and_values_are_those_of_the_model_at_the_stored_observations():
    made = collector()
    rollout, _ = collect(made, rollouts=2)
    params, values = made.model(rollout.obs.clone())
    log_probs = action_distribution(DISCRETE, params).log_prob(rollout.actions)
    torch.testing.assert_close(rollout.logprobs, log_probs)
    torch.testing.assert_close(rollout.values, values)


@pytest.mark.parametrize("next_step", [False, True])
def test_the_value_behind_a_step_is_that_of_its_true_successor(next_step):
    made = collector(rollout_steps=7, next_step=next_step)
    rollout, _ = collect(made)
    successors = rollout.obs.clone()
    successors[..., 1] += 1  # also where the episode ended: the final observation, not the reset's
    with torch.no_grad():
        expected = made.model.value(successors)
    valid = rollout.valid
    torch.testing.assert_close(rollout.next_values[valid], expected[valid])
    assert rollout.terminated.any()
    assert rollout.truncated.any()


def test_pseudo_steps_are_not_valid_and_count_in_no_episode():
    rollout, episodes = collect(collector(rollout_steps=8, next_step=True))
    assert rollout.obs[:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.valid[:, 0].tolist() == [True, True, True, False, True, True, True, False]
    assert rollout.valid[:, 1].tolist() == [True] * 5 + [False] + [True] * 2
    assert episodes == [
        FinishedEpisode(2, 0, 3.0, 3),
        FinishedEpisode(4, 1, 10.0, 5),
        FinishedEpisode(6, 0, 3.0, 3),
    ]
    first_rows = rollout.episode_start & rollout.valid
    assert first_rows.nonzero().tolist() == [[0, 0], [0, 1], [4, 0], [6, 1]]


def test_actions_are_drawn_from_the_noise_of_their_own_step_and_environment():
    made = collector(ActionSpec("box", (2,)))
    given = noise(made)
    rollout, _ = made.collect(given)
    params = made.model.action_params(rollout.obs.clone()).detach()
    torch.testing.assert_close(
        rollout.actions, action_distribution(made.env.spec.action, params).sample(torch.from_numpy(given))
    )
    np.testing.assert_array_equal(np.stack(made.env.actions), rollout.actions)


def test_a_box_action_is_stored_as_drawn_though_the_task_gets_it_clipped():
    env = make_vec_env(EnvConfig(id="Pendulum-v1", backend="sync"), range(1), rank=0, cores=1)
    sent = []
    task = env._stepper.envs[0].unwrapped
    step = task.step
    task.step = lambda action: sent.append(float(action[0])) or step(action)
    model = build_model(env.spec, settings_of("model"), 0, torch.float32)
    made = Collector(env, model, None, rollout_steps=2, first_env=0, device=CPU, dtype=torch.float32)
    made.reset([0])
    rollout, _ = made.collect(np.array([[[5.0]], [[0.1]]]))
    stored = rollout.actions.flatten().tolist()
    assert stored[0] > 4.0
    assert sent == [2.0, pytest.approx(stored[1])]
    policy = action_distribution(env.spec.action, model.action_params(rollout.obs))
    torch.testing.assert_close(rollout.logprobs, policy.log_prob(rollout.actions))


def test_masks_belong_to_the_observation_in_their_row_and_are_obeyed():
    made = collector(rollout_steps=30, masked=True)
    for k in range(2):
        rollout, _ = made.collect(noise(made, k))
        forbidden = rollout.obs[..., 1].long() % 3
        expected = torch.arange(3) != forbidden.unsqueeze(-1)
        assert torch.equal(rollout.action_mask, expected)
        assert (rollout.actions != forbidden).all()
        assert sorted(set(rollout.actions.flatten().tolist())) == [0, 1, 2]
        params = made.model.action_params(rollout.obs.clone())
        log_probs = action_distribution(DISCRETE, params, rollout.action_mask).log_prob(rollout.actions)
        torch.testing.assert_close(rollout.logprobs, log_probs.detach())


def test_observations_are_normalised_by_moments_that_are_frozen_while_a_rollout_is_collected():
    normalizer = ObsNormalizer(ArraySpec((2,)), CPU, torch.float64)
    made = collector(normalizer=normalizer)
    for k in range(3):
        state = normalizer.state.clone()
        rollout, _ = made.collect(noise(made, k))
        assert torch.equal(normalizer.state, state)
        torch.testing.assert_close(
            rollout.obs, normalizer(rollout.raw_obs)
        )  # the first row with new moments too
        _, values = made.model(rollout.obs.clone())
        torch.testing.assert_close(rollout.values, values)
        finals = rollout.raw_obs + torch.tensor([0.0, 1.0])
        with torch.no_grad():
            expected = made.model.value(normalizer(finals))
        torch.testing.assert_close(rollout.next_values, expected)
        normalizer.update_(moments(rollout.raw_obs.flatten(0, 1)))


def test_a_rollout_is_collected_the_same_when_values_are_computed_in_small_chunks(monkeypatch):
    whole, _ = collect(collector())
    values = whole.values.clone()
    monkeypatch.setattr("ddppo.ppo.acting._VALUE_NUMBERS", 6)  # 3 rows
    chunked, _ = collect(collector())
    torch.testing.assert_close(chunked.values, values)


class FarEnvs(CountingEnvs):
    """The same, observed in float64 from an offset that float32 holds in steps of 8."""

    def __init__(self, action, *, offset):
        super().__init__(action)
        self.spec = EnvSpec(ArraySpec((2,), "float64"), action)
        self.offset, self.obs, self.final_obs = offset, np.zeros((2, 2)), np.zeros((2, 2))

    def observe(self):
        super().observe()
        self.obs += self.offset
        return self.obs, None


def test_observations_far_from_zero_are_as_good_as_near_ones_on_their_whole_way():
    rollouts = []
    for offset in (0.0, 1e8):
        env = FarEnvs(DISCRETE, offset=offset)
        model = build_model(env.spec, settings_of("model", hidden_sizes=[8]), 0, torch.float32)
        normalizer = ObsNormalizer(env.spec.obs, CPU, torch.float32)
        mean = torch.tensor([10.5, 2.0], dtype=torch.float64) + offset
        normalizer.load(torch.stack([torch.full((2,), 100.0), mean, torch.full((2,), 100.0)]).double())
        made = Collector(
            env, model, normalizer, rollout_steps=4, first_env=0, device=CPU, dtype=torch.float32
        )
        made.reset([0, 1])
        rollout, _ = collect(made, rollouts=2)
        message = RolloutMessage(with_raw_obs=True)
        sent = message.unpack([message.pack(rollout)], CPU)
        assert torch.equal(sent.raw_obs, rollout.raw_obs)
        assert sent.raw_obs.dtype == torch.float64
        on_policy = with_ratios(sent, torch.ones(2, dtype=torch.bool), model, normalizer)
        assert torch.equal(on_policy.obs, rollout.obs)
        acted = Policy(model, normalizer, env.spec).params(sent.raw_obs[0].numpy())
        torch.testing.assert_close(acted, model.action_params(rollout.obs[0]))
        rollouts.append(rollout)
    near, far = rollouts
    assert (far.raw_obs - near.raw_obs == 1e8).all()
    for name in ("obs", "values", "next_values", "logprobs"):
        torch.testing.assert_close(getattr(far, name), getattr(near, name), rtol=1e-5, atol=1e-6)


def test_rollouts_of_unequal_numbers_of_environments_lie_side_by_side_in_a_learner():
    whole, _ = collect(collector(masked=True))
    alone = dataclasses.replace(
        whole,
        **{
            field.name: x[:, 1:]
            for field in dataclasses.fields(whole)
            if isinstance(x := getattr(whole, field.name), torch.Tensor)
        },
    )
    message = RolloutMessage(with_raw_obs=False)
    sent = [message.pack(rollout).clone() for rollout in (whole, alone)]
    received = message.unpack(sent, CPU)
    for name in (
        "obs",
        "actions",
        "logprobs",
        "next_values",
        "rewards",
        "terminated",
        "valid",
        "action_mask",
    ):
        assert torch.equal(getattr(received, name), getattr(whole, name)[:, [0, 1, 1]])
