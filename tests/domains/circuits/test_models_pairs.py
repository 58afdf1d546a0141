import itertools

import numpy as np
import pytest
import torch

from ddppo.config.settings import Config, EnvConfig
from ddppo.config.stored import to_yaml
from ddppo.config.variants import settings_of
from ddppo.domains.circuits import PLUGIN, pairs
from ddppo.domains.circuits.env_walk import ByPairs
from ddppo.domains.circuits.settings import PairSettings
from ddppo.domains.circuits.task.env import CircuitEnv, search_steps
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError
from ddppo.loop.evaluation import evaluator_of
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.policies.acting import LoadedPolicy
from ddppo.policies.loading import trained
from ddppo.policies.playing import play, task_of
from ddppo.records.checkpoint import save_iteration
from ddppo.seeding import derived_seed
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.domains.circuits.feature_oracle import OLD, features, offsets, plan_of

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


def circuit_env(circuit="tof_3", **kwargs):
    return CircuitEnv(circuit, observe="features", episode={"nop": "never"}, **kwargs)


def downhill(env, obs, rng):
    number = obs["num_pairs"][0]
    weights = np.exp(-2.0 * obs["growth"][:number])
    return int(rng.choice(number, p=weights / weights.sum()))


def played(env, num_steps, seed=0):
    """Yield observations of so many steps."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    for _ in range(num_steps):
        yield obs
        obs, _, terminated, truncated, _ = env.step(downhill(env, obs, rng))
        if terminated or truncated:
            obs, _ = env.reset()


def policy(env, dtype=torch.float64, **settings):
    space = env.observation_space
    obs = {
        name: ArraySpec(part.shape, "float32", high=int(part.high[0]) if name == "num_weights" else None)
        for name, part in space.items()
        if name != "action_mask"
    }
    spec = EnvSpec(obs, ActionSpec("discrete", (int(env.action_space.n),)), mask_size=env.action_space.n)
    model = build_model(spec, PairSettings(**settings), seed=0, dtype=dtype)
    with torch.no_grad():
        model.weights.copy_(torch.randn(len(model.weights), generator=torch.Generator().manual_seed(1)) / 30)
    return model


def batch(observations, dtype=torch.float64):
    names = [name for name in observations[0] if name != "action_mask"]
    obs = {
        name: torch.stack([torch.as_tensor(each[name]) for each in observations]).to(dtype) for name in names
    }
    return obs, torch.stack([torch.as_tensor(each["action_mask"]) for each in observations]) > 0


@pytest.mark.parametrize("name", ["tof_3", "mod5_4"])
def test_the_features_of_all_pairs_are_those_that_python_derives_from_circuit_and_rules(name):
    env, ages = circuit_env(name), None
    rules = env.rewriter.rules
    for count, obs in enumerate(played(env, 40)):
        number = obs["num_pairs"][0]
        fresh, ages = env.state()["episode"]["fresh"], env.state()["episode"]["ages"]
        some = slice(count % 3, number, 3)
        wanted = features(
            env.circuit,
            rules,
            env.pairs[:number][some],
            fresh,
            ages,
            lambda rule: plan_of(rules[rule].source),
        )
        np.testing.assert_array_equal(obs["features"][:number][some], wanted)
        assert not obs["features"][number:].any()
    assert min(ages) < OLD


def test_the_table_has_a_weight_for_every_place_and_parts_one_behind_the_other():
    env = circuit_env()
    obs, _ = env.reset(seed=0)
    starts = offsets(env.rewriter.num_rules)
    assert obs["num_weights"] == starts[-1] == env.observation_space["features"].high.max() + 1
    for part, (begin, end) in enumerate(itertools.pairwise(starts)):
        of_part = obs["features"][: obs["num_pairs"][0], part]
        assert begin <= of_part.min()
        assert of_part.max() < end


def test_the_age_of_a_gate_is_the_number_of_rewrites_since_it_was_inserted():
    env = circuit_env()
    obs, _ = env.reset(seed=0)
    assert set(env.state()["episode"]["ages"]) == {OLD}
    before, rng = None, np.random.default_rng(0)
    for _ in range(12):
        obs, _, terminated, truncated, _ = env.step(downhill(env, obs, rng))
        assert not terminated
        assert not truncated
        ages = env.state()["episode"]["ages"]
        assert len(ages) == len(env.circuit)
        if before is not None:  # gates that stay grow older by one
            assert all(min(age - 1, OLD) in before or age in (0, OLD) for age in ages)
        before = set(ages)
    assert 0 in before or 1 in before


@pytest.mark.parametrize("limit", [None, 2.0])
def test_log_probabilities_are_those_of_one_softmax_over_all_pairs(limit):
    env = circuit_env()
    model = policy(env, limit=limit, prior=1.5)
    observations = list(played(env, 6))
    obs, mask = batch(observations)
    params, _ = model(obs)
    for i, each in enumerate(observations):
        number = each["num_pairs"][0]
        learned = model.table()[each["features"][:number]].sum(1)
        if limit is not None:
            learned = limit * np.tanh(learned / limit)
        logits = learned - 1.5 * each["growth"][:number]
        wanted = logits - np.log(np.exp(logits).sum())
        actions = torch.arange(number)
        found = model.distribution(params[i].expand(number, -1), mask[i]).log_prob(actions)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-10)
        entropy = model.distribution(params[i], mask[i]).entropy()
        np.testing.assert_allclose(entropy.item(), -(np.exp(wanted) * wanted).sum(), rtol=1e-10)


def test_the_gradient_of_the_joint_log_probability_is_that_of_torch_s_own_operations(monkeypatch):
    env = circuit_env()
    model = policy(env, limit=3.0)
    obs, mask = batch(list(played(env, 5)))
    actions = (obs["num_pairs"][:, 0] // 2).long()

    def gradients():
        params, values = model.evaluate_actions(obs, actions)
        distribution = model.distribution(params, mask)
        loss = distribution.log_prob(actions).sum() + distribution.entropy().sum() + values.square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    by_cpp = gradients()
    monkeypatch.setattr(pairs, "_SUFFIXES", {})  # nothing is computed in C++
    for found, wanted in zip(by_cpp, gradients(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert by_cpp[0].count_nonzero() > 100


def test_before_learning_the_policy_is_random_rewriting_with_the_prior_as_bias():
    env = circuit_env()
    model = policy(env, prior=3.0)
    torch.nn.init.zeros_(model.weights)
    (observation,) = played(env, 1)
    obs, mask = batch([observation])
    chances = model.distribution(model(obs)[0], mask).log_probs.exp()[0, : observation["num_pairs"][0]]
    weights = np.exp(-3.0 * observation["growth"][: observation["num_pairs"][0]])
    np.testing.assert_allclose(chances.detach().numpy(), weights / weights.sum(), rtol=1e-10)


def test_a_limit_is_a_floor_of_the_entropy_whatever_is_learned():
    env = circuit_env()
    (observation,) = played(env, 1)
    obs, mask = batch([observation])
    collapsed = {limit: policy(env, limit=limit, prior=0.0) for limit in (None, 1.0)}
    entropies = {}
    for limit, model in collapsed.items():
        with torch.no_grad():
            model.weights.mul_(1000)
        entropies[limit] = model.distribution(model(obs)[0], mask).entropy().item()
    number = int(observation["num_pairs"][0])
    assert entropies[None] < 0.1
    # All probabilities lie within a factor of e^2 of each other.
    assert entropies[1.0] > np.log(number) - 2.0
    assert entropies[1.0] > 0.5 * np.log(number)


def test_optimise_draws_from_the_same_distribution():
    env = circuit_env()
    model = policy(env, limit=2.0, dtype=torch.float32)
    (observation,) = played(env, 1)
    obs, mask = batch([observation], torch.float32)
    chances = model.distribution(model(obs)[0], mask).log_probs.exp()[0].detach().numpy()
    choose = ByPairs(model, [env], [np.random.default_rng(0)])
    counts = np.bincount([choose([observation])[0] for _ in range(20_000)], minlength=len(chances)) / 20_000
    assert np.abs(counts - chances).max() < 0.02


def test_features_after_a_restore_are_those_before():
    env, again, rng = circuit_env(), circuit_env(), np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for _ in range(15):
        obs, _, terminated, truncated, _ = env.step(downhill(env, obs, rng))
        assert not terminated
        assert not truncated
    restored, _ = again.restore(env.state())
    assert {name: array.tobytes() for name, array in restored.items()} == {
        name: array.tobytes() for name, array in obs.items()
    }


def test_a_search_starts_from_the_original_and_its_rewards_add_up_to_what_the_best_circuit_saves():
    env, rng = circuit_env(), np.random.default_rng(0)
    list(played(env, 300))  # its buffers hold smaller circuits
    obs, info = env.reset(options={"search": True})
    original, total, num_steps, over = info["cost"], 0.0, 0, False
    assert len(env.circuit) == original == env.starts[0].cost
    while not over:
        obs, reward, terminated, over, info = env.step(downhill(env, obs, rng))
        total, num_steps = total + reward, num_steps + 1
        assert not terminated
        assert reward >= 0
    assert num_steps == search_steps(env.starts[0]) == 1000
    assert total == original - env.best()[0].cost == original - info["best_cost"] > 4


def test_a_search_in_the_middle_goes_on_from_its_state():
    env, again, rng = circuit_env(), circuit_env(), np.random.default_rng(0)
    env.reset(seed=0)
    obs, _ = env.reset(options={"search": True})
    for _ in range(40):
        obs, *_ = env.step(downhill(env, obs, rng))
    again.restore(env.state())
    for _ in range(200):
        action = downhill(env, obs, rng)
        answers = [each.step(action) for each in (env, again)]
        assert answers[0][1:4] == answers[1][1:4]
        obs = answers[0][0]
        assert all(np.array_equal(obs[name], answers[1][0][name]) for name in obs)


def test_the_model_passes_the_check_of_models_and_refuses_graphs_with_the_remedy():
    env = circuit_env()
    model = policy(env, dtype=torch.float32)
    assert check_model(model.spec, PairSettings(), torch.float32, num_envs=3, overlaps_from=1) is None
    spec = EnvSpec({"kinds": ArraySpec((4,), "float32")}, ActionSpec("discrete", (4,)), mask_size=4)
    with pytest.raises(ConfigError, match=r"env\.observe=features, or model=gnn"):
        build_model(spec, PairSettings(), seed=0, dtype=torch.float32)


def test_an_unknown_form_of_observations_is_refused():
    with pytest.raises(ConfigError, match=r"observe=grph: has to be one of graph, features"):
        CircuitEnv("tof_3", observe="grph")


def test_what_is_shown_of_a_policy_is_the_search_that_its_evaluation_plays(tmp_path):
    of_task = {"circuit": "tof_3", "observe": "features", "episode": {"nop": "never"}}
    task = EnvConfig(id="ddppo/Circuit-v0", kwargs=of_task)
    config = Config(env=task, model=settings_of("model", name="pairs"))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    model = build_model(probe(task), config.model, seed=0, dtype=torch.float32)
    save_iteration(tmp_path / "checkpoints", 1, {"model": model.state_dict(), "iteration": 1}, keep=1)
    found = trained(str(tmp_path), "last")
    evaluator = evaluator_of(found.spec)(found.policy, config)
    (rows,) = evaluator.play([range(1)], 1, seed=5)
    (shown,) = play(LoadedPolicy(found, derived_seed(5, "eval", 0)), task_of(task), [0], 5)
    assert [shown.episode_return, shown.length] == rows[0].tolist()
    assert shown.length == 1000
    assert shown.episode_return > 3
