"""A model that chooses in stages: what it collects, learns from and is evaluated by."""

import numpy as np
import pytest
import torch

from ddppo.algorithms.ppo import with_ratios
from ddppo.collectives.group import Group
from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.envs.make import make_eval_env
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.loop.evaluation import Policy
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.ppo import compiled as compiled_step
from ddppo.ppo.collector import Collector
from ddppo.ppo.compiled import CompiledStep
from ddppo.ppo.gradient_check import agrees
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.losses import STATISTICS
from ddppo.scaling import BatchShape
from tests.unit.staged_task import DOORS, Staged

ENV = EnvConfig(id="tests.unit.staged_task:staged/Rooms-v0")
CPU, STEPS, ENVS = torch.device("cpu"), 10, 3


def named(kind):
    return settings_of("model", name=f"tests.unit.staged_task:{kind}")


@pytest.fixture(scope="module")
def spec():
    return probe(ENV)


def collected(spec, kind="Staged", rollouts=2):
    """The model, and the last of several rollouts with what was observed after it."""
    model = build_model(spec, named(kind), 1, torch.float64)
    envs = make_eval_env(ENV, ENVS)
    made = Collector(envs, model, None, rollout_steps=STEPS, first_env=0, device=CPU, dtype=torch.float64)
    try:
        made.reset([0, 1, 2])
        for k in range(rollouts):
            rollout, _ = made.collect(np.random.default_rng(k).random((STEPS, ENVS, model.num_noise)))
        return model, rollout, {name: x[-1] for name, x in made.obs.items()}
    finally:
        envs.close()


def learner(model, **settings):
    config = settings_of("ppo", **{"num_epochs": 1, "num_minibatches": 1, **settings})
    parameters, group = FlatParameters(model), Group()
    sync = FlatSync(model, parameters, group)
    shape = BatchShape(ENVS, STEPS, 1, config.num_minibatches, config.num_epochs)
    return Learner(
        config, shape, model, sync, group, Normalizers(), seed=0,
    )  # fmt: skip


@torch.no_grad()
def test_a_rollout_has_the_value_and_the_log_probability_of_what_was_chosen(spec):
    model, rollout, _ = collected(spec)
    rooms, doors = rollout.actions // DOORS, rollout.actions % DOORS
    assert len(rooms.unique()) > 1
    for t, e in np.ndindex(STEPS, ENVS):
        seen, room, door = rollout.obs["seen"][t, e], int(rooms[t, e]), int(doors[t, e])
        assert rollout.values[t, e].item() == pytest.approx(model.critic(seen)[room].item(), rel=1e-12)
        is_open = rollout.action_mask[t, e].view(-1, DOORS)[room]
        weights = model.actor(seen)[room].exp() * is_open
        expected = (weights[door] / weights.sum()).log().item()
        assert rollout.logprobs[t, e].item() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@torch.no_grad()
def test_the_next_value_is_the_largest_of_the_fresh_rooms_of_the_next_or_final_observation(spec):
    model, rollout, after = collected(spec)
    ends = rollout.terminated | rollout.truncated
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    following = {name: torch.cat([x[1:], after[name][None]]) for name, x in rollout.obs.items()}
    values = model.critic(following["seen"]).squeeze(-1)
    largest = values.masked_fill(following["fresh"] < 0.5, -torch.inf).amax(-1)
    torch.testing.assert_close(rollout.next_values[~ends], largest[~ends])
    assert (rollout.next_values[ends] != 0).all()  # the first observation of an episode has no fresh room


def test_values_of_states_may_come_while_it_acts(spec):
    _, alone, _ = collected(spec)
    _, beside, _ = collected(spec, "Beside")
    for name in ("values", "next_values", "logprobs", "actions"):
        torch.testing.assert_close(getattr(beside, name), getattr(alone, name), rtol=0, atol=1e-14)


def test_without_lambda_the_target_is_reward_and_discounted_next_value(spec):
    model, rollout, _ = collected(spec)
    made = learner(model, gae_lambda=0.0, gamma=0.9)
    found = made.estimator(rollout, made._scaled_rewards(rollout))
    target = rollout.rewards + 0.9 * rollout.next_values * ~rollout.terminated
    torch.testing.assert_close(found.returns, target)
    torch.testing.assert_close(found.advantages, target - rollout.values)


def test_before_the_first_step_of_learning_every_ratio_is_1_and_the_entropy_is_of_doors(spec):
    model, rollout, _ = collected(spec)
    update = learner(model).update(rollout, 1, 0.0)
    means = dict(zip(STATISTICS, (update.local_sums / update.num_samples).tolist(), strict=True))
    assert means["approx_kl"] == pytest.approx(0, abs=1e-20)
    assert 0 < means["entropy"] <= np.log(DOORS)


def test_no_gradient_of_the_policy_reaches_the_values_that_rooms_are_chosen_by(spec):
    model, rollout, _ = collected(spec)
    made = learner(model, value_coef=0.0, entropy_coef=0.1)
    made.update(rollout, 1, 0.0)
    assert not any(p.grad.any() for p in model.critic.parameters())
    assert all(p.grad.any() for p in model.actor.parameters())


def test_evaluation_takes_the_best_room_and_its_best_open_door(spec):
    model = build_model(spec, named("Staged"), 1, torch.float64)
    policy = Policy(model, None, spec)
    seen = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3))
    mask = np.ones((6, 8), bool)
    mask[:, ::2] = False  # the first door of every room is shut
    mask[:, 4:6] = False  # and both of the third
    actions = policy.act({"seen": seen, "fresh": np.zeros((6, 4), np.float32)}, mask)
    values = model.critic(torch.from_numpy(seen)).squeeze(-1).detach().numpy()
    values[:, 2] = -np.inf
    assert actions.tolist() == [room * DOORS + 1 for room in values.argmax(-1)]


def test_what_older_parameters_acted_is_seen_at_its_actions_and_successors_as_states(spec):
    _, rollout, _ = collected(spec)
    now = build_model(spec, named("Staged"), 2, torch.float64)
    with torch.no_grad():
        _, values = now.evaluate_actions(rollout.obs, rollout.actions)
        of_states = now.value(rollout.obs)
    found = with_ratios(rollout, torch.ones(ENVS, dtype=torch.bool), now, None)
    torch.testing.assert_close(found.values, values)
    goes_on = ~(rollout.terminated | rollout.truncated)[:-1]
    torch.testing.assert_close(found.next_values[:-1][goes_on], of_states[1:][goes_on])
    assert not torch.allclose(found.logprobs, rollout.logprobs)
    torch.testing.assert_close(found.ratios, (found.logprobs - rollout.logprobs).exp())


def test_the_compiled_step_learns_by_at_too(spec, monkeypatch):
    _, rollout, _ = collected(spec)
    own, other = (build_model(spec, named("Staged"), 1, torch.float64) for _ in range(2))
    made, eager = learner(own), learner(other)
    monkeypatch.setattr(compiled_step, "compiled", lambda function, *_: function)
    made.step = CompiledStep(made.config, own, made.optimizer, lambda gradient: gradient)
    assert agrees(made.step, spec, own, made.config)
    for each in (made, eager):
        each.update(rollout, 1, 0.0)
    torch.testing.assert_close(made.parameters, eager.parameters, rtol=1e-9, atol=1e-9)


class OldName(Staged):
    def at(self, obs, actions):
        return self.evaluate_actions(obs, actions)


class OneDoor(Staged):
    def evaluate_actions(self, obs, actions):
        params, values = super().evaluate_actions(obs, actions)
        return params[..., :-1], values


class Paired(Staged):
    num_noise = 1


class Blind(Staged):
    def evaluate_actions(self, obs, actions):
        params, values = super().evaluate_actions(obs, actions)
        return params, torch.zeros_like(values, requires_grad=True)


class RolloutOfForward(Staged):
    values_are_of_actions = False


class OtherValues(RolloutOfForward):
    def evaluate_actions(self, obs, actions):
        params, values = self(obs)
        return params, values + 1


class Forward(RolloutOfForward):
    def evaluate_actions(self, obs, actions):
        return self(obs)


def test_evaluate_actions_that_returns_what_forward_does_needs_no_values_of_actions(spec):
    config = settings_of("model", name="tests.unit.test_staged:Forward")
    assert check_model(spec, config, torch.float64, num_envs=4) is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            RolloutOfForward,
            "evaluate_actions gives log-probabilities of actions that differ .* set values_are_of_actions = True",
        ),
        (
            OtherValues,
            "evaluate_actions gives values of actions that differ .* by 1: set values_are_of_actions = True",
        ),
        (OldName, "OldName.at is now called evaluate_actions: rename the method"),
        (OneDoor, r"OneDoor.evaluate_actions returned action parameters of shape \[4, 11\]"),
        (Paired, r"Paired.distribution\(...\).sample raised: IndexError"),
        (Blind, r"Blind.evaluate_actions does not use critic.0.weight, .* and dist.grad_sync=ddp waits"),
    ],
)
def test_a_mistake_in_its_policy_is_a_sentence(spec, kind, message):
    assert check_model(spec, named("Staged"), torch.float64, num_envs=4, overlaps_from=0) is None
    name = f"tests.unit.test_staged:{kind.__name__}"
    with pytest.raises(ConfigError, match=message):
        check_model(spec, settings_of("model", name=name), torch.float64, num_envs=4, overlaps_from=0)
