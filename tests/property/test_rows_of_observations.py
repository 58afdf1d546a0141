"""Rows of observations against Gymnasium's own flattening, over generated spaces."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from hypothesis import given
from hypothesis import strategies as st

from ddppo.envs.codec import RowEncoder, obs_dtype
from ddppo.spaces import ActionSpec, EnvSpec

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


@given(spaces, st.integers(0, 2**31 - 1))
def test_a_row_is_what_gymnasium_flattens_an_observation_to(space, seed):
    space.seed(seed)
    obs = space.sample()
    row = RowEncoder(space, EnvSpec(flatdim(space), ActionSpec("discrete", (2,))))(obs, {})
    assert row.dtype == obs_dtype(space)
    np.testing.assert_array_equal(row, np.asarray(flatten(space, obs), row.dtype))
