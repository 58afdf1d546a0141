import pytest
import torch

from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import random_obs
from ddppo.models.build import build_model
from ddppo.models.model_check import check_model
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

DISCRETE = ActionSpec("discrete", (6,))
PONG = EnvSpec(ArraySpec((4, 84, 84), "uint8"), DISCRETE)
NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
SMALL = [[4, 3, 2], [6, 2, 1]]


def settings(layers=SMALL, **more):
    wanted = {"hidden_sizes": [16], "activation": "relu", "shared_trunk": True, "conv_layers": layers, **more}
    return settings_of("model", name="cnn", **wanted)


def images(*shape, dtype="uint8"):
    return EnvSpec(ArraySpec(shape, dtype), DISCRETE)


def cnn(spec, dtype=torch.float64, **more):
    return build_model(spec, settings(**more), 0, dtype)


def test_the_nature_network_has_its_published_size():
    model = cnn(PONG, torch.float32, layers=NATURE, hidden_sizes=[512])
    trunk = (32 * 4 * 64 + 32) + (64 * 32 * 16 + 64) + (64 * 64 * 9 + 64) + (3136 * 512 + 512)
    assert sum(p.numel() for p in model.parameters()) == trunk + (512 * 6 + 6) + (512 + 1)
    assert model.num_products() == 400 * 32 * 256 + 81 * 64 * 512 + 49 * 64 * 576 + 3136 * 512


def test_layers_start_orthogonal_with_the_gains_of_their_place_and_without_bias():
    model = cnn(images(3, 12, 12))
    for layer, gain in [*((layer, 2.0) for layer in model.policy_trunk.layers), (model.policy_head, 1e-4)]:
        rows = layer.weight.detach().flatten(1)
        gram = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
        torch.testing.assert_close(gram, gain * torch.eye(len(gram)).double(), rtol=1e-5, atol=1e-5 * gain)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize(("shape", "layers"), [((3, 12, 12), SMALL), ((4, 20, 24), [[5, 8, 4], [6, 3, 1]])])
def test_pixels_count_from_0_to_1_folded_or_not(shape, layers):
    pixels, floats = cnn(images(*shape), layers=layers), cnn(images(*shape, dtype="float64"), layers=layers)
    assert (pixels.policy_trunk.folds, floats.policy_trunk.folds) == (shape[0] == 4, False)
    obs = random_obs(images(*shape), 5, torch.float64)
    for of_pixels, of_floats in zip(pixels(obs), floats(obs.double() / 255), strict=True):
        torch.testing.assert_close(of_pixels, of_floats)


@pytest.mark.parametrize("layers", [SMALL, [[5, 8, 4], [6, 3, 1]]], ids=["plain", "folded"])
def test_of_no_image_there_is_no_output_and_no_gradient(layers):
    model = cnn(images(4, 20, 24), layers=layers)
    params, values = model(torch.zeros(0, 4, 20, 24, dtype=torch.uint8))
    assert (len(params), len(values)) == (0, 0)
    (params.sum() + values.sum()).backward()
    assert not any(p.grad.any() for p in model.parameters())


def test_images_whose_channels_come_last_are_the_same_images():
    first, last = cnn(images(3, 12, 10)), cnn(images(12, 10, 3), image_layout="hwc")
    obs = random_obs(images(3, 12, 10), 5, torch.float64)
    for a, b in zip(first(obs), last(obs.permute(0, 2, 3, 1)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("batch", [(1,), (7,), (2, 3)])
@pytest.mark.parametrize("action", [DISCRETE, ActionSpec("box", (2,))])
@pytest.mark.parametrize("shared", [True, False])
def test_it_returns_parameters_and_values_behind_any_batch_shape(batch, action, shared):
    spec = EnvSpec(ArraySpec((3, 12, 12), "uint8"), action)
    model = build_model(spec, settings(shared_trunk=shared), 0, torch.float32)
    obs = random_obs(spec, 6, torch.float32)[: torch.Size(batch).numel() % 7 or 6]
    obs = torch.zeros(*batch, 3, 12, 12, dtype=torch.uint8) + obs[0]
    params, values = model(obs)
    assert params.shape == (*batch, 6 if action is DISCRETE else 4)
    assert values.shape == batch
    with torch.inference_mode():
        torch.testing.assert_close(model.action_params(obs), params)
        torch.testing.assert_close(model.value(obs), values)


def test_trunks_of_their_own_do_not_share_gradients():
    model = cnn(images(3, 12, 12), shared_trunk=False)
    model(random_obs(images(3, 12, 12), 5, torch.float64))[1].sum().backward()
    assert all(p.grad is None for p in model.policy_trunk.parameters())
    assert all(p.grad is not None for p in model.value_trunk.parameters())


def test_in_bfloat16_outputs_and_gradients_are_float32_and_near_those_of_float32():
    exact, rounded = (cnn(PONG, torch.float32, layers=NATURE, precision=p) for p in ("float32", "bfloat16"))
    obs = random_obs(PONG, 32, torch.float32, torch.Generator().manual_seed(0))
    for a, b in zip(exact(obs), rounded(obs), strict=True):
        assert b.dtype == torch.float32
        assert (a - b).abs().max() < 0.02 * a.abs().max()
    gradients = []
    for model in (exact, rounded):
        params, values = model(obs)
        ((values - 1).square().mean() + params[:, 0].mean()).backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 0.06 * gradients[0].norm()


@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_gradients_of_two_halves_add_up_to_that_of_the_whole(precision, limit):
    model = cnn(PONG, torch.float32, layers=NATURE, precision=precision)
    obs = random_obs(PONG, 64, torch.float32, torch.Generator().manual_seed(0))

    def gradient(rows):
        params, values = model(rows)
        loss = (values - 1).square().sum() + params[:, 0].sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    whole, halves = gradient(obs), gradient(obs[:32]) + gradient(obs[32:])
    assert (whole - halves).norm() < limit * whole.norm()


def test_while_parameters_are_unchanged_outputs_are_the_same_and_afterwards_they_follow():
    model = cnn(images(3, 12, 12))
    obs = random_obs(images(3, 12, 12), 5, torch.float64)
    before = model.value(obs)
    with model.unchanged(), torch.inference_mode():
        assert torch.equal(model.value(obs), before)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert not torch.allclose(model.value(obs), before)


def test_a_user_s_check_of_models_passes_for_it_in_both_precisions():
    for precision in ("float32", "bfloat16"):
        config = settings(NATURE, hidden_sizes=[64], precision=precision)
        assert check_model(PONG, config, torch.float32, num_envs=2) is None


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        (
            images(4, 10, 10),
            {"layers": NATURE},
            "a kernel of 4 x 4 does not fit into 1 x 1, which is left of images",
        ),
        (
            images(84, 84, 3),
            {"layers": NATURE, "image_layout": "chw"},
            r"images of 84 x 3 and 84 channels \(model.image_layout=chw\)",
        ),
        (images(5), {}, r"takes images, a Box of 3 dimensions, but the task observes \[5\]: use model=mlp"),
        (EnvSpec({"a": ArraySpec((3, 9, 9))}, DISCRETE), {}, "a dict of a"),
    ],
)
def test_what_is_no_image_or_too_small_is_told_in_one_sentence(spec, more, said):
    with pytest.raises(ConfigError, match=said):
        cnn(spec, **more)


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (settings([]), {}, "model.name=cnn needs model.conv_layers"),
        (settings([[32, 8]]), {}, "every layer is"),
        (settings([[32, 8, 0]]), {}, "every layer is"),
        (settings(precision="bfloat16"), {"dtype": "float64"}, "with dtype=float64"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, more, said):
    with pytest.raises(ConfigError, match=said):
        validate(Config(env=EnvConfig(id="x"), model=model, **more))
