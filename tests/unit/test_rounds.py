"""What the groups of an iteration play."""

import json

import numpy as np
import pytest

from ddppo.config import CurriculumConfig
from ddppo.curriculum import Rounds, curriculum_for, make_curriculum
from ddppo.errors import ConfigError, RunFolderError, TrainingError
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

TASKS = {**dict.fromkeys("abcdef", "warm-up"), **dict.fromkeys("ghij", "beginner")}


class Told:
    """A curriculum that keeps what it is told."""

    def __init__(self, tasks):
        self.tasks, self.told = list(tasks), []

    def choose(self, rng, *, besides=()):
        return self.tasks[len(besides) % len(self.tasks)]

    def record(self, rates):
        self.told.append(rates)

    def state(self):
        return {}

    def restore(self, state):
        pass

    def metrics(self):
        return {"told": len(self.told)}

    def table(self):
        return f"told {len(self.told)}"


def trained(rounds, iterations, skill=0.8):
    """Train with as much success as a stream of the iteration says; return what was played."""
    played = []
    for iteration in iterations:
        rng = np.random.default_rng(iteration)
        played.append(rounds.begin(iteration))
        rounds.end([None if rng.random() < 0.1 else rng.binomial(8, skill) / 8 for _ in played[-1]])
    return played


def test_without_a_curriculum_groups_have_seeds_and_nothing_else():
    rounds = Rounds(seed=3, num_groups=4)
    first, second = trained(rounds, [0, 1])
    assert len({each.seed for each in (*first, *second)}) == 8
    assert [(each.options, each.task) for each in first] == [({}, None)] * 4
    assert first == Rounds(seed=3, num_groups=4).begin(0)
    assert first != Rounds(seed=4, num_groups=4).begin(0)
    assert (rounds.metrics(), rounds.table(), rounds.state()) == ({}, "", None)


def test_the_first_groups_play_the_same_seeds_however_many_there_are():
    few, many = (Rounds(seed=0, num_groups=num).begin(7) for num in (2, 5))
    assert many[:2] == few


def test_groups_are_reset_to_different_tasks_of_the_curriculum():
    rounds = Rounds(0, 4, make_curriculum("tiers", TASKS))
    for iteration in range(5):
        played = rounds.begin(iteration)
        assert len({each.task for each in played}) == 4
        assert all(each.options == {"task": each.task} for each in played)
        rounds.end([0.0] * 4)


def test_groups_of_one_task_are_one_try_of_it_at_their_mean():
    curriculum = Told("abc")
    rounds = Rounds(0, 4, curriculum)
    assert [each.task for each in rounds.begin(0)] == ["a", "b", "c", "a"]
    rounds.end([1.0, 0.25, 0.0, 0.5])
    assert curriculum.told == [{"a": 0.75, "b": 0.25, "c": 0.0}]
    assert rounds.metrics() == {"told": 1}
    assert rounds.table() == "told 1"


def test_groups_that_failed_throughout_say_nothing_of_their_task():
    curriculum = Told("abc")
    rounds = Rounds(0, 4, curriculum)
    rounds.begin(0)
    rounds.end([None, 0.25, None, 0.5])
    rounds.begin(1)
    rounds.end([None] * 4)
    assert curriculum.told == [{"b": 0.25, "a": 0.5}]


def test_rates_of_other_groups_than_were_begun_are_refused():
    rounds = Rounds(0, 4, Told("abc"))
    rounds.begin(0)
    with pytest.raises(TrainingError, match="3 rates of 4 groups"):
        rounds.end([0.0] * 3)


def test_two_ranks_that_are_told_the_same_play_the_same():
    one, other = (Rounds(0, 4, make_curriculum("tiers", TASKS)) for _ in range(2))
    assert trained(one, range(30)) == trained(other, range(30))
    assert one.table() == other.table()


@pytest.mark.parametrize("name", ["tiers", "uniform"])
def test_restored_rounds_go_on_as_if_nothing_had_been(name):
    whole, first, second = (Rounds(0, 4, make_curriculum(name, TASKS)) for _ in range(3))
    future = trained(whole, range(40))[20:]
    trained(first, range(20))
    second.restore(json.loads(json.dumps(first.state())))
    assert trained(second, range(20, 40)) == future
    assert second.state() == whole.state()


@pytest.mark.parametrize(
    "state", [{"rate": np.float64(0.5)}, {"seen": {1: 2}}, {"seen": (1, 2)}, {"seen": {"a"}}, [1, 2], None]
)
def test_a_state_that_no_checkpoint_holds_is_a_sentence_after_the_first_iteration(state):
    curriculum = Told("abc")
    curriculum.state = lambda: state
    rounds = Rounds(0, 4, curriculum)
    rounds.begin(0)
    with pytest.raises(
        TrainingError, match=r"Told.state\(\) returned .*, which checkpoints do not hold: return a dict"
    ):
        rounds.end([0.5] * 4)


def test_a_state_that_is_another_curriculum_s_is_refused_in_a_sentence():
    state = Rounds(0, 4, make_curriculum("tiers", TASKS)).state()
    Rounds(0, 4, make_curriculum("tiers", TASKS)).restore(state)
    of_uniform = Rounds(0, 4, make_curriculum("uniform", TASKS)).state()
    with pytest.raises(
        RunFolderError, match="TieredCurriculum cannot go on from the checkpoint's state: KeyError"
    ):
        Rounds(0, 4, make_curriculum("tiers", TASKS)).restore(of_uniform)
    for rounds, found in ((Rounds(0, 4), state), (Rounds(0, 4, make_curriculum("tiers", TASKS)), None)):
        with pytest.raises(RunFolderError, match="only one has a curriculum"):
            rounds.restore(found)
    Rounds(0, 4).restore(None)


def of(name="auto", tasks=TASKS, kind="text", **settings):
    obs = ArraySpec((8,), "text" if kind == "text" else "float32")
    spec = EnvSpec(obs, ActionSpec(kind, (8,)), tasks=tasks)
    return curriculum_for(CurriculumConfig(name, settings), "Task-v0", spec)


def test_tasks_with_tiers_are_learned_by_them_unless_one_says_otherwise():
    assert of().tier == "warm-up"
    assert of(window=3, fast_tries=2).settings.window == 3
    assert of("uniform").metrics() == {"round": 0}
    assert of(None) is None
    assert of(tasks=None) is None
    assert of(kind="box") is None  # whose episodes are begun without options
    assert isinstance(of(f"{__name__}:Told"), Told)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "tires"}, "curriculum.name=tires: must be one of auto, tiers, uniform (did you mean tiers?), or"),
        ({"name": "tires", "tasks": None}, "curriculum.name=tires: must be one of"),
        ({"name": "tiers", "tasks": None}, "curriculum.name=tiers: env.id=Task-v0 names no tasks: give"),
        ({"name": "uniform", "kind": "box"}, "curriculum.name=uniform: env.id=Task-v0 is no task of text"),
        ({"name": None, "window": 3}, "curriculum.settings={'window': 3} has no effect with curriculum.name=null"),
        ({"tasks": None, "window": 3}, "curriculum.settings={'window': 3} has no effect with curriculum.name=auto"),
        ({"tasks": {"a": "odd"}}, "task a is of tier odd: must be one of warm-up, beginner"),
    ],
)  # fmt: skip
def test_a_curriculum_that_cannot_be_is_refused(asked, said):
    with pytest.raises(ConfigError) as e:
        of(**asked)
    assert said in str(e.value)
