"""Evaluation, a run that goes on and an export mean what training meant: tasks that differ are told apart, or named."""

import json
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from ddppo import load_policy
from ddppo.config.model_settings import MlpSettings
from ddppo.config.settings import EnvConfig
from ddppo.enjoy import EnjoyConfig, enjoy
from ddppo.envs.meaning import differences, spaces_described
from ddppo.envs.probing.dry_run import dry_run
from ddppo.envs.probing.probe import probe
from ddppo.envs.probing.suitability import kept_over_resets, learning_wrappers, on_spaces, statistics
from ddppo.errors import ConfigError, RunFolderError
from ddppo.evaluate import EvaluateConfig, evaluate
from ddppo.policies.export.command import ExportConfig, export
from tests.support import TINY, door
from tests.unit.policy_tasks import AnyEnv, run_folder

UNIT = Box(-1, 1, (3,), np.float32)
PIXELS = Box(0, 255, (8, 8, 3), np.uint8)
THREE = Discrete(3)


def said(*, obs=(UNIT, UNIT), action=(THREE, THREE), mask=(False, False), names=(None, None)):
    """Return the differences of two tasks, as a checkpoint's JSON would hold them."""
    plain = []
    for observed, taken, has_mask, named in zip(obs, action, mask, names, strict=True):
        task = AnyEnv()
        task.action_meanings = named
        found = spaces_described(observed, taken, has_mask=has_mask, task=task)
        plain.append(json.loads(json.dumps(found, allow_nan=False)))
        assert plain[-1] == found
    return "; ".join(differences(*plain))


# What parameters fit both, but means something else.
OTHER = {
    "choices that are reordered": (
        {"action": (MultiDiscrete([2, 3]), MultiDiscrete([3, 2]))},
        "nvec of its actions was [2, 3] and is [3, 2]",
    ),
    "more choices": ({"action": (Discrete(3), Discrete(4))}, "n of its actions was 3 and is 4"),
    "choices that start elsewhere": (
        {"action": (Discrete(3), Discrete(3, start=1))},
        "start of its actions was 0 and is 1",
    ),
    "actions of another kind": (
        {"action": (Discrete(4), MultiBinary(4))},
        "its actions were Discrete(n 4, start 0) and are MultiBinary(shape [4])",
    ),
    "actions of a wider box": (
        {"action": (UNIT, Box(-1, 2, (3,), np.float32))},
        "high of its actions was 1.0 and is 2.0",
    ),
    "actions without a bound": (
        {"action": (UNIT, Box(-1, np.inf, (3,), np.float32))},
        "high of its actions was 1.0 and is none",
    ),
    "actions that are rounded": (
        {"action": (UNIT, Box(-1, 1, (3,), np.int32))},
        "dtype of its actions was float32 and is int32",
    ),
    "actions of other names": (
        {"names": (["left", "right", "stay"], ["right", "left", "stay"])},
        "its actions were named left, right, stay and are right, left, stay",
    ),
    "actions that are masked": ({"mask": (False, True)}, "its actions came without and come with an action mask"),
    "pixels that are numbers": (
        {"obs": (PIXELS, Box(0, 255, (8, 8, 3), np.float32))},
        "dtype of its observations was uint8 and is float32",
    ),
    "observations of another scale": (
        {"obs": (UNIT, Box(np.array([-1, -1, -9], np.float32), np.array([1, 1, 9], np.float32)))},
        "low of its observations was -1.0 and is [-1.0, -1.0, -9.0]",
    ),
    "observations of another name": (
        {"obs": (Dict(speed=UNIT, place=UNIT), Dict(speed=UNIT, heading=UNIT))},
        "it observed speed, place and observes speed, heading",
    ),
    "observations in another order": (
        {"obs": (Dict(OrderedDict(a=UNIT, b=UNIT)), Dict(OrderedDict(b=UNIT, a=UNIT)))},
        "it observed a, b and observes b, a",
    ),
    "a part that counts from elsewhere": (
        {"obs": (Tuple([Discrete(4), UNIT]), Tuple([Discrete(4, start=2), UNIT]))},
        "start of its observations '0' was 0 and is 2",
    ),
    "one array that is several": (
        {"obs": (UNIT, Dict(a=UNIT))},
        "it observed one array and observes a",
    ),
    "another shape": (
        {"obs": (Box(0, 1, (4, 6)), Box(0, 1, (6, 4)))},
        "shape of its observations was [4, 6] and is [6, 4]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
def test_what_means_something_else_is_named_with_what_it_was_and_is(case):
    kwargs, words = OTHER[case]
    assert words in said(**kwargs), said(**kwargs)


ALIKE = {
    "numbers of another precision": {
        "obs": (Box(-4.8, 4.8, (3,), np.float32), Box(-4.8, 4.8, (3,), np.float64)),
        "action": (Box(-0.1, 0.1, (2,), np.float32), Box(-0.1, 0.1, (2,), np.float64)),
    },
    "whole numbers, which models are given as fractions": {"obs": (UNIT, Box(-1, 1, (3,), np.int64))},
    "a bound of observations that one of them lacks": {"obs": (UNIT, Box(-1, np.inf, (3,), np.float32))},
    "bounds as large as numbers go": {
        "obs": (Box(-np.inf, np.inf, (3,), np.float32), Box(-3.4e38, 3.4e38, (3,), np.float32))
    },
    "names that one of them does not say": {"names": (["left", "right", "stay"], None)},
    "a mask among the observations, which is none of them": {
        "obs": (Dict(a=UNIT), Dict(a=UNIT, action_mask=MultiBinary(3))),
        "mask": (True, True),
    },
    "nothing at all, of nothing": {"obs": (Box(0, 1, (0,)), Box(0, 1, (0,)))},
}  # fmt: skip


@pytest.mark.parametrize("case", ALIKE)
def test_what_no_policy_could_tell_is_no_difference(case):
    assert said(**ALIKE[case]) == ""


def test_names_of_actions_are_those_of_atari_of_an_attribute_or_of_metadata():
    class Game(AnyEnv):
        def get_action_meanings(self):
            return ["NOOP", "FIRE", "UP"]

    class Named(AnyEnv):
        metadata = {"action_meanings": ("NOOP", "FIRE", "UP")}  # noqa: RUF012

    class Odd(AnyEnv):
        def get_action_meanings(self, action):
            return "of one action"

    names = [
        spaces_described(UNIT, Discrete(3), has_mask=False, task=gym.Wrapper(task()))["action_names"]
        for task in (Game, Named, Odd, AnyEnv)
    ]
    assert names == [["NOOP", "FIRE", "UP"], ["NOOP", "FIRE", "UP"], None, None]


@pytest.fixture
def shifted(tmp_path, monkeypatch):
    """Return the folder of a run whose task takes other actions since: as many, that count from 1."""
    folder = run_folder(tmp_path, "AnyEnv")
    monkeypatch.setattr(AnyEnv, "action_space", Discrete(3, start=1))
    return folder


DOORS = {
    "evaluate": lambda run, **more: evaluate(EvaluateConfig(run, episodes=2, **more)),
    "enjoy": lambda run, **more: enjoy(EnjoyConfig(run, out=f"{run}/x.gif", **more)),
    "export": lambda run, **more: export(ExportConfig(run, format="torch", **more)),
    "load_policy": lambda run, **more: load_policy(run, **more),
}


@pytest.mark.parametrize("name", DOORS)
def test_a_policy_is_refused_a_task_whose_actions_mean_something_else_unless_that_is_meant(name, shifted):
    with pytest.raises(RunFolderError) as caught:
        DOORS[name](str(shifted))
    assert str(caught.value) == (
        "tests.unit.policy_tasks:policies/AnyEnv-v0 is not the task that the checkpoint of iteration 3 was trained on: "
        "start of its actions was 0 and is 1: make it as it was, or add other_spaces=true if this is meant"
    )
    DOORS[name](str(shifted), other_spaces=True)


def test_a_checkpoint_of_earlier_that_stored_no_spaces_is_played_as_it_was(shifted):
    from ddppo.records import checkpoint

    (path,) = (shifted / "checkpoints").iterdir()
    state = checkpoint.load(path)
    checkpoint.save(path, {key: value for key, value in state.items() if key != "spaces"})
    assert load_policy(shifted).trained.state["env_steps"] == 300


def test_an_export_says_in_its_description_what_the_policy_observes_and_takes(tmp_path):
    folder = run_folder(tmp_path, "ChosenEnv")
    export(ExportConfig(str(folder), format="torch"))
    told = json.loads((folder / "policy.pt2.json").read_text())["spaces"]
    assert told == probe(EnvConfig(id="tests.unit.policy_tasks:policies/ChosenEnv-v0")).spaces
    assert told["actions"] == {"space": "MultiDiscrete", "nvec": [2, 3], "start": [0, 5]}


@pytest.mark.slow  # five runs
def test_a_run_goes_on_with_its_own_task_and_another_begins_with_it_knowingly(tmp_path):
    task = ["env=gym", "env.id=tests.unit.policy_tasks:policies/ShiftingEnv-v0", "env.num_envs=2"]
    sizes = ["ppo.rollout_steps=8", "ppo.num_minibatches=1", "ppo.num_epochs=1", "device=cpu", "compile=off"]
    begun = door(*TINY, *task, *sizes, "ppo.total_steps=16", run_dir=tmp_path / "run", DDPPO_TEST_START="0")
    assert begun.code == 0, begun.stderr
    goes_on = [f"resume={tmp_path / 'run'}", "ppo.total_steps=32"]
    other = door(*TINY, *goes_on, run_dir=tmp_path / "run", DDPPO_TEST_START="1")
    assert other.code == 2
    assert "start of its actions was 0 and is 1: make it as it was, or add other_spaces=true" in other.stderr
    meant = door(*TINY, *goes_on, "other_spaces=true", run_dir=tmp_path / "run", DDPPO_TEST_START="1")
    assert meant.code == 0, meant.stderr
    back = door(*TINY, *goes_on[:1], "ppo.total_steps=48", run_dir=tmp_path / "run", DDPPO_TEST_START="0")
    assert "start of its actions was 1 and is 0" in back.stderr  # what was meant once is not for ever
    init = f"init_from={tmp_path / 'run'}"
    new = door(
        *TINY, *task, *sizes, "ppo.total_steps=16", init, run_dir=tmp_path / "new", DDPPO_TEST_START="0"
    )
    assert new.code == 0, new.stderr
    assert "start of its actions was 1 and is 0" in new.stderr


# -- parts of a task that learn --------------------------------------------------------------------------------------


class Running:
    """Statistics as many projects have them, by whatever names."""

    def __init__(self, count="count", var="var"):
        self.mean, self.names = np.zeros(4), (count, var)
        setattr(self, var, np.ones(4))
        setattr(self, count, 1e-4)

    def update(self, x):
        count, var = self.names
        setattr(self, count, getattr(self, count) + 1)
        self.mean = self.mean + (x - self.mean) / getattr(self, count)
        setattr(self, var, 0.99 * getattr(self, var))


class OwnScale(gym.ObservationWrapper):
    """A wrapper of a user's own; kinds: the names of its statistics."""

    def __init__(self, env, *names):
        super().__init__(env)
        self.seen = Running(*names)

    def observation(self, observation):
        self.seen.update(observation)
        return ((observation - self.seen.mean) / 2).astype(np.float32)


class Itself(OwnScale):
    """Its statistics are attributes of its own."""

    def __init__(self, env):
        gym.ObservationWrapper.__init__(self, env)
        self.mean, self.std, self.n = np.zeros(4), np.ones(4), 0

    def observation(self, observation):
        self.n += 1
        self.mean = self.mean + (observation - self.mean) / self.n
        return observation


class Smooth(gym.ObservationWrapper):
    """Statistics without a count, which nothing but watching tells from numbers of the task."""

    def __init__(self, env):
        super().__init__(env)
        self.obs_mean = np.zeros(4)

    def observation(self, observation):
        self.obs_mean = 0.9 * self.obs_mean + 0.1 * observation
        return (observation - self.obs_mean).astype(np.float32)


class Drawn(gym.Wrapper):
    """A number of every episode, by its seed."""

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.mean_wind = self.unwrapped.np_random.normal()
        return obs, info


def cartpole(*wrappers):
    task = gym.make("CartPole-v1").unwrapped
    for wrap in wrappers:
        task = wrap(task)
    return gym.wrappers.TimeLimit(task, 50)


def scaled_itself():
    task = cartpole()
    task.unwrapped.obs_rms = Running()
    return task


LEARNING = {
    "Gymnasium's of observations": (
        lambda: cartpole(gym.wrappers.NormalizeObservation),
        "its wrapper NormalizeObservation learns running statistics (obs_rms) of its own in each environment, which "
        "depend on the number of workers and are missing in evaluation: remove it and use ppo.normalize_obs=true",
    ),
    "Gymnasium's of rewards": (
        lambda: cartpole(gym.wrappers.NormalizeReward),
        "remove it and use ppo.normalize_rewards=true",
    ),
    "one of a user's own": (
        lambda: cartpole(OwnScale),
        "its wrapper OwnScale learns running statistics (seen) of its own in each environment, which depend on the "
        "number of workers and are missing in evaluation: remove it and use ppo.normalize_obs=true or "
        "ppo.normalize_rewards=true, or freeze it and say so by an attribute training=False",
    ),
    "one of other names": (lambda: cartpole(lambda env: OwnScale(env, "n", "M2")), "OwnScale"),
    "one that is its own statistics": (lambda: cartpole(Itself), "its wrapper Itself learns"),
    "a task that scales itself": (scaled_itself, "its class CartPoleEnv learns running statistics (obs_rms)"),
    "one of a batch": (
        lambda: gym.wrappers.vector.NormalizeObservation(gym.make_vec("CartPole-v1", 2)),
        "its wrapper NormalizeObservation learns",
    ),
    "one in the environments of a batch": (
        lambda: gym.vector.SyncVectorEnv([lambda: cartpole(OwnScale)] * 2),
        "its wrapper OwnScale learns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEARNING)
def test_a_part_that_learns_is_named_with_the_remedy(case):
    make, words = LEARNING[case]
    task = make()
    (said,) = learning_wrappers(task)
    task.close()
    assert words in said, said


def test_what_does_not_learn_is_no_part_that_learns():
    frozen, own = cartpole(gym.wrappers.NormalizeObservation), cartpole(OwnScale)
    frozen.env.update_running_mean = False
    own.env.training = False
    counted = cartpole(gym.wrappers.RecordEpisodeStatistics)
    for task in (frozen, own, counted, cartpole(Drawn), gym.make("Pendulum-v1")):
        assert learning_wrappers(task) == []


@pytest.mark.parametrize(
    ("wrap", "is_kept"), [(Smooth, True), (OwnScale, True), (Itself, True), (Drawn, False)]
)
def test_statistics_that_a_reset_does_not_bring_back_are_warned_of(wrap, is_kept):
    task = cartpole(wrap)
    task.reset(seed=0)
    before = statistics(task)
    for _ in range(3):
        task.step(0)
    task.reset(seed=0)
    said = kept_over_resets(before, statistics(task))
    assert (said is not None) == is_kept
    assert said is None or (wrap.__name__ in said and "ppo.normalize_obs=true" in said)


@pytest.mark.parametrize("backend", ["sync", "gym_vector"])
def test_a_task_with_a_part_that_learns_is_refused_before_training(backend):
    with pytest.raises(ConfigError, match=r"NormalizeObservation learns .* use ppo.normalize_obs=true"):
        probe(EnvConfig(id="tests.unit.policy_tasks:policies/ScaledEnv-v0", backend=backend))


# -- spaces that a policy cannot use well ----------------------------------------------------------------------------


def advice(obs=UNIT, action=THREE, **model):
    return on_spaces(spaces_described(obs, action, has_mask=False), MlpSettings(**model))


ADVICE = {
    "actions that go far": (
        {"action": Box(0, 1000, (1,), np.float32)},
        "its actions go from 0 to 1000, and a new policy draws them around 0 with deviation 1, then clips them: it "
        "reaches a small part of the bounds: use model.squash=tanh, which spreads them over the bounds, or",
    ),
    "actions that lie far": ({"action": Box(100, 101, (2,), np.float32)}, "its actions go from 100 to 101, and"),
    "actions that are tiny": (
        {"action": Box(-0.01, 0.01, (2,), np.float32)},
        "gymnasium.wrappers.RescaleAction(task, -1, 1)",
    ),
    "one dimension of several": (
        {"action": Box(np.array([-1, 0], np.float32), np.array([1, 500], np.float32))},
        "dimension 1 of its actions go from 0 to 500",
    ),
    "actions with one bound": (
        {"action": Box(0, np.inf, (1,), np.float32)},
        "its actions must be at least 0, with no bound on the other side",
    ),
    "a picture of float32": (
        {"obs": Box(0, 255, (64, 48, 3), np.float32)},
        "its observations are a Box of float32 from 0 to 255 and 64 x 48 x 3, like a picture, but only uint8",
    ),
    "a grey picture of int64 in a dict": (
        {"obs": Dict(speed=UNIT, camera=Box(0, 255, (84, 84), np.int64))},
        "its observations 'camera' are a Box of int64 from 0 to 255 and 84 x 84",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_a_space_that_a_new_policy_cannot_use_well_is_told_in_one_sentence(case):
    kwargs, words = ADVICE[case]
    (sentence,) = advice(**kwargs)
    assert words in sentence, sentence


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"action": Box(-2, 2, (1,), np.float32)},
        {"action": Box(-0.4, 0.4, (17,), np.float32)},  # Humanoid's
        {"action": Box(-np.inf, np.inf, (2,), np.float32)},
        {"action": Box(-9, np.inf, (2,), np.float32)},
        {"action": Box(0, 1, (2,), np.float32)},
        {"action": Box(0, 1000, (1,), np.float32), "squash": "tanh"},
        {"action": Box(0, 1000, (1,), np.float32), "distribution": "beta"},
        {"action": Box(-0.01, 0.01, (1,), np.float32), "log_std_init": -5.0},
        {"action": Box(0, 1000, (1,), np.float32), "name": "my_pkg.models:Scaling"},
        {"action": MultiDiscrete([2, 1000])},
        {"obs": PIXELS},
        {"obs": Box(0, 1, (64, 64, 3), np.float32)},
        {"obs": Box(0, 255, (128,), np.float32)},  # as memory of a game
        {"obs": Box(0, 255, (4, 4), np.float32)},
    ],
)
def test_a_space_that_is_well_used_is_not_spoken_of(kwargs):
    assert advice(**kwargs) == []


def test_a_batch_that_is_not_what_evaluation_steps_is_refused():
    env = EnvConfig(id="tests.unit.policy_tasks:policies/TwiceEnv-v0", backend="gym_vector")
    with pytest.raises(ConfigError, match=r"n of its actions was 3 and is 2: use env.backend=sync"):
        dry_run(env)
