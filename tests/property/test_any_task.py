"""Tasks of any spaces, returns and faults: what is stepped is what the task returned, or a sentence says what is wrong.

A plan holds spaces and all that a task returns; the oracle compares number by number what the batch hands over with
what the plan says, in Python's numbers and without the code under test.
"""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.envs.single import make_single_env
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvError, EnvRaised
from ddppo.spaces import leaves

NUM_STEPS = 3
FLOATS, WHOLES = (
    ("float16", "float32", "float64"),
    ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
REFUSED = object()


# -- what a task is -------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """Spaces, and what the reset (0) and each step return. Flags and rewards stand beside what they are read as."""

    observation_space: Any
    action_space: Any
    observations: list[Any]
    rewards: list[tuple[Any, Any]]
    flags: list[tuple[Any, Any]]
    infos: list[tuple[Any, Any]]
    masks: list[Any] | None
    mask_by: str
    is_faulty: bool
    batch_seed: int


class AnyTask(gym.Env):
    """Does what the plan of the example says; every step ends the episode or not as its flag has it."""

    plan: Plan

    def __init__(self):
        self.observation_space, self.action_space = self.plan.observation_space, self.plan.action_space
        if self.plan.masks is not None and self.plan.mask_by == "method":
            self.action_masks = lambda: self.plan.masks[self.at]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._seen()

    def step(self, action):
        # What Gymnasium draws of a Box of shape () is an array, and a row of a batch a number.
        of_space = np.asarray(action) if isinstance(self.action_space, Box) else action
        assert self.action_space.contains(of_space), (action, self.action_space)
        self.at = self.at % NUM_STEPS + 1
        obs, info = self._seen()
        return obs, self.plan.rewards[self.at][0], self.plan.flags[self.at][0], False, info

    def _seen(self):
        info = self.plan.infos[self.at][0]
        if self.plan.masks is not None and self.plan.mask_by == "info" and isinstance(info, Mapping):
            info = type(info)({**info, "action_mask": self.plan.masks[self.at]})
        return self.plan.observations[self.at], info


gym.register("any/Task-v0", AnyTask)


# -- strategies -----------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple) | st.lists(st.integers(1, 3), max_size=2).map(
    tuple
)


@st.composite
def boxes(draw, dtypes=(*FLOATS, *WHOLES, "bool")):
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(shapes)
    if dtype.kind == "b":
        return Box(0, 1, shape, bool)
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        low, high = draw(
            st.sampled_from(
                [(-1, 1), (0, 255), (-math.inf, math.inf), (-most, most), (0, math.inf), (2, 2), (-0.1, 0.3)]
            )
        )
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        low, high = draw(st.sampled_from([(0, 1), (0, most), (least, most), (most - 1, most), (0, 100)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of bounds that a type rounds
        return Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type)


whole_types = st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64])
discretes = st.builds(
    lambda n, start, dtype: Discrete(
        n, start=start if dtype in (np.int8, np.int32, np.int64) else abs(start), dtype=dtype
    ),
    st.integers(1, 5) | st.just(100),
    st.integers(-3, 3),
    whole_types,
)
huge = st.sampled_from(
    [Discrete(2**40), Discrete(2**62), MultiDiscrete([2, 2**40]), MultiDiscrete([2**62, 2**62])]
)
multi_discretes = st.builds(
    lambda nvec, dtype: MultiDiscrete(nvec, dtype=dtype),
    st.sampled_from([[1], [2, 3], [4, 1, 2], [[2, 3], [1, 2]], [[2], [3]]]),
    whole_types,
) | st.builds(lambda: MultiDiscrete([2, 3], start=[-4, 7]))
multi_binaries = st.sampled_from([1, 3, [2, 2], [1, 2, 1]]).map(MultiBinary)
texts = st.builds(Text, st.integers(1, 5))
basic = st.one_of(
    boxes(), boxes(), boxes(), discretes, multi_discretes, multi_binaries, st.one_of(discretes, texts, huge)
)
spaces = st.recursive(
    basic,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(Tuple),
        st.dictionaries(st.sampled_from(["a", "b", "a.0", "obs", "action"]), inner, max_size=3).map(Dict),
    ),
    max_leaves=5,
)
action_spaces = st.one_of(
    discretes, discretes, multi_discretes, multi_binaries, boxes(), boxes(), texts, huge, spaces
)


def sample(space, rng):
    """Return an observation in its space, also of bounds of which Gymnasium draws none."""
    match space:
        case Dict():
            return {key: sample(part, rng) for key, part in space.spaces.items()}
        case Tuple():
            return tuple(sample(part, rng) for part in space.spaces)
        case Box():
            near = np.clip(
                rng.integers(-5, 300, space.shape),
                *(np.asarray(x, np.float64) for x in (space.low, space.high)),
            )
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inner = np.clip(near.astype(space.dtype), space.low, space.high)
            pick = rng.integers(3, size=space.shape)
            found = np.where(pick == 0, space.low, np.where(pick == 1, space.high, inner)).astype(space.dtype)
            return np.where(np.isfinite(found), found, 0).astype(space.dtype)
        case Text():
            return "ab"[: space.max_length]
    return space.sample()


def otherwise_said(space, obs, rng):
    """Return an observation in another form that says the same."""
    match space:
        case Dict():
            parts = {key: otherwise_said(part, obs[key], rng) for key, part in space.spaces.items()}
            return MappingProxyType(parts) if rng.random() < 0.3 else parts
        case Tuple():
            parts = [otherwise_said(part, x, rng) for part, x in zip(space.spaces, obs, strict=True)]
            return parts if rng.random() < 0.5 else tuple(parts)
        case Text():
            return obs
    form = rng.integers(6)
    if form == 0 and np.size(obs):
        return obs.tolist()
    if form == 1 and not isinstance(space, Discrete):
        return np.asarray(obs, np.asarray(obs).dtype.newbyteorder())
    if form == 2 and not isinstance(space, Discrete) and np.asarray(obs).dtype.kind == "f":
        return np.asarray(obs, np.float64)
    if form == 3 and isinstance(space, Discrete):
        return int(obs)
    return obs


ODD = [
    None, "left", "", b"1", 1j, math.nan, math.inf, -7, 2.5, 2**70, 10**400, [], [[1], [1, 2]], {}, {"a": None},
    (), object(),
    np.array(None), np.array("1.5"), np.array([1.5, 2.5]), np.array([1 + 2j]), np.zeros((1, 1, 1, 1)), [None],
    ["1", "2"],
    np.ma.masked_array([1.0, 2.0], [True, False]), np.datetime64(1, "s"), np.timedelta64(1, "s"),
    np.array([2**63 + 1], np.uint64),
    np.array([1e300, -1e300]), np.array([2**53 + 1]), np.array([2**24 + 1, 0]), range(2), iter([1]),
    np.float64(0.5), True,
]  # fmt: skip


def broken(obs, rng):
    """Return an observation of which one part is something else."""
    if isinstance(obs, (dict, MappingProxyType)) and obs and rng.random() < 0.8:
        key = list(obs)[rng.integers(len(obs))]
        kind = rng.integers(3)
        if kind == 0:
            return {name: x for name, x in obs.items() if name != key}
        return {**obs, "more": 1} if kind == 1 else {**obs, key: broken(obs[key], rng)}
    if isinstance(obs, (tuple, list)) and len(obs) and rng.random() < 0.8:
        k = rng.integers(len(obs))
        return type(obs)(broken(x, rng) if i == k else x for i, x in enumerate(obs))
    if isinstance(obs, np.ndarray) and rng.random() < 0.6:
        way = rng.integers(5)
        if way == 0:
            return obs[None]
        if way == 1:
            return obs.astype(object)
        if way == 2:
            return obs.astype(complex)
        if way == 3 and obs.size:
            with np.errstate(all="ignore"):
                return obs + np.float64(rng.choice([0.5, 1e39, 1e300, 2**24 + 1, -300, math.nan]))
        return np.ma.masked_array(obs, np.ones(obs.shape, bool))
    return ODD[rng.integers(len(ODD))]


FLAGS = [
    (False, False), (True, True), (np.bool_(True), True), (np.bool_(False), False), (0, False), (1, True),
    (np.array(True), True), (np.array([False]), False), (np.int64(1), True), (1.0, True), (np.float32(0), False),
]  # fmt: skip
NO_FLAGS = [
    [False], [], (False,), "False", "", None, {}, {"a": 1}, 0.5, 2, -1, math.nan, np.array([True, False]),
    np.array([]), 1j,
    np.array("x"), np.array(None), np.float64(0.5), object(), np.ma.masked_array([True], [True]),
    np.timedelta64(0, "s"),
]  # fmt: skip
REWARDS = [
    (1.5, 1.5), (0, 0.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(-3), -3.0), (np.array(2.0), 2.0),
    (np.array([2.0]), 2.0),
    (np.array([[7]]), 7.0), (np.bool_(True), 1.0), (np.float64(1e300), 1e300),
]  # fmt: skip
NO_REWARDS = [
    "1.5", b"1", None, 1j, [], [1.0], {}, np.array([1.0, 2.0]), np.array([]), np.array("1.5"),
    np.array(["1.5"]), 10**400,
    np.str_("1.5"), np.complex64(1), object(), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.array(None),
    np.ma.masked_array([1.0], [True]), np.array([1.0], object),
]  # fmt: skip
INFOS = [({}, True), ({"a": 1}, True), (None, True), (MappingProxyType({}), True), ({1: object()}, True)]
NO_INFOS = [[], "info", 3, (), np.zeros(2)]


def some_of(good, bad, faulty, draw):
    at = [draw(st.sampled_from(good)) for _ in range(NUM_STEPS + 1)]
    if faulty:
        at[draw(st.integers(0, NUM_STEPS))] = (draw(st.sampled_from(bad)), REFUSED)
    return at


@st.composite
def plans(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    observation_space, action_space = draw(spaces), draw(action_spaces)
    if draw(st.integers(0, 9)) == 0:
        observation_space, action_space = draw(texts), draw(texts)
    fault = draw(st.sampled_from([None, None, None, "obs", "obs", "reward", "flag", "info", "mask"]))
    observation_space.seed(int(rng.integers(2**31)))
    observations = [
        otherwise_said(observation_space, sample(observation_space, rng), rng) for _ in range(NUM_STEPS + 1)
    ]
    if fault == "obs":
        k = draw(st.integers(0, NUM_STEPS))
        observations[k] = broken(observations[k], rng)
    masks, sizes = None, None
    if isinstance(action_space, Discrete):
        sizes = [int(action_space.n)]
    elif isinstance(action_space, MultiDiscrete) and action_space.nvec.ndim == 1:
        sizes = action_space.nvec.tolist()
    if sizes is not None and sum(sizes) < 2**20 and draw(st.booleans()):
        parts = [
            [(rng.random(n) < 0.5) | (np.arange(n) == rng.integers(n)) for n in sizes]
            for _ in range(NUM_STEPS + 1)
        ]
        form = draw(st.sampled_from(["flat", "int8", "float", "list", "parts", "tuple"]))
        as_form = {
            "flat": np.concatenate, "int8": lambda x: np.concatenate(x).astype(np.int8),
            "float": lambda x: np.concatenate(x).astype(float), "list": lambda x: np.concatenate(x).tolist(),
            "parts": list, "tuple": lambda x: tuple(part.astype(np.int8) for part in x),
        }[form]  # fmt: skip
        masks = [as_form(x) for x in parts]
        if fault == "mask":
            odd = [
                np.zeros(sum(sizes) + 1),
                "mask",
                [0.5] * sum(sizes),
                None,
                {},
                np.array([2] * sum(sizes)),
                1j,
                [[1], [1, 1]],
            ]
            masks[draw(st.integers(0, NUM_STEPS))] = draw(st.sampled_from(odd))
    return Plan(
        observation_space, action_space, observations,
        some_of(REWARDS, NO_REWARDS, fault == "reward", draw),
        some_of(FLAGS, NO_FLAGS, fault == "flag", draw),
        some_of(INFOS, NO_INFOS, fault == "info", draw),
        masks, draw(st.sampled_from(["info", "method"])), fault is not None, int(rng.integers(2**31)),
    )  # fmt: skip


# -- the oracle -----------------------------------------------------------------------------------------------------


def numbers_in(value):
    """Return the shape of what a task returned for one space, and its numbers as Python has them."""
    if isinstance(value, np.ma.MaskedArray):
        assert not np.ma.getmaskarray(value).any(), "masked entries were taken"
    shape = np.shape(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    flat, wait = [], [plain]
    while wait:
        x = wait.pop()
        if isinstance(x, (list, tuple, range)):
            wait.extend(reversed(x))
        else:
            assert isinstance(x, (bool, int, float)), f"{x!r} was taken for a number"
            flat.append(x)
    return shape, flat


def is_same(x, y, dtype):
    """Whether an array's number x is y as its dtype holds it: exact for whole numbers, else rounded."""
    if isinstance(y, float) and math.isnan(y):
        return math.isnan(x)
    if isinstance(y, int):
        return int(x) == y
    return x == float(np.asarray(y, dtype)) or (math.isinf(y) and x == y)


def assert_same(space, obs, arrays, path=()):
    match space:
        case Dict():
            for key, part in space.spaces.items():
                assert_same(part, obs[key], arrays, (*path, key))
            return
        case Tuple():
            assert len(obs) == len(space.spaces)
            for k, part in enumerate(space.spaces):
                assert_same(part, obs[k], arrays, (*path, k))
            return
    array = arrays[".".join(map(str, path))] if isinstance(arrays, dict) else arrays
    shape, numbers = numbers_in(obs)
    if isinstance(space, Discrete):
        (number,) = numbers
        assert array.sum() == 1 == array[int(number) - int(space.start)]
        assert array.shape == (space.n,)
    elif isinstance(space, MultiDiscrete):
        assert shape == space.shape
        one_hot = []
        for number, n, start in zip(numbers, space.nvec.flat, space.start.flat, strict=True):
            one_hot += [float(start + k == number) for k in range(int(n))]
        assert array.tolist() == one_hot
        assert sum(one_hot) == len(numbers)
    else:
        assert shape == space.shape == array.shape
        assert all(map(lambda x, y: is_same(x, y, array.dtype), array.reshape(-1).tolist(), numbers)), (
            obs,
            array,
        )


# -- the test -------------------------------------------------------------------------------------------------------


def actions_of(spec, rng, masks):
    match spec.action.kind:
        case "multi_binary":
            return rng.integers(0, 2, (2, *spec.action.shape))
        case "box":
            return (rng.standard_normal((2, *spec.action.shape)) * rng.choice([0.1, 1, 300, 1e30])).astype(
                np.float32
            )
    actions = []
    for row in range(2):
        start, chosen = 0, []
        for n in spec.action.sizes:
            allowed = np.arange(n) if masks is None else np.flatnonzero(masks[row, start : start + n])
            chosen.append(rng.choice(allowed) if allowed.size else 0)
            start += n
        actions.append(chosen if spec.action.kind == "multi_discrete" else chosen[0])
    return np.array(actions)


def check_step(plan, spec, at, obs, mask, i):
    arrays = {key: x[i] for key, x in obs.items()} if isinstance(obs, dict) else obs[i]
    for leaf, x in zip(leaves(spec.obs), leaves(arrays), strict=True):
        assert (x.shape, x.dtype.name) == (leaf.shape, leaf.dtype)
    assert_same(plan.observation_space, plan.observations[at], arrays)
    if mask is not None:
        is_told = plan.masks is not None and (plan.mask_by == "method" or plan.infos[at][0] is not None)
        said = plan.masks[at] if is_told else None
        expected = True if said is None else np.concatenate([np.ravel(part) for part in said]).astype(bool)
        assert (mask[i] == expected).all()


def play(plan):
    """Step the task as a batch of two, and compare; raises what the batch raises."""
    AnyTask.plan = plan
    rng = np.random.default_rng(plan.batch_seed)
    env = EnvConfig(id="any/Task-v0", backend="sync")
    spec = probe(env)
    if spec.is_text:
        return play_text(plan, env)
    envs = make_vec_env(env, range(2), rank=0, cores=1)
    try:
        obs, mask = envs.reset([1, 2])
        assert (mask is not None) == (spec.mask_size is not None)
        at = 0
        check_step(plan, spec, at, obs, mask, 0)
        for _ in range(2 * NUM_STEPS):
            step = envs.step(actions_of(spec, rng, mask))
            at = at % NUM_STEPS + 1
            mask = step.action_mask
            (_, reward), (_, flag) = plan.rewards[at], plan.flags[at]
            assert reward is not REFUSED
            assert flag is not REFUSED
            assert plan.infos[at][1] is not REFUSED
            for i in range(2):
                assert step.rewards[i] == reward or (math.isnan(reward) and math.isnan(step.rewards[i]))
                assert (bool(step.terminated[i]), bool(step.truncated[i])) == (flag, False)
            if flag:
                final = (
                    {k: x[1] for k, x in step.final_obs.items()}
                    if isinstance(step.final_obs, dict)
                    else step.final_obs[1]
                )
                assert_same(plan.observation_space, plan.observations[at], final)
                at = 0
            check_step(plan, spec, at, step.obs, mask, 1)
    finally:
        envs.close()
    return None


def play_text(plan, env):
    task = make_single_env(env, probe(env), EnvNames(range(1), 0)(0))
    assert task.reset(seed=1)[0] == plan.observations[0]
    for at in range(1, NUM_STEPS + 1):
        obs, found, terminated, truncated, _ = task.step("a")
        (_, reward), (_, flag) = plan.rewards[at], plan.flags[at]
        assert type(obs) is str
        assert obs == plan.observations[at]
        assert found == reward or math.isnan(reward)
        assert (terminated, truncated) == (flag, False)
    task.close()


OF_SPACES = "is not supported|two parts of the observations|becomes a vector of|choices, and a policy"


def check(plan, play=play):
    """Play, and return what the task was refused for, None where it was stepped to the end."""
    try:
        play(plan)
        error = None
    except (ConfigError, EnvError) as e:
        error = e
    if error is None:
        return None
    said = error.said if isinstance(error, EnvRaised) else str(error)
    assert "\n" not in said
    assert len(said) < 1200, said
    assert not isinstance(error, EnvRaised), f"a foreign exception: {error}"
    assert "cannot be made and started" not in said, f"a foreign exception: {said}"
    assert re.search("any/(Task|Batch)-v0|environments 0 to 1 of rank 0", said), said
    is_of_spaces = isinstance(error, ConfigError) and re.search(OF_SPACES, said)
    is_too_exact = re.search(r"number (\d+).* float64 cannot hold", said)
    if is_too_exact:
        assert int(float(is_too_exact[1])) != int(is_too_exact[1])
    assert plan.is_faulty or is_of_spaces or is_too_exact, f"a good task was refused: {said}"
    return said


# -- the same of batches of their own -------------------------------------------------------------------------------


class AnyBatch(gym.vector.VectorEnv):
    """Two environments in batch that do what the plan says, but that flags and rewards are of both."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium declares it so)
    plan: Plan

    def __init__(self, num_envs):
        self.num_envs, self.at = num_envs, 0
        self.single_observation_space, self.single_action_space = (
            self.plan.observation_space,
            self.plan.action_space,
        )
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.plan.observations[0], self.plan.infos[0][0]

    def step(self, actions):
        self.at = self.at % NUM_STEPS + 1
        of_all = [
            self.plan.observations,
            *([x for x, _ in told] for told in (self.plan.rewards, self.plan.flags)),
        ]
        obs, rewards, flags = (told[self.at] for told in of_all)
        return obs, rewards, flags, np.zeros(2, bool), self.plan.infos[self.at][0]


gym.register("any/Batch-v0", entry_point=AnyTask, vector_entry_point=AnyBatch)


def stacked(space, observations):
    match space:
        case Dict():
            return {key: stacked(part, [x[key] for x in observations]) for key, part in space.spaces.items()}
        case Tuple():
            return tuple(stacked(part, [x[k] for x in observations]) for k, part in enumerate(space.spaces))
    return np.stack(observations)


def of_env(space, obs, i):
    match space:
        case Dict():
            return {key: of_env(part, obs[key], i) for key, part in space.spaces.items()}
        case Tuple():
            return tuple(of_env(part, obs[k], i) for k, part in enumerate(space.spaces))
    return obs[i]


BATCH_FLAGS = [
    (np.array([False, False]), [False, False]), (np.array([0, 1]), [False, True]), ([True, False], [True, False]),
    (np.array([1.0, 1.0]), [True, True]),
]  # fmt: skip
NO_BATCH_FLAGS = [
    None, False, [[True], [False]], np.array(["", "a"]), np.array([0, 2]), [None, None], np.zeros(3, bool), {}, "ab",
]  # fmt: skip
BATCH_REWARDS = [
    (np.zeros(2), [0.0, 0.0]), ([1, 2], [1.0, 2.0]), (np.float32([0.5, 1]), [0.5, 1.0]), (np.array([True,
    False]), [1, 0]),
]  # fmt: skip
NO_BATCH_REWARDS = [
    None, 1.0, ["1", "2"], np.array([1j, 0]), np.zeros((2, 1)), [None, 1.0], np.zeros(3), {}, "12", [1.0, [2.0]],
]  # fmt: skip


@st.composite
def batch_plans(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    space = draw(
        st.recursive(
            boxes(),
            lambda inner: (
                st.lists(inner, max_size=3).map(Tuple)
                | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(Dict)
            ),
            max_leaves=4,
        )
    )
    fault = draw(st.sampled_from([None, None, "obs", "reward", "flag", "info"]))
    observations = [stacked(space, [sample(space, rng) for _ in range(2)]) for _ in range(NUM_STEPS + 1)]
    if fault == "obs":
        k = draw(st.integers(1, NUM_STEPS))
        observations[k] = broken(observations[k], rng)
    infos = [({}, True), *some_of([({}, True)], NO_INFOS, fault == "info", draw)[1:]]
    return Plan(
        space, draw(discretes), observations,
        some_of(BATCH_REWARDS, NO_BATCH_REWARDS, fault == "reward", draw),
        some_of(BATCH_FLAGS, NO_BATCH_FLAGS, fault == "flag", draw),
        infos, None, "info", fault is not None, int(rng.integers(2**31)),
    )  # fmt: skip


def play_batch(plan):
    AnyBatch.plan = plan
    env = EnvConfig(id="any/Batch-v0", backend="gym_vector")
    spec = probe(env)
    envs = make_vec_env(env, range(2), rank=0, cores=1)
    obs, _ = envs.reset([1, 2])
    just_ended = np.zeros(2, bool)
    for at in (0, *range(1, NUM_STEPS + 1)):
        if at:
            step = envs.step(actions_of(spec, np.random.default_rng(0), None))
            (_, rewards), (_, flags) = plan.rewards[at], plan.flags[at]
            assert REFUSED not in (rewards, flags, plan.infos[at][1])
            assert step.rewards.tolist() == [
                0.0 if end else x for x, end in zip(rewards, just_ended, strict=True)
            ]
            assert (step.valid == ~just_ended).all()
            just_ended = np.array(flags) & ~just_ended
            assert (step.terminated == just_ended).all()
            obs = step.obs
        for i in range(2):
            given = of_env(plan.observation_space, plan.observations[at], i)
            assert_same(
                plan.observation_space,
                given,
                {k: x[i] for k, x in obs.items()} if isinstance(obs, dict) else obs[i],
            )


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("DDPPO_WARNED", "")  # the marks of remarks are many here, and leave with the test


IN_ONE_PROCESS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(max_examples=50, suppress_health_check=IN_ONE_PROCESS)
@given(plans())
def test_any_task_is_stepped_as_it_is_or_refused_in_a_sentence(plan):
    check(plan)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=IN_ONE_PROCESS)
@given(plans())
def test_500_tasks_are_stepped_as_they_are_or_refused_in_a_sentence(plan):
    check(plan)


@settings(max_examples=40, suppress_health_check=IN_ONE_PROCESS)
@given(batch_plans())
def test_any_batch_is_stepped_as_it_is_or_refused_in_a_sentence(plan):
    check(plan, play_batch)
