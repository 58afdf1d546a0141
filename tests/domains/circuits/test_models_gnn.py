import math

import numpy as np
import pytest
import torch

from ddppo.config.variants import settings_of
from ddppo.domains.circuits import PLUGIN, graph_layers
from ddppo.domains.circuits.model import NOWHERE
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import random_obs
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each
from tests.domains.circuits.circuit_play import steps
from tests.domains.circuits.gnn_oracle import (
    CONVOLUTIONS,
    GROWTH,
    MAX_NODES,
    MAX_PAIRS,
    NUM_RULES,
    batch_of,
    circuits,
    expected,
    network,
    row_of,
    spec_of,
)

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


@pytest.fixture(params=["C++", "torch"])
def by(request, monkeypatch):
    """Compute graphs and sums of messages in C++, and by torch's own operations."""
    if request.param == "torch":
        monkeypatch.setattr(graph_layers, "is_native", lambda numbers: False)
    return request.param


def split(params):
    return params.unflatten(-1, (3, -1)).unbind(-2)


def same(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)


# -- against plain loops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_forward_gives_the_numbers_of_plain_loops(by, conv, temperature):
    model, (obs, _) = network(graph_conv=conv, temperature=temperature), circuits()
    params, worth = model(obs)
    logits, scores, nodes = split(params)
    for i in range(len(worth)):
        values, rows = expected(model, obs, i)
        fresh = [values[node] for node in row_of(obs, i)[4]]
        same(worth[i], torch.stack(fresh).max() if fresh else torch.zeros((), dtype=torch.float64))
        for pair, (logit, score, node) in enumerate(rows):
            same(logits[i, pair], logit)
            same(scores[i, pair], score)
            assert nodes[i, pair] == node
        assert (nodes[i, len(rows) :] == NOWHERE).all()


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_what_is_learned_of_an_action_is_what_forward_says_of_its_node(by, conv):
    model, (obs, mask) = network(graph_conv=conv), circuits(sizes=(20, 26, 7))
    for turn in range(6):
        actions = torch.tensor([(turn * 5) % int(n) for n in obs["num_pairs"][:, 0]])
        at, values = model.evaluate_actions(obs, actions)
        whole = model.distribution(model(obs)[0], mask)
        there = model.distribution(at, mask)
        same(there.log_prob(actions), whole.log_prob(actions))
        for i, action in enumerate(actions.tolist()):
            of_nodes, rows = expected(model, obs, i)
            node = rows[action][2]
            same(values[i], of_nodes[node] if node >= 0 else torch.zeros((), dtype=torch.float64))
            shares = torch.stack([logit for logit, _, n in rows if n == node]).softmax(0)
            same(there.entropy()[i], -(shares * shares.log()).sum())
            assert ((split(at)[2][i] == NOWHERE) | (split(at)[2][i] == node)).all()


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_what_a_state_is_worth_to_whoever_comes_to_it_is_the_same_alone_and_beside_the_policy(by, conv):
    model, (obs, _) = network(graph_conv=conv), circuits()
    params, worth = model(obs)
    same(model.value(obs), worth)
    same(model.action_params(obs), params)
    assert worth[-1] == 0  # a circuit without gates


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_gradients_are_those_of_plain_loops_and_none_flows_through_the_choice_of_a_node(by, conv):
    model, (obs, mask) = network(graph_conv=conv), circuits(sizes=(20, 7))
    actions = torch.tensor([5, 2])
    policy, values = model.evaluate_actions(obs, actions)
    loss = model.distribution(policy, mask).log_prob(actions).sum() + values.square().sum()
    loss = loss + model.distribution(policy, mask).entropy().sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    wanted = torch.zeros((), dtype=torch.float64)
    for i, action in enumerate(actions.tolist()):
        of_nodes, rows = expected(model, obs, i)
        node = rows[action][2]
        here = [k for k, row in enumerate(rows) if row[2] == node]
        log_shares = torch.stack([rows[k][0] for k in here]).log_softmax(0)
        entropy = -(log_shares.exp() * log_shares).sum()
        wanted = wanted + log_shares[here.index(action)] + of_nodes[node].square() + entropy
    for gradient, other in zip(found, torch.autograd.grad(wanted, list(model.parameters())), strict=True):
        same(gradient, other)
    assert sum(bool(gradient.any()) for gradient in found) == len(found)


def test_the_sum_of_messages_has_the_gradient_of_finite_differences():
    obs, _ = circuits()
    graph = graph_layers.graph_around(torch.arange(MAX_NODES) < obs["num_nodes"], obs, 1)
    generator = torch.Generator().manual_seed(0)
    sent = torch.randn(len(graph.nodes), 3, dtype=torch.float64, generator=generator, requires_grad=True)
    offsets = torch.randn(8, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, b: graph_layers.sum_of_messages(x, b, graph, len(graph.neighbours) - 5), (sent, offsets)
    )


# -- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1, 2, 4, 30])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_cpp_and_torch_lay_out_the_same_graph(radius, share):
    obs, _ = circuits(sizes=(26, 3, 0, 20), seed=radius)
    draw = torch.rand(4, MAX_NODES, generator=torch.Generator().manual_seed(radius))
    roots = (draw < share) & (torch.arange(MAX_NODES) < obs["num_nodes"])
    given = (roots, obs["edges"], obs["num_edges"], obs["num_nodes"], radius)
    ours, plain = graph_layers._graph_in_cpp(*given), graph_layers._graph_in_torch(*given)
    assert ours.sizes == plain.sizes
    for a, b in zip(ours[:3], plain[:3], strict=True):
        assert torch.equal(a.long(), b)


def test_numbers_that_are_no_graph_make_none_and_crash_nothing(by):
    model, spec = network(), spec_of()
    obs = random_obs(spec, 5, torch.float64, torch.Generator().manual_seed(0))
    for changed in (
        obs,
        each(lambda x: 40 * x - 20, obs),
        each(lambda x: 60 * x, obs),
        each(lambda x: -torch.ones_like(x), obs),
    ):
        for result in (
            *model(changed),
            model.value(changed),
            *model.evaluate_actions(changed, torch.zeros(5).long()),
        ):
            assert result.isfinite().all()


# -- invariances -----------------------------------------------------------------------------------------------------


def relabelled(obs, order):
    """Return one circuit with its node order[i] as node i, its pairs listed the other way round within nodes."""
    moved = {key: x.clone() for key, x in obs.items()}
    n, number = len(order), torch.argsort(order)
    for key in ("kinds", "angles", "fresh"):
        moved[key][0, :n] = obs[key][0][order]
    edges = obs["edges"][0, : int(obs["num_edges"])].clone()
    edges[:, 0], edges[:, 2] = number[edges[:, 0].long()], number[edges[:, 2].long()]
    moved["edges"][0, : len(edges)] = edges.flip(0)
    pairs = obs["pairs"][0, : int(obs["num_pairs"])].clone()
    pairs[:, 0] = number[pairs[:, 0].long()]
    places = torch.from_numpy(np.lexsort((-pairs[:, 1].numpy(), pairs[:, 0].numpy())))
    moved["pairs"][0, : len(pairs)] = pairs[places]
    moved["growth"][0, : len(pairs)] = obs["growth"][0][places]
    return moved, places


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_other_numbers_for_the_nodes_change_nothing(conv):
    model, (obs, mask) = network(graph_conv=conv), circuits(sizes=(20,), nop=False)
    moved, places = relabelled(obs, torch.randperm(20, generator=torch.Generator().manual_seed(1)))
    (before, worth), (after, moved_worth) = model(obs), model(moved)
    same(moved_worth, worth)
    count = len(places)
    for was, now in zip(split(before)[:2], split(after)[:2], strict=True):
        same(now[0, :count], was[0, places])
    whole, other = model.distribution(before, mask), model.distribution(after, mask)
    same(other.log_prob(torch.arange(count)[:1]), whole.log_prob(places[:1]))
    same(other.entropy(), whole.entropy())


def test_gates_farther_away_than_there_are_layers_change_nothing_and_nearer_ones_do():
    model, (obs, _) = network(graph_layers=2), circuits(sizes=(26,))
    actions = torch.tensor([int((obs["pairs"][0, :, 0] == 12).nonzero()[0, 0])])
    near = graph_layers.graph_around(torch.arange(MAX_NODES)[None] == 12, obs, 2).nodes.tolist()
    assert 3 < len(near) < 20
    before = torch.cat([x.flatten() for x in model.evaluate_actions(obs, actions)])
    for node in range(26):
        other = {**obs, "angles": obs["angles"].clone()}
        other["angles"][0, node] += 0.5
        after = torch.cat([x.flatten() for x in model.evaluate_actions(other, actions)])
        assert torch.equal(before, after) is (node not in near), node


def test_a_circuit_counts_for_itself_whatever_is_beside_it_in_the_batch(by):
    model, (obs, _) = network(), circuits(sizes=(20, 26, 7, 3))
    actions = torch.tensor([3, 4, 2, 0])
    together = (*model(obs), model.value(obs), *model.evaluate_actions(obs, actions))
    for i in range(4):
        row = {key: x[i : i + 1] for key, x in obs.items()}
        alone = (*model(row), model.value(row), *model.evaluate_actions(row, actions[i : i + 1]))
        for a, b in zip(alone, together, strict=True):
            same(a[0], b[i])


# -- the distribution ------------------------------------------------------------------------------------------------


def chances(model, obs, mask):
    """Return the probability of every pair of one circuit, enumerated, and the expected entropy of the rule."""
    _, rows = expected(model, obs, 0)
    offered = [k for k in range(len(rows)) if mask[0, k]]
    weights = {rows[k][2]: float(rows[k][1].detach().exp()) for k in offered}
    total, entropy, found = sum(weights.values()), 0.0, np.zeros(MAX_PAIRS)
    for node, weight in weights.items():
        here = [k for k in offered if rows[k][2] == node]
        shares = torch.stack([rows[k][0].detach() for k in here]).softmax(0).numpy()
        found[here] = weight / total * shares
        entropy -= weight / total * float((shares * np.log(shares)).sum())
    return found, entropy


@pytest.mark.parametrize("is_cut", [False, True])
def test_pairs_are_drawn_as_often_as_enumeration_says(is_cut):
    model, (obs, mask) = network(temperature=0.7), circuits(sizes=(7,))
    if is_cut:  # also a node's first pair
        mask = mask.clone()
        mask[0, 1::3] = False
    wanted, entropy = chances(model, obs, mask)
    policy = model.distribution(model(obs)[0].detach(), mask)
    same(policy.entropy(), torch.tensor([entropy], dtype=torch.float64))
    side = 400  # noise on a grid: frequencies are exact to a line of it
    noise = (torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 2) + 0.5) / side
    many = model.distribution(model(obs)[0].detach().expand(side**2, -1), mask.expand(side**2, -1))
    drawn = np.bincount(many.sample(noise).numpy(), minlength=MAX_PAIRS) / side**2
    assert np.abs(drawn - wanted).max() < 2 / side
    assert (drawn[wanted == 0] == 0).all()


def test_the_mode_is_the_best_rule_of_the_best_node():
    model, (obs, mask) = network(), circuits(sizes=(20, 26, 7))
    modes = model.distribution(model(obs)[0], mask).mode()
    for i, mode in enumerate(modes.tolist()):
        _, rows = expected(model, obs, i)
        best = max(rows, key=lambda row: row[1].item())[2]
        assert mode == max((row[0].item(), k) for k, row in enumerate(rows) if row[2] == best)[1]


def test_noise_next_to_one_draws_a_pair_that_is_offered():
    model, (obs, mask) = network(torch.float32), circuits()
    obs = {key: x.float() for key, x in obs.items()}
    policy = model.distribution(model(obs)[0].detach(), mask)
    for value in (0.0, 1 - 2**-24):
        drawn = policy.sample(torch.full((len(mask), 2), value))
        assert mask.gather(1, drawn[:, None]).all()


def test_a_node_worth_1_more_than_all_others_is_drawn_9_times_in_10():
    model, (obs, _) = network(), circuits(sizes=(20, 26))
    for i, sharpness in enumerate(model._inverse_temperature(obs).tolist()):
        n = int(obs["num_nodes"][i])
        assert math.exp(sharpness) / (math.exp(sharpness) + n - 1) == pytest.approx(0.9)


# -- what does not match ---------------------------------------------------------------------------------------------


def test_a_rule_that_does_not_match_has_the_weight_of_all_that_do_not():
    model, (obs, _) = network(), circuits(sizes=(7,), nop=False)
    pairs = row_of(obs, 0)[3]
    offered = sorted([*pairs, *([node, NUM_RULES] for node in range(7))])
    obs["pairs"][0, : len(offered)] = torch.tensor(offered, dtype=torch.float64)
    growth = [*GROWTH, 0]  # NUM_RULES stands for no rule of its own
    obs["growth"][0, : len(offered)] = torch.tensor([growth[int(rule)] for _, rule in offered])
    obs["num_pairs"][:] = len(offered)
    mask = torch.arange(MAX_PAIRS)[None] < len(offered)
    logits = split(model(obs)[0])[0][0]
    for pair, (logit, _, _) in enumerate(expected(model, obs, 0)[1]):
        same(logits[pair], logit)
    action = torch.tensor([offered.index([3, NUM_RULES])])
    policy, _ = model.evaluate_actions(obs, action)
    same(
        model.distribution(policy, mask).log_prob(action),
        model.distribution(model(obs)[0], mask).log_prob(action),
    )
    assert all(g.isfinite().all() for g in torch.autograd.grad(policy.sum(), [*model.actor.parameters()]))


# -- as a model of the platform --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_it_passes_the_check_of_models(conv, dtype):
    config = settings_of("model", name="gnn", graph_conv=conv, graph_width=16)
    assert check_model(spec_of(), config, dtype, num_envs=3, overlaps_from=1) is None


def test_its_parameters_depend_on_no_size_of_observations_and_are_drawn_near_the_benchmarks():
    large, small = (build_model(spec_of(size, 4 * size, 1968), settings_of("model", name="gnn"), 0, torch.float32)
                    for size in (240, 56))  # fmt: skip
    for a, b in zip(large.state_dict().values(), small.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    env = CircuitEnv("tof_3")
    obs, mask = batch_of([obs for obs, _, _ in steps(env, 8)], torch.float32)
    model = build_model(
        spec_of(*env._sizes, env.rewriter.num_rules), settings_of("model", name="gnn"), 0, torch.float32
    )
    params, values = model(obs)
    logits, scores, nodes = split(params.detach())
    # At first every pair is as likely as the prior says, wherever it is and whatever its rule.
    prior = torch.where(nodes > -2, -model.prior * obs["growth"], 0)
    assert 0 < (logits - prior).abs().max() < 0.5
    of_pairs = torch.where(nodes > -2, prior, -torch.inf)[:, None]
    of_nodes = of_pairs.masked_fill(nodes[:, None] != nodes[..., None], -torch.inf).logsumexp(-1)
    assert 0 < (scores - of_nodes)[nodes >= 0].abs().max() < 0.5
    assert values.isfinite().all()
    assert mask.gather(1, model.distribution(params.detach(), mask).mode()[:, None]).all()


@pytest.mark.parametrize(
    "obs", [ArraySpec((5,)), {"kinds": ArraySpec((4,))}, {key: ArraySpec((1,)) for key in spec_of().obs}]
)
def test_a_task_that_observes_no_circuits_is_refused(obs):
    spec = EnvSpec(obs, ActionSpec("discrete", (3,)))
    with pytest.raises(ConfigError, match="gnn takes circuits as ddppo/Circuit-v0 observes them"):
        build_model(spec, settings_of("model", name="gnn"), 0, torch.float32)
