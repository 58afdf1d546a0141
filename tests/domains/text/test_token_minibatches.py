"""What is learned from whole episodes of tokens, and which of them a minibatch reads."""

import dataclasses

import pytest
import torch

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.token_rollout import TokenMinibatches
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model
from ddppo.ppo.advantages import Gae
from tests.unit.test_advantages import grpo, with_reference
from tests.unit.test_learner import LN2, SIMPLE, Constant, learner, rollout


class Reader(Constant, TokenActorCritic):
    """Reads whole sequences, to say the same of every row."""

    def cache(self, num_rows, num_tokens):
        raise NotImplementedError("it only learns")

    def evaluate_actions(self, obs, actions):
        assert obs.shape == actions.shape
        self.read = tuple(obs.shape)
        return self.logits.expand(obs.numel(), 2), self.level.expand(obs.numel())


def sequences(valid, **more):
    """Rollouts of tokens whose reward is that of their row."""
    rows = torch.arange(1.0, len(valid) + 1).tolist()
    samples = rollout([[row] * len(valid[0]) for row in rows], valid=valid, **more)
    return dataclasses.replace(samples, obs=samples.obs.squeeze(-1), has_gaps=True)


def test_a_minibatch_of_sequences_reads_them_as_far_as_anybodys_own_tokens_go():
    samples = sequences([[True, True], [False, True], [True, True], [False, False]])
    estimates = Gae(settings_of("ppo", **SIMPLE))(samples, samples.rewards)
    one, none = TokenMinibatches(samples, estimates).minibatches(torch.tensor([1, 0]), [0, 2, 2])
    assert [tuple(x.shape) for x in one["inputs"][:2]] == [(2, 3), (2, 3)]
    assert one["inputs"][2].tolist() == [0, 1, 2, 3, 5]  # of rollout 1, then of rollout 0
    assert [x.tolist() for x in one["places"]] == [[1, 1, 1, 0, 0], [0, 1, 2, 0, 2]]
    assert one["returns"].tolist() == [1.0, 2.0, 3.0, 1.0, 3.0]
    assert len(none["inputs"][2]) == 0  # but something to read, for other ranks wait for this one's gradient
    assert len(none["inputs"][0]) == 1


def test_a_model_of_sequences_learns_from_own_tokens_alone():
    made = learner((3, 2), Reader())
    update = made.update(
        sequences([[True, True], [False, True], [True, False]], actions=[[0, 1]] * 3), 1, 0.0
    )
    assert (
        made.estimator.config.gamma == 0.0
    )  # so advantages are rewards: 1 and 3 of action 0, 1 and 2 of action 1
    assert update.num_samples == 4
    assert made.parameters.grad.tolist()[:2] == pytest.approx([-(4 - 3) / 8, (4 - 3) / 8])


def test_minibatches_of_sequences_are_of_whole_ones():
    model = Reader()
    made = learner((3, 4), model, num_minibatches=2)
    update = made.update(sequences([[True] * 4] * 3), 1, 0.0)
    assert model.read == (2, 3)
    assert (update.steps, update.num_samples) == (2, 12)


def test_grpo_reads_no_sequence_that_teaches_nothing():
    model = Reader()
    made = grpo((1, 4), model)
    samples = sequences([[True] * 4])
    made.update(dataclasses.replace(samples, rewards=torch.tensor([[1.0, 2.0, 5.0, 5.0]]).double()), 1, 0.0)
    assert model.read == (2, 1)


@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_the_ratio_of_a_rollout_of_tokens_is_that_of_its_own_ones(num_minibatches):
    """As of steps (test_advantages.py): returns 1 and 0, ratios of 1.5 in rollout 0, of 2 and 1/2 in rollout 1."""
    how = {
        "ratio": "sequence",
        "token_mean": "episodes",
        "scale_by": "none",
        "num_minibatches": num_minibatches,
    }
    made = grpo((3, 2), Reader(), group_size=2, **how)
    samples = sequences([[True, True], [False, False], [False, True]])
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]).double()
    ratio = torch.tensor([[1.5, 2.0], [9.0, 9.0], [9.0, 0.5]]).double()
    samples = dataclasses.replace(samples, rewards=rewards, logprobs=-LN2 - ratio.log())
    update = made.update(samples, 1, 0.0)
    assert (update.steps, update.num_samples) == (num_minibatches, 2)
    if num_minibatches == 1:  # else the second minibatch meets the policy that the first one has changed
        assert (update.local_sums[0] / 2).item() == pytest.approx(-0.05)
        assert made.parameters.grad.tolist()[:2] == pytest.approx([0.125, -0.125])


def test_what_a_model_of_tokens_says_of_own_ones_is_what_it_says_of_them_among_all():
    spec = probe(EnvConfig(id="tests.domains.text.text_tasks:tests/Repeat-v0"))
    model = build_model(spec, settings_of("model", name="token_policy"), 0, torch.float64)
    tokens = torch.randint(1, 10, (3, 7), generator=torch.Generator().manual_seed(0))
    own = torch.tensor([1, 4, 6, 13, 20])
    params, values = model.evaluate_actions(tokens, tokens)
    torch.testing.assert_close(model.at_own(tokens, tokens, own), (params[own], values[own]))


def test_the_reference_is_asked_of_own_tokens_alone():
    made = with_reference(Reader(), kl_coef=0.5)
    samples = sequences([[True, True], [False, True], [True, False]], actions=[[0, 1]] * 3)
    estimates = Gae(settings_of("ppo", **SIMPLE))(samples, samples.rewards)
    found = made.reference.logprobs(TokenMinibatches(samples, estimates))
    assert found.tolist() == [[-LN2, 0.0, -LN2], [-LN2, -LN2, 0.0]]
