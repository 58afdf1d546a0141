"""Policies with memory: recurrent cores, what a collector keeps for them, and what is learned from it."""

import numpy as np
import pytest
import torch

from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.models.recurrent import GRU, LSTM
from ddppo.ppo.acting import ShardedActing
from ddppo.ppo.advantages import Estimates
from ddppo.ppo.collector import Collector
from ddppo.ppo.minibatches import SequenceBatch
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.unit.test_collector import CountingEnvs

CPU = torch.device("cpu")
SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (2,)))
PIXELS = EnvSpec(ArraySpec((4, 20, 20), "uint8"), ActionSpec("box", (3,)))
STEPS, ENVS = 7, 5


def of(memory, **more):
    return settings_of(
        "model", hidden_sizes=[8], shared_trunk=True, memory=memory, memory_size=6, memory_layers=2, **more
    )


@pytest.mark.parametrize(("kind", "torchs"), [(LSTM, torch.nn.LSTM), (GRU, torch.nn.GRU)])
def test_a_core_computes_what_torchs_own_layers_do(kind, torchs):
    torch.manual_seed(0)
    core, oracle = kind(3, 4, 2).double(), torchs(3, 4, 2).double()
    state = torch.randn(ENVS, core.state_size, dtype=torch.float64)
    for i in range(2):
        torch.nn.init.normal_(core.biases[i])
        parts = {"weight_ih": core.weights_x[i], "weight_hh": core.weights_h[i], "bias_ih": core.biases[i]}
        zeros = torch.zeros_like(core.biases[i])
        if kind is GRU:
            torch.nn.init.normal_(core.biases_hn[i])
            zeros[2 * 4 :] = core.biases_hn[i].detach()
        parts["bias_hh"] = zeros
        for name, x in parts.items():
            getattr(oracle, f"{name}_l{i}").data = x.data
    x = torch.randn(STEPS, ENVS, 3, dtype=torch.float64)
    found, after = core(x, state)
    parts = state.unflatten(-1, (2, core.parts, 4)).permute(2, 1, 0, 3).contiguous()
    wanted, last = oracle(x, (parts[0], parts[1]) if kind is LSTM else parts[0])
    torch.testing.assert_close(found, wanted)
    last = torch.stack(last if kind is LSTM else (last,))  # [parts, layers, m, H]
    torch.testing.assert_close(after, last.permute(2, 1, 0, 3).flatten(1))


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize("units", [4, 16, 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_gradients_in_cpp_are_those_of_torchs_loop(kind, units, dtype):
    torch.manual_seed(0)
    core = kind(3, units, 2).to(dtype)
    for p in core.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(STEPS, ENVS, 3, dtype=dtype, requires_grad=True)
    state = torch.randn(ENVS, core.state_size, dtype=dtype, requires_grad=True)
    starts = (torch.rand(ENVS, STEPS) < 0.3).t()  # in memory as a learner hands them over
    starts[::2] = False
    weights = torch.randn(STEPS, ENVS, units, dtype=dtype), torch.randn(ENVS, core.state_size, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12

    def found(starts):
        outputs, after = core(x, state, starts)
        loss = (outputs * weights[0]).sum() + (after * weights[1]).sum()
        return [outputs, after, *torch.autograd.grad(loss, [x, state, *core.parameters()])]

    for where in (starts, None):
        core.learns_in_cpp = False
        by_torch = found(where)
        core.learns_in_cpp = True
        for one, other in zip(found(where), by_torch, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_in_cpp_no_environment_depends_on_those_beside_it(kind):
    torch.manual_seed(0)
    core = kind(3, 16, 1)
    core.learns_in_cpp = True
    x, state = torch.randn(STEPS, 7, 16 * core.gates), torch.randn(7, 16).unbind(0)
    state = tuple(torch.stack(state) for _ in range(core.parts))
    kept = (torch.rand(STEPS, 7) > 0.3).float()
    whole, _ = core.recur_in_cpp(x, state, kept, 0)
    part, _ = core.recur_in_cpp(x[:, 2:5], tuple(s[2:5] for s in state), kept[:, 2:5].contiguous(), 0)
    torch.testing.assert_close(part, whole[:, 2:5], rtol=0, atol=0)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("spec", "more"),
    [
        (SPEC, {}),
        (PIXELS, {"name": "cnn", "conv_layers": [[8, 8, 4]], "activation": "relu"}),
        (
            EnvSpec(
                {"a": ArraySpec((2,)), "b": ArraySpec((3, 3), "uint8")}, ActionSpec("multi_discrete", (2, 3))
            ),
            {},
        ),
    ],
    ids=["vectors", "pixels", "dicts"],
)
def test_memory_stands_on_any_trunk_and_learns_from_what_it_saw(memory, spec, more):
    config = of(memory, **more)
    assert check_model(spec, config, torch.float64, num_envs=4, overlaps_from=0) is None
    model = build_model(spec, config, 0, torch.float64)
    assert model.state_size == 2 * 6 * (2 if memory == "lstm" else 1)
    weight = model.core.weights_h[0].detach()
    torch.testing.assert_close(weight.T @ weight, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-5)
    assert not model.core.biases[1].any()


MISTAKES = {
    "Forgetful": "unroll returned action parameters that differ from those of Forgetful.step, row after row",
    "InPlace": "changes the state that it gets: return a new one",
    "Two": "step must return three: action parameters, values and the next state",
    "Narrow": "step returned a state of shape [8, 1] for obs [8, 4], but they must be [8, 5]",
    "Flat": "unroll returned action parameters of shape [32, 2] for obs [8, 4], but they must be [4, 8, 2]",
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_a_model_with_memory_is_told_in_a_sentence(kind):
    def check(name):
        return check_model(
            SPEC, settings_of("model", name=f"tests.unit.remembering:{name}"), torch.float32, num_envs=8
        )

    assert check("Counter") is None
    with pytest.raises(ConfigError) as caught:
        check(kind)
    assert MISTAKES[kind] in str(caught.value)


def collected(model, *, next_step=False, num_shards=None, rollouts=3, steps=STEPS, **more):
    """Collect from two environments in memory, that end after 3 and after 5 steps."""
    action = model.spec.action
    made = Collector(
        env=CountingEnvs(action, next_step=next_step), model=model, normalizer=None, rollout_steps=steps,
        first_env=0, device=CPU, dtype=torch.float64, **more,
    )  # fmt: skip
    if num_shards is not None:
        made.acting = ShardedActing(made, num_shards)
    made.reset([0, 1])
    rng = np.random.default_rng(0)
    for _ in range(rollouts):
        rollout, _ = made.collect(rng.random((steps, 2, 1)))
    return rollout, made


def counting():
    return build_model(
        EnvSpec(ArraySpec((2,)), ActionSpec("discrete", (2,))),
        settings_of("model", name="tests.unit.remembering:Counter"), 0, torch.float64,
    )  # fmt: skip


@pytest.mark.parametrize("next_step", [False, True])
def test_a_collector_forgets_where_episodes_start_and_values_final_observations_by_what_led_there(next_step):
    model = counting()
    rollout, made = collected(model, next_step=next_step)
    # By hand: of every row the observations since the start of its episode, oldest first, by (env, steps so far).
    for env, length in ((0, 3), (1, 5)):
        period = length + next_step
        for t in range(STEPS):
            place = (2 * STEPS + t) % period  # 3 rollouts, of which the last is looked at
            if place == length:
                assert not rollout.valid[t, env]
                continue
            seen = torch.tensor([[10.0 + env, k] for k in range(length + 1)], dtype=torch.float64)

            def value(count, seen=seen):
                state = torch.cat([torch.tensor([float(count)]).double(), seen[:count].sum(dim=0)])
                return model.said(state)[1]

            torch.testing.assert_close(rollout.values[t, env], value(place + 1))
            torch.testing.assert_close(rollout.next_values[t, env], value(place + 2))
            assert rollout.episode_start[t, env] == (place == 0)
    with torch.inference_mode():
        params, values = model.unroll(rollout.obs, rollout.state[0], rollout.episode_start)
    logprobs = model.distribution(params).log_prob(rollout.actions)
    torch.testing.assert_close(values[rollout.valid], rollout.values[rollout.valid])
    torch.testing.assert_close(logprobs[rollout.valid], rollout.logprobs[rollout.valid])
    torch.testing.assert_close(made.memory.kept[:, :, 0], rollout.state[:, :, 0])


def test_acting_in_shards_remembers_the_same():
    plain, _ = collected(counting())
    sharded, _ = collected(counting(), num_shards=2)
    for name in ("state", "values", "next_values", "logprobs", "actions"):
        torch.testing.assert_close(getattr(plain, name), getattr(sharded, name), rtol=1e-12, atol=1e-12)


def test_a_rollout_in_sequences_is_unrolled_from_what_was_remembered_before_each():
    model = counting()
    whole, _ = collected(model, steps=8)
    rollout, _ = collected(model, steps=8, sequence_length=2)
    assert rollout.state.shape == (4, 2, 3)
    batch = SequenceBatch(rollout, Estimates(whole.values, whole.valid.double(), whole.values))
    (minibatch,) = batch.minibatches(torch.arange(8), [0, 8])
    params, values = model.unroll(*minibatch["unrolled"])
    logprobs = model.distribution(params).log_prob(minibatch["actions"].view(2, 8))
    torch.testing.assert_close(values.flatten(), minibatch["values"])
    torch.testing.assert_close(logprobs.flatten(), minibatch["logprobs"])
    assert torch.equal(minibatch["values"].view(2, 4, 2).transpose(0, 1).flatten(0, 1), whole.values)
    *_, empty = batch.minibatches(torch.tensor([3]), [0, 1, 1])
    assert not empty["weights"].any()
