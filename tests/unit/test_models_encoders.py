"""Trunks: residual networks, and an encoder for each array of a dict."""

import pytest
import torch
import torch.nn.functional as F

from ddppo.config.rules import validate
from ddppo.config.settings import Config, EnvConfig
from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import random_obs
from ddppo.models.build import build_model
from ddppo.models.cnn import Image, image_of, images_in
from ddppo.models.model_check import check_model
from ddppo.models.on_trunk import TRUNKS, make_trunk
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each

DISCRETE = ActionSpec("discrete", (6,))
PONG = EnvSpec(ArraySpec((4, 84, 84), "uint8"), DISCRETE)
SMALL = EnvSpec(ArraySpec((4, 28, 28), "uint8"), DISCRETE)
MIXED = EnvSpec(
    {
        "camera": ArraySpec((3, 16, 20), "uint8"),
        "grid": ArraySpec((7, 7, 3), "uint8"),
        "cards.0": ArraySpec((3,)),
        "speed": ArraySpec((), "float64"),
    },
    ActionSpec("box", (2,)),
)


def settings(name, **more):
    wanted = {"hidden_sizes": [16], "activation": "relu", "shared_trunk": True, **more}
    return settings_of("model", name=name, **wanted)


def built(name, spec, dtype=torch.float64, **more):
    return build_model(spec, settings(name, **more), 0, dtype)


def of_dict(spec=MIXED, dtype=torch.float64, **more):
    return built("dict", spec, dtype, **{"image_layout": "auto", "image_features": 8, **more})


def slow_residual(trunk, images):
    """The network of figure 3 in Espeholt et al. 2018, as it is drawn."""
    layers = iter(trunk.layers)
    x = images.double() / 255
    for _ in range(3):
        x = F.max_pool2d(next(layers)(x), 3, 2, 1)
        for _ in range(2):
            first, second = next(layers), next(layers)
            x = x + second(first(x.relu()).relu())
    return next(layers)(x.relu().flatten(1)).relu()


def test_the_residual_network_has_its_published_size_and_form():
    model = built("resnet", PONG, torch.float32, hidden_sizes=[256])

    def block(inputs, filters):
        return filters * inputs * 9 + filters + 4 * (filters * filters * 9 + filters)

    trunk = block(4, 16) + block(16, 32) + block(32, 32) + 11 * 11 * 32 * 256 + 256
    assert sum(p.numel() for p in model.parameters()) == trunk + (256 * 6 + 6) + (256 + 1)
    small = built("resnet", EnvSpec(ArraySpec((3, 13, 10), "uint8"), DISCRETE))
    obs = random_obs(small.spec, 5, torch.float64)
    torch.testing.assert_close(small.policy_trunk(obs), slow_residual(small.policy_trunk, obs))
    torch.testing.assert_close(small.policy_trunk.plain(obs), slow_residual(small.policy_trunk, obs))


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_a_unit_leaves_what_goes_past_it(activation):
    model = built(
        "resnet", EnvSpec(ArraySpec((1, 8, 8)), DISCRETE), activation=activation, resnet_channels=[3]
    )
    obs = random_obs(model.spec, 4, torch.float64)
    for layer in model.policy_trunk.layers[1:5]:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    seen = F.max_pool2d(model.policy_trunk.layers[0](obs), 3, 2, 1)
    act = getattr(F, activation)
    torch.testing.assert_close(
        model.policy_trunk(obs), act(model.policy_trunk.layers[5](act(seen).flatten(1)))
    )


def test_every_array_has_an_encoder_that_suits_its_shape():
    trunk = of_dict().policy_trunk
    assert [type(e).__name__ for e in trunk.encoders] == ["Convolutions", "Convolutions", "Flat", "Flat"]
    assert [e.num_features for e in trunk.encoders] == [8, 8, 64, 64]
    assert [(e.image.channels, e.image.is_hwc) for e in trunk.encoders[:2]] == [(3, False), (3, True)]
    others = of_dict(encoders={"camera": "resnet", "grid": "mlp"}).policy_trunk.encoders
    assert [type(e).__name__ for e in others] == ["Residual", "Flat", "Flat", "Flat"]


def test_what_is_observed_reaches_the_features_by_its_own_encoder_alone():
    model = of_dict()
    obs = random_obs(MIXED, 5, torch.float64)
    for i, key in enumerate(MIXED.obs):
        model.zero_grad()
        changed = {**obs, key: random_obs(MIXED, 5, torch.float64, torch.Generator().manual_seed(1))[key]}
        assert not torch.allclose(model.value(changed), model.value(obs))
        trunk = model.policy_trunk
        trunk.encoders[i](obs[key]).sum().backward()
        assert [any(p.grad is not None for p in e.parameters()) for e in trunk.encoders] == [
            k == i for k in range(4)
        ]


@pytest.mark.parametrize(("kind", "published"), [("resnet18", 11_176_512), ("resnet50", 23_508_032)])
def test_the_encoders_of_dd_ppo_are_he_s_of_half_the_filters(kind, published):
    """published: parameters of torchvision's resnet18 and resnet50 but for their last layer."""
    spec = EnvSpec(ArraySpec((3, 64, 64), "uint8"), DISCRETE)
    deep = of_dict(spec, torch.float32, image_encoder=kind, hidden_sizes=[]).policy_trunk.encoders[0]
    layers = list(deep.convolutions[:-2].modules())
    doubled = sum(whole_size(layer) for layer in layers)
    assert doubled == published
    obs = random_obs(spec, 3, torch.float32)
    torch.testing.assert_close(deep(obs), torch.cat([deep(x) for x in obs.split(1)]), rtol=1e-4, atol=1e-4)


def test_the_net_of_dd_ppo_remembers_in_two_layers_of_512_what_images_and_vectors_say():
    spec = EnvSpec({"depth": ArraySpec((32, 40, 1)), "goal": ArraySpec((3,))}, DISCRETE)
    small = {"image_encoder": "resnet18", "image_features": 512, "vector_sizes": [32], "hidden_sizes": []}
    model = of_dict(spec, torch.float64, **small, memory="lstm", memory_layers=2, memory_size=512)
    first, second = (4 * 512 * (inputs + 512) for inputs in (512 + 32, 512))
    assert model.core.num_products == first + second
    assert model.state_size == 2 * 2 * 512
    obs = random_obs(spec, 6, torch.float64)
    starts = torch.tensor([[True, False], [False, True], [False, False]])
    state = torch.zeros(2, model.state_size, dtype=torch.float64)
    params, values = model.unroll(each(lambda x: x.unflatten(0, (3, 2)), obs), state, starts)
    for t in range(3):
        state = state * ~starts[t, :, None]
        row = each(lambda x, t=t: x[2 * t : 2 * t + 2], obs)
        step_params, step_values, state = model.step(row, state)
        torch.testing.assert_close(params[t], step_params)
        torch.testing.assert_close(values[t], step_values)


def whole_size(layer):
    """Return the parameters of a layer were all its channels, but for the 3 of pixels, twice as many."""
    if isinstance(layer, torch.nn.Conv2d):
        return layer.weight.numel() * (2 if layer.in_channels == 3 else 4)
    return 2 * sum(p.numel() for p in layer.parameters()) if isinstance(layer, torch.nn.GroupNorm) else 0


def test_pixels_that_name_things_count_by_pixel_max():
    grid = EnvSpec(ArraySpec((7, 7, 3), "uint8"), DISCRETE)
    numbers = EnvSpec(ArraySpec((7, 7, 3), "float64"), DISCRETE)
    names, floats = of_dict(grid, pixel_max=10), of_dict(numbers)
    with pytest.raises(ConfigError, match="has no effect: the task observes no image of uint8"):
        of_dict(numbers, pixel_max=10)
    obs = torch.randint(0, 11, (5, 7, 7, 3), dtype=torch.uint8)
    torch.testing.assert_close(names.value(obs), floats.value(obs.double() / 10))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["resnet", "dict"])
def test_behind_any_batch_shape_all_methods_agree_also_while_weights_are_kept(name, shared):
    spec = MIXED if name == "dict" else EnvSpec(ArraySpec((3, 12, 12), "uint8"), DISCRETE)
    model = built(name, spec, shared_trunk=shared, image_layout="auto")
    obs = random_obs(spec, 6, torch.float64)
    params, values = model(obs)
    assert values.shape == (6,)
    with torch.inference_mode(), model.unchanged():
        torch.testing.assert_close(model.action_params(obs), params)
        torch.testing.assert_close(model.value(obs), values)
        torch.testing.assert_close(model.portable_params(obs), params)
    behind = each(lambda x: x.unflatten(0, (2, 3)), obs)
    torch.testing.assert_close(model(behind)[0], params.unflatten(0, (2, 3)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "spec"), [("resnet", SMALL), ("dict", MIXED)])
def test_a_user_s_check_of_models_passes_for_them_in_both_precisions(name, spec, precision):
    config = settings(name, precision=precision, image_layout="auto" if name == "dict" else "chw")
    assert check_model(spec, config, torch.float32, num_envs=2) is None


@pytest.mark.parametrize(("name", "spec"), [("resnet", SMALL), ("dict", MIXED)])
def test_in_bfloat16_features_and_gradients_are_near_those_of_float32(name, spec):
    layout = "auto" if name == "dict" else "chw"
    exact, rounded = (
        built(name, spec, torch.float32, precision=p, image_layout=layout) for p in ("float32", "bfloat16")
    )
    obs = random_obs(spec, 16, torch.float32, torch.Generator().manual_seed(0))
    gradients = []
    for model in (exact, rounded):
        values = model.value(obs)
        assert values.dtype == torch.float32
        (values - 1).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).norm() < 0.1 * gradients[0].norm()


def test_a_trunk_is_made_without_heads_and_says_what_it_hands_over():
    images = EnvSpec(ArraySpec((4, 44, 44), "uint8"), DISCRETE)
    assert list(TRUNKS) == ["mlp", "cnn", "resnet", "dict"]
    for name in TRUNKS:
        config = settings(
            name, **({"conv_layers": [[4, 8, 4], [4, 3, 1]]} if name in ("cnn", "dict") else {})
        )
        trunk = make_trunk(images, config)
        obs = random_obs(images, 3, torch.float32)
        assert trunk(obs).shape == (3, trunk.num_features) == (3, 16)
        assert trunk.num_products > 0


@pytest.mark.parametrize(
    ("spec", "name", "more", "said"),
    [
        (EnvSpec(ArraySpec((5,)), DISCRETE), "resnet", {}, r"but the task observes \[5\]: use model=mlp"),
        (MIXED, "resnet", {}, "a dict of camera, grid, cards.0, speed: use model=dict"),
        (
            MIXED,
            "dict",
            {"encoders": {"lidar": "mlp"}},
            "the task observes camera, grid, cards.0, speed: use one",
        ),
        (
            MIXED,
            "dict",
            {"encoders": {"speed": "cnn"}},
            r"takes images, of 3 dimensions, and speed is \[\]: use mlp",
        ),
        (
            EnvSpec({"a": ArraySpec((5, 6, 5))}, DISCRETE),
            "dict",
            {},
            r"auto: a, images of \[5, 6, 5\], may .* set model.image_layout=chw or .*, or model.encoders={a: mlp} if",
        ),
        (
            EnvSpec(ArraySpec((3, 3, 3)), DISCRETE),
            "resnet",
            {},
            r"auto: images of \[3, 3, 3\], may have channels first",
        ),
    ],
)
def test_what_a_trunk_cannot_take_is_told_in_one_sentence(spec, name, more, said):
    with pytest.raises(ConfigError, match=said):
        built(name, spec, **{"image_layout": "auto", **more})


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        *(
            ((4, 84, 84), "chw"),
            ((84, 84, 3), "hwc"),
            ((5, 5, 3), "hwc"),
            ((3, 5, 5), "chw"),
            ((8, 8, 111), "hwc"),
        ),
        *(((210, 160, 3), "hwc"), ((3, 210, 160), "chw"), ((12, 10, 3), "hwc"), ((16, 60, 80), "chw")),
        *(
            ((1, 28, 20), "chw"),
            ((2, 2, 4), "hwc"),
            ((3, 3, 3), None),
            ((4, 84, 4), None),
            ((10, 9, 14), None),
        ),
        *(((3, 5, 4), None), ((64, 20, 9), None)),
    ],
)
def test_the_shape_of_an_image_tells_where_its_channels_are(shape, layout):
    leaf = ArraySpec(shape, "uint8")
    if layout is None:
        with pytest.raises(ConfigError, match=r"set model.image_layout=chw or model.image_layout=hwc"):
            image_of(leaf, settings_of("model", name="dict"))
    else:
        found = image_of(leaf, settings_of("model", name="dict"), "camera")
        channels, *sizes = shape if layout == "chw" else (shape[2], *shape[:2])
        assert found == Image(channels, *sizes, is_hwc=layout == "hwc", is_pixels=True, key="camera")
    for given in ("chw", "hwc"):  # what is set is taken, whatever the shape
        assert image_of(leaf, settings_of("model", name="dict", image_layout=given)).is_hwc == (
            given == "hwc"
        )


def test_a_model_says_what_it_takes_for_images():
    assert images_in(built("mlp", SMALL, torch.float32)) == ""
    assert "camera: " in images_in(built("dict", MIXED, torch.float32, image_layout="auto"))
    spec = EnvSpec(ArraySpec((40, 44, 3), "uint8"), DISCRETE)
    for shared in (True, False):
        model = built("resnet", spec, torch.float32, shared_trunk=shared)
        assert images_in(model) == "40 x 44 pixels of 3 channels, channels last"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (settings("resnet", resnet_channels=[]), "needs one or more sizes, each at least 1, e.g. "),
        (settings("dict", vector_sizes=[0]), "needs one or more sizes, each at least 1, e.g. "),
        (
            settings("dict", encoders={"a": "lstm"}),
            "an encoder is one of cnn, resnet, resnet18, resnet50, mlp",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, said):
    with pytest.raises(ConfigError, match=said):
        validate(Config(env=EnvConfig(id="x"), model=model))
