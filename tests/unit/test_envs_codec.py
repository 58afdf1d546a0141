import numpy as np
import pytest
from test_envs_tasks import task

from ddppo.envs import make_env, make_eval_env, probe
from ddppo.spaces import ActionSpec

OBSERVED = {
    "scalar": (np.float32, [7]),
    "image": (np.float32, [0, 1, 2, 3, 4, 255]),
    "double": (np.float64, [1 / 3, -1 / 3]),
    "discrete": (np.float32, [0, 1, 0, 0]),
    "multi_discrete": (np.float32, [0, 1, 0, 0, 1]),
    "dict": (np.float32, [0, 0, 1, 0.5, -0.5]),
    "tuple": (np.float32, [0, 0, 1, 0.5, -0.5]),
    "nested": (np.float32, [0, 1, 0, 0, 1, 0, 1, 1, 0]),
}


@pytest.mark.parametrize("kind", OBSERVED)
def test_observations_of_every_supported_space_become_flat_float_rows(kind):
    env = task("Observe", kwargs={"kind": kind})
    dtype, expected = OBSERVED[kind]
    assert probe(env).obs_size == len(expected)
    envs = make_eval_env(env, 2)
    obs, mask = envs.reset([0, 1])
    assert mask is None
    assert obs.dtype == dtype
    np.testing.assert_array_equal(obs, np.array([expected, expected], dtype))
    np.testing.assert_array_equal(envs.step(np.zeros(2, np.int64)).obs, obs)
    scalar = make_env(env)
    np.testing.assert_array_equal(scalar.reset(seed=0)[0], obs[0])


ACTED = {
    "box": (
        ActionSpec("box", (4,)),
        [[-3.0, -300.0, 0.25, 3.0], [3.0, 300.0, -1.0, -3.0]],
        [[-1.0, -300.0, 0.25, 2.0], [1.0, 300.0, 0.0, -2.0]],
    ),
    "integers": (ActionSpec("box", (2,)), [[-4.0, 1.7], [256.5, 254.4]], [[0, 2], [255, 254]]),
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
    np.testing.assert_array_equal(obs, np.array(expected, np.float64))
    np.testing.assert_array_equal(actions, before)
    scalar = make_env(env)
    scalar.reset(seed=0)
    np.testing.assert_array_equal(scalar.step(actions[1])[0], obs[1])


def test_float32_actions_are_clipped_as_float64_ones_are():
    envs = make_eval_env(task("Echo", kwargs={"kind": "box"}), 1)
    envs.reset([0])
    obs = envs.step(np.array([[-3.0, 5.0, 0.25, 3.0]], np.float32)).obs
    np.testing.assert_array_equal(obs, [[-1.0, 5.0, 0.25, 2.0]])
