import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from test_envs_tasks import OBSERVATION_SPACES, task

from ddppo.envs.encoding.gym_spaces import obs_spec
from ddppo.envs.encoding.observations import RowEncoder, WrongOutput
from ddppo.envs.make import make_eval_env
from ddppo.envs.probing.probe import make_env, probe
from ddppo.errors import ConfigError
from ddppo.spaces import ActionSpec, EnvSpec, each, leaves

DICT = {"card": np.float32([0, 0, 1]), "position": np.float64([0.5, -0.5])}
OBSERVED = {
    "scalar": np.float32(7),
    "image": np.uint8([[0, 1, 2], [3, 4, 255]]),
    "bits": np.float32([[0, 1], [1, 1]]),
    "double": np.float64([1 / 3, -1 / 3]),
    "discrete": np.float32([0, 1, 0, 0]),
    "multi_discrete": np.float32([0, 1, 0, 0, 1]),
    "dict": DICT,
    "tuple": {"0": DICT["card"], "1": DICT["position"]},
    "nested": {
        "a": np.float32([0, 1, 0, 0, 1]),
        "b.0.x": np.float32([0, 1]),
        "b.1": np.float32([1, 0]),
    },
    "camera": {"camera": np.uint8([[[0, 9], [8, 255]]]), "speed": np.float32([-2])},
}


def test_whole_numbers_have_a_largest_one_where_their_space_says_so():
    whole = {
        "kinds": Box(-1, 3, (5,), np.int8),
        "pairs": Box(-1, np.array([7, 40]), (2,), np.int32),
        "free": Box(0, np.inf, (2,), np.int64),
        "float": Box(0, 3, (2,), np.float32),
        "pixels": Box(0, 255, (2,), np.uint8),
        "card": Discrete(3),
    }
    found = {name: leaf.high for name, leaf in obs_spec(Dict(whole)).items()}
    assert found == {"kinds": 3, "pairs": 40, "free": None, "float": None, "pixels": None, "card": None}


@pytest.mark.parametrize("kind", OBSERVED)
def test_observations_of_every_supported_space_keep_their_shape_and_pixels_their_type(kind):
    env, expected = task("Observe", kwargs={"kind": kind}), OBSERVED[kind]
    found = each(lambda leaf: (leaf.shape, leaf.dtype), probe(env).obs)
    assert found == each(lambda x: (x.shape, x.dtype.name), expected)
    envs = make_eval_env(env, 2)
    obs, mask = envs.reset([0, 1])
    assert mask is None
    assert_arrays(obs, each(lambda x: np.stack([x, x]), expected))
    assert_arrays(envs.step(np.zeros(2, np.int64)).obs, obs)
    scalar = make_env(env)
    assert_arrays(scalar.reset(seed=0)[0], each(np.asarray, expected))
    assert scalar.observation_space.contains(scalar.reset(seed=0)[0])


def assert_arrays(found, expected):
    """Compare arrays, or dicts of them in the same order: numbers, shapes and types."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    for x, wanted in zip(leaves(found), leaves(expected), strict=True):
        assert (x.dtype, x.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize(
    ("given", "said"),
    {
        "too bright": (
            np.full((2, 3), 256),
            "with the number 256, its space says whole numbers from 0 to 255",
        ),
        "between": (np.full((2, 3), 0.5), "with the number 0.5"),
        "nan": (np.full((2, 3), np.nan), "with the number nan"),
        "below": (np.full((2, 3), -1, np.int8), "with the number -1"),
        "text": ("pixels", "of type str ('pixels'), its space says numbers of shape (2, 3)"),
        "objects": (np.full((2, 3), None), "of type ndarray and dtype object, its space says numbers of"),
    }.values(),
)
def test_what_is_no_pixel_is_not_made_one(given, said):
    space = OBSERVATION_SPACES["image"]
    encode = RowEncoder(space, EnvSpec(obs_spec(space), ActionSpec("discrete", (2,))))
    assert_arrays(encode(np.arange(6.0).reshape(2, 3), {}), np.arange(6, dtype=np.uint8).reshape(2, 3))
    with pytest.raises(WrongOutput, match=re.escape(f"an observation {said}")):
        encode(given, {})


def test_two_parts_of_an_observation_need_two_paths():
    with pytest.raises(ConfigError, match=r"two parts of the observations have the path a\.0: rename one"):
        obs_spec(Dict({"a.0": Discrete(2), "a": Tuple([Discrete(2)])}))


ACTED = {
    "box": (
        ActionSpec("box", (4,)),
        [[-3.0, -300.0, 0.25, 3.0], [3.0, 300.0, -1.0, -3.0]],
        [[-1.0, -300.0, 0.25, 2.0], [1.0, 300.0, 0.0, -2.0]],
    ),
    "integers": (
        ActionSpec("box", (2,), (0.0, 0.0), (255.0, 255.0)),
        [[-4.0, 1.7], [256.5, 254.4]],
        [[0, 2], [255, 254]],
    ),
    "discrete": (ActionSpec("discrete", (3,)), [0, 2], [[-1], [1]]),
    "multi_discrete": (ActionSpec("multi_discrete", (2, 3)), [[0, 2], [1, 0]], [[10, 22], [11, 20]]),
    "multi_binary": (
        ActionSpec("multi_binary", (4,)),
        [[1, 0, 0, 1], [0, 1, 1, 1]],
        [[1, 0, 0, 1], [0, 1, 1, 1]],
    ),
}


@pytest.mark.parametrize("kind", ACTED)
def test_actions_arrive_shifted_clipped_and_shaped_while_the_models_array_keeps_its_values(kind):
    spec, raw, expected = ACTED[kind]
    env = task("Echo", kwargs={"kind": kind})
    assert probe(env).action == spec
    envs = make_eval_env(env, 2)
    envs.reset([0, 1])
    actions = np.array(raw)
    before = actions.copy()
    obs = envs.step(actions).obs
    np.testing.assert_array_equal(obs, np.reshape(np.array(expected, np.float64), obs.shape))
    np.testing.assert_array_equal(actions, before)
    scalar = make_env(env)
    scalar.reset(seed=0)
    np.testing.assert_array_equal(scalar.step(actions[1])[0], obs[1])


def test_float32_actions_are_clipped_as_float64_ones_are():
    envs = make_eval_env(task("Echo", kwargs={"kind": "box"}), 1)
    envs.reset([0])
    obs = envs.step(np.array([[-3.0, 5.0, 0.25, 3.0]], np.float32)).obs
    np.testing.assert_array_equal(obs, [[[-1.0, 5.0], [0.25, 2.0]]])
