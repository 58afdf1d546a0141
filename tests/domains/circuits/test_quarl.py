"""experiment=quarl against loops over the gates of one circuit at a time."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from ddppo.config.compose import register
from ddppo.config.presets import conf_dir
from ddppo.config.stored import from_omegaconf
from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.task import CircuitEnv
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.models.build import build_model
from ddppo.models.distributions import Categorical
from ddppo.ppo.advantages import Gae, gae
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import step_scale
from ddppo.ppo.losses import Coefficients, loss_per_sample
from ddppo.ppo.minibatches import SampleBatch
from ddppo.seeding import action_noise
from tests.domains.circuits.gnn_oracle import hidden_of, row_of
from tests.support import door, lines

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))

STEPS, ENVS = 14, 2


@pytest.fixture(scope="module")
def config():
    """The preset, with a small network and short episodes: some are cut, and some cost too much."""
    register()
    overrides = [
        "experiment=quarl",
        "env.kwargs.circuit=tof_3",
        "model.graph_width=8",
        "model.graph_layers=2",
    ]
    episode = ["min_steps=4", "max_steps=4", "slack=0"]
    overrides += [f"env.kwargs.episode.{setting}" for setting in episode]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield from_omegaconf(compose("config", overrides))
    GlobalHydra.instance().clear()


@pytest.fixture(scope="module")
def played(config):
    """A model whose outputs are of order 1, a rollout that it acted, and every transition as the task gives it."""
    env = replace(config.env, num_envs=ENVS, backend="sync")
    model = build_model(probe(env), config.model, 0, torch.float64)
    moved(model, 0.3)
    made = Collector(
        make_vec_env(env, range(ENVS), rank=0, cores=1), model, None,
        rollout_steps=STEPS, first_env=0, device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    made.reset(list(range(ENVS)))
    rollout, _ = made.collect(action_noise(0, 0, range(ENVS), STEPS, 2, normal=False))
    transitions = {}
    for e in range(ENVS):
        task = CircuitEnv(**env.kwargs)
        obs, _ = task.reset(seed=e)
        for t, action in enumerate(rollout.actions[:, e].tolist()):
            after, reward, terminated, truncated, _ = task.step(action)
            transitions[t, e] = as_batch(obs), action, reward, as_batch(after), terminated, truncated
            obs = task.reset()[0] if terminated or truncated else after
    return model, rollout, transitions


def moved(model, by):
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = p.data + by * torch.randn(p.shape, dtype=torch.float64, generator=generator)


def as_batch(obs):
    return {key: torch.from_numpy(x)[None].double() for key, x in obs.items()}


# -- Quarl's formulas by loops: V of every gate, pi(rule | gate), the target, the loss ------------------------------


@torch.no_grad()
def values_of(model, obs):
    return [float(model.critic(h)[0]) for h in hidden_of(model, obs, 0)]


@torch.no_grad()
def rules_at(model, obs, node):
    """Return pi(rule | node) by number of the pair."""
    pairs = row_of(obs, 0)[3]
    logits = model.rules(model.actor(hidden_of(model, obs, 0)[node]))
    weights = {k: math.exp(float(logits[rule])) for k, (n, rule) in enumerate(pairs) if n == node}
    return {k: weight / sum(weights.values()) for k, weight in weights.items()}


def chosen(obs, action):
    return row_of(obs, 0)[3][action][0]


def target(model, gamma, reward, after, terminated):
    fresh = row_of(after, 0)[4]
    worth = max((values_of(model, after)[node] for node in fresh), default=0.0)
    return reward + gamma * (0.0 if terminated else worth)


def near(found, wanted):
    assert float(found.detach() if isinstance(found, torch.Tensor) else found) == pytest.approx(
        wanted, abs=1e-9
    )


# -- against the loops -----------------------------------------------------------------------------------------------


def test_gates_are_drawn_by_the_critic_alone_and_every_gate_offers_to_change_nothing(played):
    model, _, transitions = played
    for obs, *_ in list(transitions.values())[:6]:
        policy = model.distribution(model(obs)[0].detach(), obs["action_mask"] > 0)
        nodes: Categorical = policy._nodes_to_choose
        values, pairs = values_of(model, obs), row_of(obs, 0)[3]
        sharpness = math.log(0.9 * (len(values) - 1) / 0.1)
        weights = [math.exp(value * sharpness) for value in values]
        found = nodes.log_probs[0].exp()
        for node, weight in enumerate(weights):
            of_node = [k for k, (n, _) in enumerate(pairs) if n == node]
            near(found[of_node[0]], weight / sum(weights))
            assert pairs[of_node[-1]][1] == model.num_rules - 1


def test_values_logprobs_targets_and_advantages_of_a_rollout_are_those_of_the_loops(config, played):
    model, rollout, transitions = played
    estimates = Gae(config.ppo)(rollout, rollout.rewards)
    kinds = set()
    for (t, e), (obs, action, reward, after, terminated, truncated) in transitions.items():
        node = chosen(obs, action)
        old = values_of(model, obs)[node]
        wanted = target(model, 0.95, reward, after, terminated)
        near(rollout.values[t, e], old)
        near(rollout.logprobs[t, e], math.log(rules_at(model, obs, node)[action]))
        near(estimates.returns[t, e], wanted)
        near(estimates.advantages[t, e], wanted - old)
        rule = row_of(obs, 0)[3][action][1]
        kinds.add("cut" if truncated else "too costly" if terminated else rule == model.num_rules - 1)
    assert kinds == {"cut", "too costly", True, False}  # all that can happen did


def test_to_change_nothing_goes_on_with_the_discounted_value_of_the_same_gate(played):
    model, _, transitions = played
    for obs, action, reward, after, terminated, _ in transitions.values():
        node, rule = row_of(obs, 0)[3][action]
        if rule == model.num_rules - 1:
            assert (reward, terminated, row_of(after, 0)[4]) == (0.0, False, [node])
            near(target(model, 0.95, reward, after, terminated), 0.95 * values_of(model, obs)[node])


def test_the_loss_of_every_pass_is_that_of_the_loops(config, played):
    model, rollout, transitions = played
    estimates = Gae(config.ppo)(rollout, rollout.rewards)
    batch = SampleBatch(rollout, estimates)
    (minibatch,) = batch.minibatches(torch.arange(STEPS * ENVS), [0, STEPS * ENVS])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moved(model, 0.05)  # as an earlier pass has: advantages and targets stay
    try:
        params, values = model.evaluate_actions(minibatch["obs"], minibatch["actions"])
        losses, terms = loss_per_sample(
            params, values, minibatch, model.distribution, Coefficients.of(config.ppo)
        )
        num_clipped = 0
        for (t, e), (obs, action, *_) in transitions.items():
            node = chosen(obs, action)
            advantage, wanted = float(estimates.advantages[t, e]), float(estimates.returns[t, e])
            shares = rules_at(model, obs, node)
            ratio = shares[action] / math.exp(float(rollout.logprobs[t, e]))
            clipped = min(max(ratio, 0.8), 1.2)
            num_clipped += ratio != clipped
            entropy = -sum(share * math.log(share) for share in shares.values())
            squared = (wanted - values_of(model, obs)[node]) ** 2
            loss = -min(ratio * advantage, clipped * advantage) + 0.5 * squared - 0.02 * entropy
            near(losses[t * ENVS + e], loss)
        assert num_clipped
        assert int(terms.policy.is_clipped.sum()) == num_clipped
    finally:
        for name, p in model.named_parameters():
            p.data = before[name]


def test_the_critic_has_a_larger_step_than_network_and_actor(config, played):
    model = played[0]
    scale, at = step_scale(model, config.ppo), 0
    for name, p in model.named_parameters():
        wanted = 5e-4 if name.startswith("critic.") else 3e-4
        assert torch.allclose(
            config.ppo.learning_rate * scale[at : at + p.numel()], torch.tensor(wanted).double()
        )
        at += p.numel()


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_two_transitions_worked_by_hand(config):
    # Rewards 1 and -2; the old values of the chosen gates are .5 and .1, the largest of the next gates .8 and .3. The
    # second episode ends. Targets: 1 + .95 * .8 = 1.76 and -2. Advantages: 1.26 and -2.1.
    row = {"rewards": [1.0, -2.0], "values": [0.5, 0.1], "next_values": [0.8, 0.3]}
    given = {name: torch.tensor([x], dtype=torch.float64) for name, x in row.items()}
    ends, no, yes = (torch.tensor([x]) for x in ([False, True], [False, False], [True, True]))
    ppo = config.ppo
    found = gae(**given, terminated=ends, truncated=no, valid=yes, gamma=ppo.gamma, gae_lambda=ppo.gae_lambda)
    torch.testing.assert_close(found, torch.tensor([[1.26, -2.1]], dtype=torch.float64))
    # The rule's probability goes from .5 to .75, and from .75 to .25: ratios 1.5, cut to 1.2, and 1/3, where the min
    # takes .8 * -2.1. The new values are .6 and -1. Entropy of (.75, .25): .562335.
    logprobs = torch.tensor([0.5, 0.75], dtype=torch.float64).log()
    minibatch = {
        "actions": torch.tensor([1, 0]), "logprobs": logprobs, "advantages": found[0],
        "values": given["values"][0], "returns": torch.tensor([1.76, -2.0], dtype=torch.float64),
    }  # fmt: skip
    params = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]], dtype=torch.float64)
    values = torch.tensor([0.6, -1.0], dtype=torch.float64)
    losses, _ = loss_per_sample(params, values, minibatch, Categorical, Coefficients.of(ppo))
    # -1.2 * 1.26 + .5 * 1.16^2 - .02 * .562335, and .8 * 2.1 + .5 * 1 - .02 * .562335
    wanted = [-1.512 + 0.6728 - 0.0112467, 1.68 + 0.5 - 0.0112467]
    torch.testing.assert_close(losses, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


# -- as one word -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_word_trains_agents_with_observers_saves_gates_and_ends_no_episode_by_changing_nothing(tmp_path):
    small = ["model.graph_width=16", "model.graph_layers=2", "ppo.num_epochs=2", "ppo.total_steps=7680"]
    how = ["dist.world_size=2", "dist.observers=2", "eval.final_episodes=0", "log.tensorboard=false"]
    run = door("experiment=quarl", "env.circuit=tof_3", *small, *how, run_dir=tmp_path / "run")
    assert run.code == 0, run.stderr
    iterations = [line for line in lines(tmp_path / "run") if "task/rewrites" in line]
    assert len(iterations) == 2
    for line in iterations:
        assert line["task/ended_nothing_changed"] == 0
        assert line["task/ended_too_costly"] + line["task/ended_cut"] > 0
    best = json.loads((tmp_path / "run" / "best" / "tof_3.json").read_text())
    assert best["cost"] < 39 < best["original_cost"] == 45
