"""What tasks of a user's own return: read without a doubt, or refused in one sentence, whoever steps them."""

from collections import UserDict
from fractions import Fraction
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode

from ddppo.config.settings import EnvConfig
from ddppo.config.variants import settings_of
from ddppo.envs.encoding.gym_spaces import decode_actions, obs_spec, sample_action
from ddppo.envs.encoding.observations import RowEncoder
from ddppo.envs.make import make_eval_env, make_vec_env
from ddppo.envs.probing import probe as probing
from ddppo.envs.probing.probe import make_env
from ddppo.envs.single import make_single_env
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import ConfigError, EnvError, EnvOutputError
from ddppo.models.build import build_model
from ddppo.policies.playing import play, task_of
from ddppo.ppo.collector import Collector
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from ddppo.terminal import warn
from tests.unit.returning_tasks import PAIR, VALUES, GivenEnv

TASKS = GivenEnv.__module__


def returning(field, value, at=3, backend="sync", name="Returning", **kwargs):
    more = {"at": at} if name == "Returning" else {}
    return EnvConfig(
        id=f"{TASKS}:returns/{name}-v0",
        backend=backend,
        kwargs={"field": field, "value": value, **more, **kwargs},
    )


def probe(env):
    """Probe a task, and say on stderr what is odd about it, as the trial before training does."""
    return probing.probe(env, remark=warn)


def given(**kwargs):
    made = {
        "observation_space": Box(-1, 1, (2,), np.float32), "action_space": Discrete(2),
        "on_reset": (PAIR, {}), "on_step": (PAIR, 1.0, False, False, {}), **kwargs,
    }  # fmt: skip
    return EnvConfig(id=f"{TASKS}:returns/Given-v0", backend="sync", kwargs={"given": made})


def stepped(env, num_steps=3, num_envs=2):
    """Step a batch, and return what it answered last."""
    envs = make_vec_env(env, range(num_envs), rank=0, cores=1)
    try:
        envs.reset(range(num_envs))
        for _ in range(num_steps):
            step = envs.step(np.zeros((num_envs, *envs.spec.action.shape), np.int64))
        return step
    finally:
        envs.close()


@pytest.fixture(autouse=True)
def _nothing_was_warned_of(monkeypatch):
    monkeypatch.setenv("DDPPO_WARNED", "")


# -- ends, rewards and infos ----------------------------------------------------------------------------------------

NO_FLAGS = (
    "list",
    "empty list",
    "tuple",
    "str",
    "dict",
    "None",
    "half",
    "two",
    "number",
    "nan",
    "complex",
    "object",
    "time",
)


@pytest.mark.parametrize("field", ["terminated", "truncated"])
@pytest.mark.parametrize("value", [*NO_FLAGS, "tensor of two"])
def test_what_is_no_flag_ends_no_episode_but_the_run(field, value, monkeypatch):
    monkeypatch.setitem(VALUES, "tensor of two", torch.zeros(2))
    with pytest.raises(EnvOutputError) as caught:
        stepped(returning(field, value))
    kind = type(VALUES[value]).__name__
    said = str(caught.value)
    assert said.startswith("environment 0 of rank 0 returned ")
    assert said.endswith(f"as {field} in step 3, it must be True or False (task returns/Returning-v0)")
    assert value == "None" or f"of type {kind}" in said
    if value == "list":
        assert "returned [False] of type list as" in said


@pytest.mark.parametrize(
    ("flag", "read"),
    [
        (True, True), (False, False), (np.True_, True), (np.False_, False), (0, False), (1, True), (np.int8(1), True),
        (np.array(False), False), (np.array([True]), True), (np.array([[0]]), False), (1.0, True),
        (torch.tensor(True), True),
        (torch.tensor([0]), False),
    ],
)  # fmt: skip
def test_flags_of_every_plain_kind_are_read(flag, read, monkeypatch):
    monkeypatch.setitem(VALUES, "flag", flag)
    step = stepped(returning("terminated", "flag"))
    assert (step.terminated.dtype, step.terminated.tolist()) == (bool, [read, read])
    assert step.ended.tolist() == ([0, 1] if read else [])


NO_REWARDS = ("text number", "str", "bytes", "None", "complex", "rewards", "reward list", "text array", "huge",
"masked", "object",
              "time", "dict")  # fmt: skip


@pytest.mark.parametrize("value", NO_REWARDS)
def test_what_is_no_number_is_no_reward(value):
    with pytest.raises(EnvOutputError) as caught:
        stepped(returning("reward", value))
    said = str(caught.value)
    assert said.startswith("environment 0 of rank 0 returned ")
    assert said.endswith("as the reward in step 3, it must be one number (task returns/Returning-v0)")


@pytest.mark.parametrize(
    ("reward", "read"),
    [
        (1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(-2), -2.0), (np.array(2.0), 2.0),
        (np.array([3]), 3.0),
        (np.array([[4.0]]), 4.0), (torch.tensor(0.25), 0.25), (torch.tensor([5]), 5.0), (Fraction(1, 4), 0.25),
        (np.bool_(True), 1.0), (np.longdouble(0.5), 0.5), (torch.tensor(1.5, requires_grad=True), 1.5),
    ],
)  # fmt: skip
def test_rewards_of_every_plain_kind_are_read(reward, read, monkeypatch):
    monkeypatch.setitem(VALUES, "reward", reward)
    assert stepped(returning("reward", "reward")).rewards.tolist() == [read, read]


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_an_info_may_be_none_or_any_mapping_but_nothing_else(backend):
    assert stepped(returning("info", "None", backend=backend)).rewards.tolist() == [1.0, 1.0]
    with pytest.raises(
        EnvOutputError, match=r"returned \[False\] of type list as info in step 3, it must be a dict"
    ):
        stepped(returning("info", "list", backend=backend))


def test_an_info_of_none_at_the_door_is_one_warning(capfd):
    probe(returning("info", "None", at=0))
    assert capfd.readouterr().err == (
        "warning: env.id=returns/Returning-v0: it returned None as info in its first reset: it is taken as {}\n"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("terminated", "list"), ("truncated", "str"), ("reward", "text number"), ("info", "tuple")],
)
def test_at_the_door_the_sentence_names_the_task_and_the_step(field, value):
    with pytest.raises(ConfigError) as caught:
        probe(returning(field, value, at=1))
    said = str(caught.value)
    assert said.startswith(f"env.id={TASKS}:returns/Returning-v0 cannot be trained on: it returned ")
    assert (
        f"of type {type(VALUES[value]).__name__} as {'the ' * (field == 'reward')}{field} in step 1, it must be"
        in said
    )


@pytest.mark.parametrize(("field", "value"), [("terminated", "list"), ("reward", "text number")])
def test_pools_evaluation_and_videos_say_the_same(field, value):
    env = returning(field, value)
    with pytest.raises(EnvOutputError, match=r"environment 0 of rank 0 returned .* in step 3, it must be"):
        stepped(returning(field, value, backend="pool"))
    envs = make_eval_env(env, 1)
    envs.reset([0])
    one = make_env(env)
    one.reset(seed=0)
    for _ in range(2):
        envs.step(np.zeros(1, np.int64))
        one.step(0)
    with pytest.raises(EnvOutputError, match=r"evaluation environment 0 returned .* in step 3, it must be"):
        envs.step(np.zeros(1, np.int64))
    with pytest.raises(EnvOutputError, match=r"the environment returned .* in step 3, it must be"):
        one.step(0)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("terminated", "list", r"\[False\] of type list as terminated in step 2, it must be True or False"),
        ("reward", "text number", "'1.5' of type str as the reward in step 2, it must be one number"),
        ("info", "list", r"\[False\] of type list as info in step 2, it must be a dict"),
        ("observation", "number", "2 of type int as an observation in step 2, its space says Text, a str"),
    ],
)
def test_a_task_of_text_says_the_same(field, value, said):
    env = returning(field, value, name="Text")
    task = make_single_env(env, probe(env), EnvNames(range(1), 0)(0))
    task.reset(seed=1)
    task.step("a")
    with pytest.raises(
        EnvOutputError, match=f"environment 0 of rank 0 returned {said}.*task returns/Text-v0"
    ):
        task.step("a")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("terminated", "lists", r"terminated of shape \(2, 1\) in step 2, there are 2 environments"),
        ("terminated", "texts", "terminated of type ndarray and dtype <U5 in step 2, which must be numbers"),
        ("truncated", "twos", "as truncated in step 2, they must be True or False"),
        ("truncated", "one", r"truncated of shape \(\) in step 2"),
        ("terminated", "None", r"terminated of type NoneType \(None\) in step 2, which must be numbers"),
        ("reward", "text rewards", "rewards of type ndarray and dtype <U3 in step 2, which must be numbers"),
        ("reward", "complex", "rewards of type ndarray and dtype complex128 in step 2"),
        ("info", "lists", "as info in step 2, it must be a dict"),
        ("observation", "text obs", "observations of type ndarray and dtype <U1 in step 2"),
        (
            "observation",
            "huge",
            r"an observation with the number 1e\+300 in step 2, which float32 cannot hold",
        ),
    ],
)
def test_a_batch_of_its_own_says_the_same_of_all(field, value, said):
    with pytest.raises(EnvOutputError, match=f"environments 0 to 1 of rank 0 returned .*{said}"):
        stepped(returning(field, value, backend="gym_vector", name="Batch"))


def test_a_batch_of_its_own_may_return_whole_numbers_as_flags_and_rewards():
    step = stepped(returning("terminated", "ones", backend="gym_vector", name="Batch"), num_steps=2)
    assert (step.terminated.dtype, step.terminated.tolist()) == (bool, [True, False])
    step = stepped(returning("reward", "whole rewards", backend="gym_vector", name="Batch"), num_steps=2)
    assert (step.rewards.dtype, step.rewards.tolist()) == (float, [1.0, 2.0])


def test_a_batch_of_its_own_keeps_to_whole_numbers():
    with pytest.raises(EnvOutputError, match=r"number 0.5 in step 2, its space says whole numbers"):
        stepped(returning("observation", "halves", backend="gym_vector", name="Batch", space="whole"))


# -- tasks of the old Gym -------------------------------------------------------------------------------------------

OLD = {
    "a bare observation": ({"on_reset": PAIR},
    r"returned a value of type ndarray and shape \(2,\) from reset\(\) in its first"),
    "an observation that is a pair": (
        {"on_reset": (PAIR, PAIR)},
        r"a pair with a value of type ndarray and shape \(2,\) as info from reset\(\)",
    ),
    "a bare observation in a list": ({"on_reset": [0.5, -0.5]},
    r"a pair with -0.5 of type float as info from reset\(\)"),
    "nothing": ({"on_reset": None}, r"returned None from reset\(\)"),
    "three values": ({"on_reset": (PAIR, {}, 1)}, r"returned 3 values from reset\(\)"),
    "four values": ({"on_step": (PAIR, 1.0, False, {})},
    r"returned 4 values from step\(\) in step 1.*done of an old Gym task"),
    "no values": ({"on_step": None}, r"returned None from step\(\) in step 1"),
    "six values": ({"on_step": (PAIR, 1.0, False, False, {}, 1)}, r"returned 6 values from step\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("how", OLD)
def test_an_answer_of_another_form_is_told_with_the_form_that_it_must_have(how):
    changes, said = OLD[how]
    with pytest.raises(ConfigError, match=said) as caught:
        probe(given(**changes))
    assert "it must return (observation, " in str(caught.value)
    if "step" not in str(changes) or how == "four values":
        assert "GymV21Environment-v0" in str(caught.value)


def test_a_time_limit_and_other_wrappers_hide_no_old_task():
    for changes, said in (
        ({"on_step": (PAIR, 1.0, False, {})}, r"returned 4 values from step\(\) in step 1, it must return"),
        ({"on_step": None}, r"returned a NoneType from step\(\) in step 1, it must return"),
    ):
        env = given(**changes)
        with pytest.raises(ConfigError, match=said):
            probe(EnvConfig(id=env.id, backend="sync", max_episode_steps=5, kwargs=env.kwargs))
    for changes, said in (
        ({"on_reset": PAIR}, r"returned .* from reset\(\) in its first reset"),
        (
            {"observation_space": SPACE, "on_reset": ([1], {})},
            r"\[1\] of type list as an observation in its first reset",
        ),
    ):
        env = given(**changes)
        with pytest.raises(ConfigError, match=said):
            probe(EnvConfig(id=env.id, backend="sync", context=2, kwargs=env.kwargs))


def test_an_old_answer_in_a_later_step_is_told_too(monkeypatch):
    class Turning(GivenEnv):
        num_steps = 0

        def step(self, action):
            self.num_steps += 1
            return self.on_step if self.num_steps < 3 else self.on_step[:4]

    monkeypatch.setattr(gym.registry["returns/Given-v0"], "entry_point", Turning)
    with pytest.raises(
        EnvOutputError, match=r"environment 0 of rank 0 returned 4 values from step\(\) in step 3, it must"
    ):
        stepped(given())


def test_a_reset_that_takes_no_seed_is_told_how_it_is_written(monkeypatch):
    class Old(GivenEnv):
        def reset(self):
            return PAIR

    monkeypatch.setattr(gym.registry["returns/Given-v0"], "entry_point", Old)
    with pytest.raises(
        ConfigError, match=r"it raised TypeError in its first reset, its reset\(\) takes no seed: write def"
    ):
        probe(given())


def test_an_exception_of_the_tasks_own_about_unpacking_stays_its_own(monkeypatch):
    class Broken(GivenEnv):
        def step(self, action):
            _one, _two = self.on_step  # no call of a step

    monkeypatch.setattr(gym.registry["returns/Given-v0"], "entry_point", Broken)
    with pytest.raises(ConfigError, match="ValueError: too many values to unpack"):
        probe(given())


def of_old_gym(kind):
    return type(
        kind, (), {"__module__": f"gym.spaces.{kind.lower()}", "__repr__": lambda self: f"{kind}(2)"}
    )()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            of_old_gym("Discrete"),
            "is a Discrete of the old package gym: write `from gymnasium import spaces`",
        ),
        (of_old_gym("Box"), "is a Box of the old package gym"),
        (None, "is None: set it to a space of gymnasium.spaces in __init__"),
        (Discrete, r"is the class Discrete, not a space: write Discrete\(\.\.\.\)"),
        ({"a": Discrete(2)}, "is a dict: make it gymnasium.spaces.Dict"),
        ((Discrete(2), Discrete(3)), "is a tuple: make it gymnasium.spaces.Tuple"),
        (4, "is 4 of type int: set it to a space"),
    ],
)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_what_is_no_space_of_gymnasium_is_told_so(which, space, said):
    with pytest.raises(ConfigError, match=f"its {which} {said}"):
        probe(given(**{which: space}))


@pytest.mark.parametrize("outer", [lambda x: Dict(a=x), lambda x: Tuple([x])])
def test_a_space_of_the_old_gym_inside_another_is_told_so(outer, monkeypatch):
    def make(given):
        return outer(of_old_gym("Discrete"))

    monkeypatch.setattr(gym.registry["returns/Given-v0"], "entry_point", make)
    with pytest.raises(
        ConfigError, match=r"Discrete.*: write `from gymnasium import spaces` for all of them"
    ):
        probe(given())


@pytest.mark.parametrize("is_gyms", [True, False])
def test_what_is_no_environment_of_gymnasium_is_told_so(is_gyms, monkeypatch):
    base = type("Env", (), {"__module__": "gym.core"}) if is_gyms else object
    made = type("Mine", (base,), {"__init__": lambda self, given: None})
    monkeypatch.setattr(gym.registry["returns/Given-v0"], "entry_point", made)
    said = (
        "its class is an Env of the old package gym"
        if is_gyms
        else "no gymnasium.Env: derive its class from gymnasium.Env"
    )
    with pytest.raises(ConfigError, match=f"{said}.*GymV21Environment-v0"):
        probe(given())


# -- observations ---------------------------------------------------------------------------------------------------

WHOLE, FLOAT, BITS = Box(0, 100, (2,), np.int64), Box(-9, 9, (2,), np.float32), MultiBinary(2)
LARGE = Box(0, 2**40, (2,), np.int64)
SPACE = Dict(a=FLOAT, b=Discrete(3))
NO_OBSERVATIONS = {
    "a row of a batch": (FLOAT, PAIR[None], r"of shape \(1, 2\) .*, its space says \(2,\)"),
    "a number for a vector": (FLOAT, 0.5, r"of shape \(\)"),
    "a vector for a number": (Box(-1, 1, (), np.float32), PAIR[:1], r"of shape \(1,\) .*, its space says \(\)"),
    "text": (FLOAT, ["1", "2"], "of type list .*, its space says numbers of shape"),
    "a number as text": (Box(-1, 1, (), np.float32), "0.5", r"of type str \('0.5'\)"),
    "nothing": (FLOAT, None, r"of type NoneType \(None\)"),
    "nothing inside": (FLOAT, [0.5, None], "of type list"),
    "ragged": (FLOAT, [[0.5], [0.5, 1.0]], "of type list .*: setting an array element with a sequence"),
    "complex": (FLOAT, PAIR + 1j, "of type ndarray and dtype complex"),
    "objects": (FLOAT, PAIR.astype(object), "of type ndarray and dtype object"),
    "dates": (FLOAT, np.zeros(2, "M8[s]"), "dtype datetime64"),
    "masked": (FLOAT, np.ma.masked_array(PAIR, [True, False]), "with masked entries"),
    "a tensor that needs a gradient": (FLOAT, torch.tensor(PAIR, requires_grad=True),
    "of type Tensor .* requires grad"),
    "a generator": (FLOAT, iter(PAIR), "of type .*iterator"),
    "a dict for a vector": (FLOAT, {"a": 1}, "of type dict"),
    "too large for its type": (FLOAT, np.array([0.0, 1e300]),
    r"with the number 1e\+300 .*, which float32 cannot hold"),
    "halves of whole numbers": (WHOLE, np.array([1.0, 2.5]), "with the number 2.5 .*, its space says whole numbers"),
    "halves of their own type": (WHOLE, np.float32([1.0, 2.5]),
    "with the number 2.5 .*, its space says whole numbers"),
    "half a bit": (BITS, np.array([1.0, 0.5]), "with the number 0.5 .*, its space says whole numbers"),
    "whole numbers no float32 holds": (FLOAT, np.array([1, 2**24 + 1]), "16777217 .*, which float32 cannot hold"),
    "beyond the bounds no float32 holds": (WHOLE, np.array([1, 2**24 + 1]), "16777217 .*, which float32 cannot hold"),
    "whole numbers no float64 holds": (LARGE, np.array([1, 2**53 + 1]),
    "9007199254740993 .*, which float64 cannot hold"),
    "half a choice": (Discrete(3), 0.5, r"of type float \(0.5\) .*, its space says Discrete\(3\)"),
    "a choice as text": (Discrete(3), "1", r"of type str \('1'\)"),
    "a choice that is none": (Discrete(3), 3, "3 as an observation"),
    "two choices": (Discrete(3), np.array([0, 1]), "of type ndarray"),
    "parts of choices": (MultiDiscrete([2, 3]), np.array([0.0, 1.7]), "with the number 1.7"),
    "choices that are none": (MultiDiscrete([2, 3]), np.array([0, 3]), r"\[0 3\] as an observation"),
    "choices beyond all": (MultiDiscrete([2, 3]), np.array([0, 2**63 + 1], np.uint64), "as an observation"),
    "choices that are no numbers": (MultiDiscrete([2, 3]), np.array([0, np.nan]), "with the number nan"),
    "a key that is missing": (SPACE, {"a": PAIR},
    r"with keys \['a'\] .*, its space says a dict with keys \['a', 'b'\]"),
    "a mapping that lacks one": (SPACE, UserDict(b=1), r"with keys \['b'\]"),
    "a list for a dict": (SPACE, [PAIR, 1], "of type list .*, its space says a dict with keys"),
    "inside a dict": (SPACE, {"a": PAIR[None], "b": 1}, r"observation\['a'\] of shape \(1, 2\)"),
    "one number for a tuple": (Tuple([FLOAT, FLOAT]), np.array(1.0),
    "of type ndarray and dtype float64 .*a tuple of 2 parts"),
    "a tuple too short": (Tuple([FLOAT, FLOAT]), (PAIR,), "of 1 parts .*, its space says a tuple of 2 parts"),
}  # fmt: skip


@pytest.mark.parametrize("how", NO_OBSERVATIONS)
def test_an_observation_that_its_space_does_not_describe_is_refused(how):
    space, obs, said = NO_OBSERVATIONS[how]
    with pytest.raises(ConfigError, match=f"cannot be trained on: it returned .*{said}") as caught:
        probe(given(observation_space=space, on_reset=(obs, {})))
    assert "in its first reset, " in str(caught.value)
    good = {"a": PAIR, "b": 1} if isinstance(space, Dict) else space.sample()
    with pytest.raises(ConfigError, match=f"it returned .*{said}") as caught:
        probe(given(observation_space=space, on_reset=(good, {}), on_step=(obs, 1.0, False, False, {})))
    assert "in step 1, " in str(caught.value)


OBSERVATIONS = {
    "a list": (FLOAT, [0.5, -0.5], PAIR),
    "a tuple": (FLOAT, (0.5, -0.5), PAIR),
    "float64": (FLOAT, np.array([0.1, -0.5]), np.float32([0.1, -0.5])),
    "float16": (FLOAT, np.float16([0.5, -0.5]), PAIR),
    "another order of bytes": (FLOAT, PAIR.astype(">f4"), PAIR),
    "whole numbers": (FLOAT, np.array([3, -4]), np.float32([3, -4])),
    "a tensor": (FLOAT, torch.tensor(PAIR), PAIR),
    "nothing masked": (FLOAT, np.ma.masked_array(PAIR, [False, False]), PAIR),
    "a number for shape ()": (Box(-1, 1, (), np.float32), 0.5, np.float32(0.5)),
    "a view that is not contiguous": (FLOAT, np.float32([[0.5, 0], [-0.5, 0]])[:, 0], PAIR),
    "whole floats of whole numbers": (WHOLE, np.array([3.0, 4.0]), np.float32([3, 4])),
    "large powers of two": (FLOAT, np.array([2**30, -(2**40)]), np.float32([2**30, -(2**40)])),
    "whole numbers beyond float32": (LARGE, np.array([1, 2**24 + 1]), np.float64([1, 2**24 + 1])),
    "bool": (Box(0, 1, (2,), bool), np.array([True, False]), np.float32([1, 0])),
    "a mapping": (SPACE, UserDict(a=PAIR, b=2), {"a": PAIR, "b": np.float32([0, 0, 1])}),
    "a choice in an array": (Discrete(3, start=5), np.array([6]), np.float32([0, 1, 0])),
    "a choice in a tensor": (Discrete(3), torch.tensor(2), np.float32([0, 0, 1])),
    "an empty part": (Dict(a=Box(0, 1, (0, 3)), b=Discrete(2)), {"a": np.zeros((0, 3)), "b": 0},
                      {"a": np.zeros((0, 3), np.float32), "b": np.float32([1, 0])}),
}  # fmt: skip


@pytest.mark.parametrize("how", OBSERVATIONS)
def test_an_observation_in_another_form_is_taken_where_nothing_is_lost(how):
    space, obs, expected = OBSERVATIONS[how]
    step = stepped(
        given(observation_space=space, on_reset=(obs, {}), on_step=(obs, 1.0, False, False, {})), num_steps=1
    )
    found, wanted = (x if isinstance(x, dict) else {"": x} for x in (step.obs, expected))
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], np.stack([array, array]))


def test_what_a_task_changes_later_is_not_what_was_read():
    for given_obs in (
        np.zeros(2, np.float32),
        np.zeros(2),
        np.zeros(4, np.float32).view(np.ndarray)[::2],
        torch.zeros(2),
    ):
        encode = RowEncoder(FLOAT, EnvSpec(obs_spec(FLOAT), ActionSpec("discrete", (2,))))
        row = encode(given_obs, {})
        given_obs[:] = 7
        assert row.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on_reset": (np.float32([0, 1.5]), {})},
        "1.5 in an observation at [1] in its first reset, its space says -1 to 1"),
        ({"on_step": (np.float32([-3, 0]), 1.0, False, False, {})},
        "-3 in an observation at [0] in step 1, its space says"),
        (
            {"observation_space": Dict(x=BITS), "on_reset": ({"x": [2, 0]}, {}), "on_step": ({"x": [2, 0]}, 1,
            False, False, {})},
            "2 in observation['x'] at [0] in its first reset, its space says 0 to 1",
        ),
        (
            {"observation_space": Dict(x=BITS), "on_reset": ({"x": [0, 0]}, {}),
             "on_step": ({"x": [0, 0], "y": 1}, 1, False, False, {})},
            "an observation with the key 'y' in step 1, which its space does not list: it is left out",
        ),
        ({"on_reset": (PAIR, {"valid_actions": [1, 0]}), "on_step": (PAIR, 1.0, False, False,
        {"valid_actions": [1, 0]})},
         "it has 'valid_actions' in its infos, which is not taken as a mask: name it action_mask"),
    ],
)  # fmt: skip
def test_what_is_odd_and_harmless_is_one_warning(changes, said, capfd):
    env = given(**changes)
    probe(env)
    stepped(env)
    told = capfd.readouterr().err
    assert told.count("warning") == 1
    assert told.startswith("warning: env.id=returns/Given-v0: it ")
    assert said in told


def test_rounding_is_not_outside_the_bounds(capfd):
    probe(
        given(
            on_reset=(np.float32([1 + 1e-6, -1]), {}),
            on_step=(np.array([1 + 1e-9, -1]), 1.0, False, False, {}),
        )
    )
    assert capfd.readouterr().err == ""


def two_of_256_mib():
    """Made in the test that asks for it: Gymnasium fills the bounds, 640 MiB, which all tests would carry about."""
    return Tuple([Box(0, 1, (2**13, 2**13), np.float32)] * 2)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Discrete(2**40), "becomes a vector of 1099511627776 entries, one for each choice"),
        (MultiDiscrete([2**62, 2**62]), "becomes a vector of 9223372036854775808 entries"),
        (Dict(a=Discrete(2**30), b=Discrete(2)), "becomes a vector of 1073741824 entries"),
        (two_of_256_mib, "takes 512 MiB, and a rollout keeps thousands"),
        (Box(0, 1, (0,)), "is not supported"),
        (MultiDiscrete([]), "is not supported"),
    ],
)  # fmt: skip
def test_spaces_that_no_memory_holds_are_refused_before_they_are_filled(space, said):
    with pytest.raises(ConfigError, match=said):
        obs_spec(space() if callable(space) else space)


@pytest.mark.parametrize(
    "space", [Discrete(2**40), MultiDiscrete([2, 2**62]), MultiBinary(2**21), MultiDiscrete([])]
)
def test_actions_that_no_memory_holds_are_refused(space):
    with pytest.raises(
        ConfigError, match=r"choices, and a policy computes a number for each|is not supported"
    ):
        probe(given(action_space=space))


def test_whole_numbers_that_no_float32_holds_become_float64():
    found = {bound: obs_spec(Box(0, bound, (1,), np.int64)).dtype for bound in (255, 2**24, 2**24 + 1, 2**62)}
    assert found == {255: "float32", 2**24: "float32", 2**24 + 1: "float64", 2**62: "float64"}
    assert obs_spec(Box(-(2**30), 0, (1,), np.int32)) == ArraySpec((1,), "float64", 0)


# -- actions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (Discrete(5, dtype=np.uint8), [0, 4], [0, 4]),
        (Discrete(5, start=-2, dtype=np.int8), [0, 4], [-2, 2]),
        (Discrete(3, start=2**63, dtype=np.uint64), [0, 2], [2**63, 2**63 + 2]),
        (MultiDiscrete([2, 3], dtype=np.uint8), [[1, 2]], [[1, 2]]),
        (Box(-np.inf, np.inf, (1,), np.int64), [[1e30], [-1e30], [2.4]], [[2**63 - 1], [-(2**63)], [2]]),
        (Box(0, 2**64 - 1, (1,), np.uint64), [[1e30], [-1.0]], [[2**64 - 1], [0]]),
        (Box(-np.inf, np.inf, (1,), np.float16), [[1e30], [-1.0]], [[65504], [-1]]),
        (Box(0, 1, (1,), bool), [[0.7], [0.3], [-1.0]], [[True], [False], [False]]),
    ],
)
def test_actions_arrive_in_the_type_of_their_space(space, actions, expected):
    given_actions = np.array(actions, np.float32 if isinstance(space, Box) else np.int64)
    found = decode_actions(space, given_actions)
    assert found.dtype == space.dtype
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.7e308, 1.7e308, (2,), np.float64), Box(2**64 - 2, 2**64 - 1, (2,), np.uint64), Box(-2, 2, (2,),
        np.float32),
        Box(np.float32(-3.4e38), np.float32(3.4e38), (2,), np.float32), Box(-(2**63), 2**63 - 1, (2,), np.int64),
    ],
)  # fmt: skip
def test_an_action_is_drawn_in_any_bounds(space):
    for _ in range(20):
        assert space.contains(sample_action(space, None))


# -- masks ----------------------------------------------------------------------------------------------------------

MASKED = {
    "info": "Masked", "info mapping": "Masked", "obs": "Masked", "obs mapping": "Masked", "obs proxy": "Masked",
    "list": "Masked",
    "bool": "Masked", "float": "Masked", "tensor": "Masked", "method": "Masked", "wrapper": "Masker",
    "multi tuple": "Masked",
    "multi list": "Masked", "property": "Property", "multi flat": "Masked",
}  # fmt: skip


def masked(how, backend="sync", **kwargs):
    return EnvConfig(
        id=f"{TASKS}:returns/{MASKED.get(how, 'Masked')}-v0",
        backend=backend,
        kwargs={"how": how, **kwargs},
    )


def collector(env, num_steps=64):
    envs = make_vec_env(env, range(2), rank=0, cores=1)
    model = build_model(envs.spec, settings_of("model", hidden_sizes=[8]), 0, torch.float32)
    made = Collector(
        envs,
        model,
        None,
        rollout_steps=num_steps,
        first_env=0,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    made.reset([0, 1])
    return made


@pytest.mark.parametrize("how", MASKED)
def test_no_forbidden_action_is_sent_however_masks_are_handed_over(how):
    env = masked(how)
    assert probe(env).mask_size == 5
    made = collector(env)  # the task refuses a forbidden action
    rng = np.random.default_rng(0)
    made.collect(rng.random((64, 2, 2 if "multi" in how else 1)))
    made.env.close()


@pytest.mark.parametrize("how", ["method", "wrapper", "obs mapping"])
def test_masks_by_a_method_or_a_mapping_reach_pools_evaluation_and_videos(how):
    expected = [[0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0]]
    pool, evaluation, one = (
        make_vec_env(masked(how, "pool"), range(2), 0, 1),
        make_eval_env(masked(how), 1),
        make_env(masked(how)),
    )
    told = [pool.reset([0, 1])[1], evaluation.reset([0])[1], one.reset(seed=0)[1]["action_mask"]]
    for k, mask in enumerate(expected):
        for found in told:
            assert np.atleast_2d(found)[0].astype(int).tolist() == mask
        if k < 2:
            told = [
                pool.step(np.array([1, 1])).action_mask,
                evaluation.step(np.array([1])).action_mask,
                one.step(1)[4]["action_mask"],
            ]
    pool.close()


def test_a_mask_that_comes_late_ends_what_had_none():
    with pytest.raises(
        EnvError, match="environment 0 of rank 0 returned an action_mask in step 2, but none in its first"
    ):
        collector(masked("late"), num_steps=8).collect(np.full((8, 2, 1), 0.3))


def test_a_method_by_almost_the_name_is_a_warning(capfd):
    assert probe(given(valid_action_mask=lambda: np.ones(2))).mask_size is None
    assert (
        "it has a method valid_action_mask(), which is not used for masks: name it action_masks"
        in capfd.readouterr().err
    )


def test_a_method_that_is_none_or_of_a_base_class_is_no_mask():
    for method in (lambda: None, lambda: (_ for _ in ()).throw(NotImplementedError)):
        assert probe(given(action_masks=method)).mask_size is None


def test_a_method_for_actions_that_cannot_be_masked_is_a_warning(capfd):
    spec = probe(given(action_space=Box(-1, 1, (2,)), action_masks=lambda: np.ones(4)))
    assert spec.mask_size is None
    assert "its method action_masks() is not used, because its actions are box" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.zeros(2), "an action_mask in its first reset that forbids every choice"),
        (np.ones(3), "the task's action_mask has 3 entries, but its actions"),
        (
            ["yes", "no"],
            r"\['yes', 'no'\] of type list as the action_mask .*, it must hold 1 or True for an allowed choice",
        ),
        ([0.5, 1.0], r"0.5 in \[0.5, 1.0\] of type list as the action_mask"),
        (np.float32([0, -1e9]), r"-1e\+09 in a value of type ndarray and shape \(2,\) as the action_mask"),
        (np.int8([2, 0]), "2 in a value of type ndarray"),
        ({"a": 1}, r"\{'a': 1\} of type dict as the action_mask"),
        ([[1], [1, 0]], "the task's action_mask has 3 entries"),
        (None, None),
    ],
)
@pytest.mark.parametrize("where", ["info", "method"])
def test_a_mask_that_is_none_is_refused_at_the_door(where, mask, said):
    step = (PAIR, 1.0, False, False, {})
    env = given(on_reset=(PAIR, {"action_mask": mask} if where == "info" else {}), on_step=step)
    if where == "method":
        env.kwargs["given"]["action_masks"] = lambda: mask
    if said is None:
        assert probe(env).mask_size is None
        return
    with pytest.raises(ConfigError, match=said):
        probe(env)


@pytest.mark.parametrize("how", ["info", "method", "obs mapping", "multi tuple"])
def test_a_mask_that_allows_nothing_is_told_with_its_step(how):
    env = masked(how, blind_at=2)
    which = r" of component \d" if "multi" in how else ""
    said = f"returned an action_mask in step 2 that forbids every choice{which}: allow one at least"
    if "multi" not in how:
        made = collector(env, num_steps=8)
        with pytest.raises(EnvError, match=f"environment 0 of rank 0 {said}"):
            made.collect(np.full((8, 2, 1), 0.3))
    one, action = make_env(env), np.array([1, 1]) if "multi" in how else 1
    one.reset(seed=0)
    one.step(np.array([1, 1]) if "multi" in how else 1)
    if "multi" not in how:
        with pytest.raises(EnvError, match=f"the environment {said}"):
            one.step(action)


@pytest.mark.parametrize("masks", ["method", "obs"])
def test_a_batch_of_its_own_hands_masks_over_by_a_method_or_in_its_observations(masks):
    env = returning(
        "", "", backend="gym_vector", name="Batch", masks=masks, space="obs" if masks == "obs" else "float32"
    )
    assert probe(env).mask_size == 3
    envs = make_vec_env(env, range(2), rank=0, cores=1)
    _, mask = envs.reset([0, 1])
    assert mask.tolist() == [[True, False, False]] * 2
    assert envs.step(np.array([0, 0])).action_mask.tolist() == [[False, True, False]] * 2
    envs.close()


# -- whoever else steps a task --------------------------------------------------------------------------------------


class AnyPolicy:
    """Stands for a loaded policy: takes the first action that a mask allows."""

    trained = SimpleNamespace(
        state={},
        spec=SimpleNamespace(journal=None, action=SimpleNamespace(kind="discrete")),
        config=SimpleNamespace(env=SimpleNamespace(id="returns")),
    )

    def __call__(self, obs, mask, deterministic):
        return int(np.flatnonzero(mask)[0]) if mask is not None else 0

    def reset(self):
        pass


@pytest.mark.parametrize("how", ["method", "wrapper", "info", "info mapping"])
def test_a_policy_that_plays_by_itself_is_given_masks_however_they_are_handed_over(how):
    (episode,) = play(AnyPolicy(), task_of(masked(how)), range(1), 0)
    assert (episode.length, episode.episode_return) == (4, 0.0)


def test_a_policy_that_plays_by_itself_ends_no_episode_at_a_list():
    with pytest.raises(
        EnvError, match=r"returned \[False\] of type list as terminated, it must be True or False"
    ):
        list(play(AnyPolicy(), task_of(returning("terminated", "list", at=2)), range(1), 0))


def test_a_batch_that_lacks_a_part_or_final_observations_is_told(monkeypatch):
    env = returning("observation", "lists", backend="gym_vector", name="Batch", masks="obs", space="obs")
    with pytest.raises(
        EnvOutputError, match="observations of type list without 'x' in step 2, which their space lists"
    ):
        stepped(env)
    batch = gym.registry["returns/Batch-v0"].vector_entry_point
    monkeypatch.setitem(batch.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)
    env = returning("terminated", "ones", backend="gym_vector", name="Batch")
    with pytest.raises(EnvOutputError, match="infos without final_obs after the end of an episode in step 2"):
        stepped(env)
