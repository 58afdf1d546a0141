"""The steps in machine code do what the eager one does: ours, and the functions that torch compiles, run as they stand.

Compiling these is for tests/golden, which is slow.
"""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddppo import native
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.errors import NonFiniteError
from ddppo.models.actor_critic import ActorCritic, random_obs
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution, num_noise
from ddppo.ppo import compiled as compiled_step
from ddppo.ppo.compiled import CannotCompile, CompiledStep
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.gradient_check import agrees, example, worst_error
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.rollout import Rollout
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each

ACTIONS = [
    ActionSpec("discrete", (3,)),
    ActionSpec("multi_discrete", (2, 3)),
    ActionSpec("multi_binary", (3,)),
    ActionSpec("box", (2,)),
]
STEPS, ENVS = 5, 3


@pytest.fixture(params=["native", "torch"])
def kind(request):
    if request.param == "native" and (why := native.why_not()):
        pytest.skip(why)
    return request.param


def made(spec, config, *, kind, monkeypatch, model_config=None, dtype=torch.float64):
    model_config = model_config or settings_of("model", hidden_sizes=[8])
    model = build_model(spec, model_config, 0, dtype)
    parameters, group = FlatParameters(model), Group()
    sync = FlatSync(model, parameters, group)
    learner = Learner(
        config,
        BatchShape(ENVS, STEPS, 1, config.num_minibatches, config.num_epochs),
        model,
        sync,
        group,
        Normalizers(None, None),
        seed=0,
    )
    if kind == "native":
        network = CppNetwork(model, spec, parameters.vector)
        learner.step = CppStep(network, config, learner.optimizer, group)
    if (
        kind == "recorded"
    ):  # as on an accelerator, whose graph starts again all that was started while it recorded

        def record(function):
            function()
            return function

        monkeypatch.setattr(compiled_step, "has_graphs", lambda device: True)
        monkeypatch.setattr(compiled_step, "record", record)
    if kind in ("torch", "recorded"):
        monkeypatch.setattr(compiled_step, "compiled", lambda function, *_: function)
        learner.step = CompiledStep(config, model, learner.optimizer, group.sum_, learner.scale)
    return learner, model


def rollout(spec, model, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.rand(STEPS, ENVS, *shape, generator=generator, dtype=dtype)

    mask = None
    if spec.mask_size is not None:
        mask = random(spec.mask_size) < 0.5
        mask[..., 0] = True
    rows = random_obs(spec, STEPS * ENVS, dtype, generator)
    obs = each(lambda x: x.reshape(STEPS, ENVS, *x.shape[1:]), rows)
    with torch.no_grad():
        params, values = (x.reshape(STEPS, ENVS, *x.shape[1:]) for x in model(rows))
        policy = action_distribution(spec.action, params, mask)
        actions = policy.sample(random(num_noise(spec.action)))
        logprobs = policy.log_prob(actions)
    never = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    return Rollout(
        obs=obs,
        actions=actions,
        logprobs=logprobs + 0.3 * random() - 0.1,
        values=values,
        next_values=values,
        rewards=random(),
        terminated=never,
        truncated=never,
        valid=random() < 0.8,
        episode_start=never,
        action_mask=mask,
        raw_obs=obs,
    )


def both(spec, kind, monkeypatch, model_config=None, iterations=2, **settings):
    """The updates of an eager learner and of one of another kind on the same rollouts, and where each has come to."""
    config = settings_of("ppo", **{"num_epochs": 2, "num_minibatches": 4, "learning_rate": 1e-2, **settings})
    found = []
    for which in ("eager", kind):
        learner, model = made(spec, config, kind=which, monkeypatch=monkeypatch, model_config=model_config)
        samples = rollout(spec, model)
        updates = [learner.update(samples, k + 1, k / 4) for k in range(iterations)]
        state = learner.optimizer.state[learner.parameters]
        found.append((updates, learner.parameters.detach(), state, learner.learning_rate))
    return found


def assert_equal(found):
    (eager, parameters, state, rate), (compiled, its_parameters, its_state, its_rate) = found
    torch.testing.assert_close(its_parameters, parameters, rtol=1e-9, atol=1e-9)
    for name in ("step", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(its_state[name], state[name], rtol=1e-9, atol=1e-9)
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(other.local_sums, one.local_sums, rtol=1e-9, atol=1e-9)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-9)
        assert (other.num_samples, other.steps, other.epochs) == (one.num_samples, one.steps, one.epochs)
    assert its_rate == rate


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.kind)
def test_it_does_what_the_eager_step_does_for_every_kind_of_action(action, kind, monkeypatch):
    assert_equal(
        both(EnvSpec(ArraySpec((4,)), action), kind, monkeypatch, entropy_coef=0.01, max_grad_norm=0.3)
    )


def test_recorded_kernels_do_what_the_eager_step_does_also_for_minibatches_of_two_sizes(monkeypatch):
    spec, config = EnvSpec(ArraySpec((4,)), ACTIONS[0]), {"clip_schedule": "linear", "lr_schedule": "linear"}
    found = both(spec, "recorded", monkeypatch, iterations=3, num_minibatches=4, **config)
    assert_equal(found)


def test_recorded_kernels_follow_moments_that_a_checkpoint_replaced(monkeypatch):
    spec, config = EnvSpec(ArraySpec((4,)), ACTIONS[0]), settings_of("ppo", num_epochs=1, num_minibatches=2)
    after = []
    for kind in ("eager", "recorded"):
        learner, model = made(spec, config, kind=kind, monkeypatch=monkeypatch)
        samples = rollout(spec, model)
        learner.update(samples, 1, 0.0)
        learner.load(copy.deepcopy(learner.state()))  # Adam's moments lie elsewhere from now on
        learner.update(samples, 2, 0.5)
        after.append(learner.parameters.detach())
    torch.testing.assert_close(*after, rtol=1e-9, atol=1e-9)


def test_compiled_it_has_the_step_sizes_of_the_eager_step(monkeypatch):
    settings = {"learning_rates": {"value_head": 3e-2, "policy_trunk": 1e-3}, "lr_schedule": "none"}
    assert_equal(both(EnvSpec(ArraySpec((4,)), ACTIONS[0]), "torch", monkeypatch, **settings))


@pytest.mark.parametrize("action", ACTIONS[:2], ids=lambda action: action.kind)
def test_it_does_so_under_action_masks(action, kind, monkeypatch):
    assert_equal(
        both(
            EnvSpec(ArraySpec((4,)), action, mask_size=sum(action.sizes)),
            kind,
            monkeypatch,
            entropy_coef=0.01,
        )
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_value_coef": 0.1, "value_coef": 0.7, "clip_coef": 0.1},
        {"clip_schedule": "linear", "clip_coef": 0.1},
        {"entropy_schedule": [[0, 0.0], [1, 0.5]]},
        {"lr_schedule": "adaptive", "adaptive_kl": 0.001},
        {"target_kl": 1e-9, "num_epochs": 5},
        {"max_grad_norm": 1e-3, "adam_eps": 1e-3},
        {"num_minibatches": 13},  # minibatches of one sample
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_it_does_so_under_every_setting_of_the_loss(settings, kind, monkeypatch):
    assert_equal(both(EnvSpec(ArraySpec((4,)), ACTIONS[0]), kind, monkeypatch, **settings))


def test_it_does_so_for_a_shared_trunk(kind, monkeypatch):
    assert_equal(
        both(
            EnvSpec(ArraySpec((4,)), ACTIONS[3]),
            kind,
            monkeypatch,
            settings_of("model", hidden_sizes=[8, 8], shared_trunk=True),
        )
    )


class Own(ActorCritic):
    """A model with a buffer and a parameter that does not learn."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.frozen = nn.Linear(spec.obs_size, 4)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, 4)
        self.register_buffer("shift", torch.full((4,), 0.5))

    def forward(self, obs):
        out = self.head(self.frozen(obs) + self.shift)
        return out[..., :3], out[..., 3]

    def action_params(self, obs):
        return self(obs)[0]

    def value(self, obs):
        return self(obs)[1]


def test_it_does_so_for_a_model_with_buffers_and_parameters_that_do_not_learn(monkeypatch):
    found = both(
        EnvSpec(ArraySpec((4,)), ACTIONS[0]),
        "torch",
        monkeypatch,
        settings_of("model", name=f"{__name__}:Own"),
    )
    assert_equal(found)


@pytest.mark.parametrize("name", ["mlp", "tests.unit.seen_tasks:Looking"])
def test_it_does_so_for_pixels_beside_other_arrays(name, monkeypatch):
    parts = {"state": ArraySpec((2, 2)), "camera": ArraySpec((1, 8, 8), "uint8")}
    found = both(EnvSpec(parts, ACTIONS[0]), "torch", monkeypatch, settings_of("model", name=name))
    assert_equal(found)


def empty(spec, model):
    """Return a batch with one minibatch, which has no sample."""
    return SimpleNamespace(minibatches=lambda order, bounds: [example(spec, model, 0, torch.Generator())])


def test_a_rank_without_samples_in_a_minibatch_adds_nothing(monkeypatch):
    spec = EnvSpec(ArraySpec((4,)), ACTIONS[0])
    learner, model = made(spec, PPOSettings(), kind="torch", monkeypatch=monkeypatch)
    learner.step.begin(1e-3, 0.2, 0.0)
    learner.step.epoch(empty(spec, model), order=None, bounds=[0, 0], counts=[3])
    assert not learner.parameters.grad.any()
    assert not learner.step.sums.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_optimizer_moves(bad, kind, monkeypatch):
    spec = EnvSpec(ArraySpec((4,)), ACTIONS[0])
    config = PPOSettings(num_epochs=3, num_minibatches=2)
    learner, model = made(spec, config, kind=kind, monkeypatch=monkeypatch)
    samples = rollout(spec, model)
    learner.update(samples, 1, 0.0)
    before = learner.parameters.detach().clone()
    samples.rewards[0, 0] = bad
    samples.valid[0, 0] = True
    with pytest.raises(NonFiniteError, match=r"^the loss of rank 0 is not finite in iteration 2; .*\[nan\]"):
        learner.update(samples, 2, 0.0)
    assert torch.equal(learner.parameters, before)
    assert learner.optimizer.state[learner.parameters]["step"] == 6


def test_its_gradient_is_tried_against_autograds_and_nothing_moves(kind, monkeypatch):
    spec, config = EnvSpec(ArraySpec((4,)), ACTIONS[3]), PPOSettings(clip_value_coef=0.2)
    learner, model = made(spec, config, kind=kind, monkeypatch=monkeypatch)
    before = learner.parameters.detach().clone()
    assert agrees(learner.step, spec, model, config)
    assert not agrees(learner.step, spec, model, PPOSettings(clip_value_coef=0.2, value_coef=0.6))
    assert torch.equal(learner.parameters, before)
    assert not learner.optimizer.state


class Counting(Own):
    """A model that changes its buffer whenever it is called."""

    def forward(self, obs):
        self.shift.add_(1.0)
        return super().forward(obs)


class Branching(Own):
    """A model whose course depends on what it sees."""

    def forward(self, obs):
        return super().forward(obs if obs.sum() > 0 else -obs)


def compiled(spec, model_config, dtype=torch.float32, **settings):
    """The step of a model as torch.compile makes it, and the model."""
    config, model = settings_of("ppo", **settings), build_model(spec, model_config, 0, dtype)
    parameters, group = FlatParameters(model), Group()
    optimizer = torch.optim.Adam([parameters.vector])
    return CompiledStep(config, model, optimizer, group.sum_), model, config


def test_what_is_compiled_of_convolutions_takes_any_number_of_images():
    spec = EnvSpec(ArraySpec((4, 36, 36), "uint8"), ACTIONS[0])
    layers = {"conv_layers": [[8, 8, 4], [8, 3, 1]], "hidden_sizes": [8], "activation": "relu"}
    shared = settings_of("model", name="cnn", shared_trunk=True, precision="bfloat16", **layers)
    step, model, config = compiled(spec, shared)
    assert (model.stays_eager, model.compiles_by_itself) == (None, False)
    assert worst_error(step, spec, model, config, 300) < 0.02
    step.begin(1e-3, config.clip_coef, 0.0)
    step.epoch(empty(spec, model), order=None, bounds=[0, 0], counts=[3])
    assert step.end() == 0.0


@pytest.mark.parametrize(
    ("name", "error"),
    [("Counting", "changes its buffers"), ("Branching", "[Dd]ata.dependent")],
)
def test_a_model_that_a_compiled_step_cannot_repeat_is_refused(name, error):
    spec, config = EnvSpec(ArraySpec((4,)), ACTIONS[0]), settings_of("model", name=f"{__name__}:{name}")
    with pytest.raises(CannotCompile, match=error):
        compiled(spec, config)
