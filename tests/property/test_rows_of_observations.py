"""Rows of observations against Gymnasium's own flattening, over generated spaces."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatten
from hypothesis import given
from hypothesis import strategies as st

from ddppo.envs.encoding.gym_spaces import obs_spec
from ddppo.envs.encoding.observations import RowEncoder
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each, leaves

sizes = st.integers(1, 4)
shapes = st.lists(sizes, max_size=2).map(tuple)
basic = st.one_of(
    st.builds(lambda shape, kind: Box(-1, 1, shape, kind), shapes, st.sampled_from([np.float32, np.float64])),
    st.builds(lambda shape: Box(0, 255, shape, np.uint8), shapes),
    st.builds(lambda n, start: Discrete(n, start=start), sizes, st.integers(-3, 3)),
    st.builds(
        lambda pairs: MultiDiscrete([n for n, _ in pairs], start=[start for _, start in pairs]),
        st.lists(st.tuples(sizes, st.integers(-3, 3)), min_size=1, max_size=3),
    ),
    st.builds(MultiBinary, st.lists(sizes, min_size=1, max_size=2)),
)
spaces = st.recursive(
    basic,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(Dict),
    ),
    max_leaves=6,
)


@given(spaces, st.integers(0, 2**31 - 1), st.sampled_from([None, 2]))
def test_a_row_holds_the_numbers_that_gymnasium_flattens_an_observation_to(space, seed, mask_size):
    space.seed(seed)
    obs = space.sample()
    encode = RowEncoder(space, EnvSpec(obs_spec(space), ActionSpec("discrete", (2,)), mask_size))
    row = encode(obs, {"action_mask": np.array([0, 1])})
    arrays, specs = encode.layout.obs(row), obs_spec(space)
    assert each(lambda x: ArraySpec(x.shape, x.dtype.name), arrays) == specs
    flat = np.concatenate([np.ravel(x) for x in leaves(arrays)])
    np.testing.assert_array_equal(flat, np.asarray(flatten(space, obs), flat.dtype))
    mask = encode.layout.mask(row)
    assert (None if mask is None else mask.tolist()) == (mask_size and [False, True])
