"""What groups of episodes of text play, where a curriculum chooses."""

import json
import math

import numpy as np
import pytest
import torch

from ddppo.algorithms.task_sampler import EpisodeResults, make_sampler
from ddppo.config.settings import EnvConfig, config_class
from ddppo.domains.text.curriculum.sampler import CurriculumSampler, make_curriculum
from ddppo.domains.text.curriculum.settings import CurriculumSettings
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


def sampler(curriculum=None, num_groups=4, seed=0):
    return CurriculumSampler(curriculum or make_curriculum("tiers", TASKS), seed, 2 * num_groups, 2)


def begun(of, iteration):
    """Return the tasks of the groups of an iteration."""
    _, options = of.sample(iteration).of(range(0, 2 * of.num_groups, 2))
    return [each["task"] for each in options]


def trained(of, iterations, skill=0.8):
    """Train with as much success as a stream of the iteration says; return what was played."""
    played = []
    for iteration in iterations:
        rng = np.random.default_rng(iteration)
        played.append((begun(of, iteration), of.sample(iteration).of(range(2 * of.num_groups))))
        of.record([None if rng.random() < 0.1 else rng.binomial(8, skill) / 8 for _ in range(of.num_groups)])
    return played


def results(achieved, was_played=None):
    achieved = torch.tensor(achieved, dtype=torch.float64)
    return EpisodeResults(
        achieved, torch.ones_like(achieved) if was_played is None else torch.tensor(was_played)
    )


def test_groups_are_reset_to_different_tasks_of_the_curriculum():
    of = sampler()
    for iteration in range(5):
        assert len(set(begun(of, iteration))) == 4
        seeds, options = of.sample(iteration).of(range(8))
        assert seeds[::2] == seeds[1::2]
        assert options[::2] == options[1::2]
        of.record([0.0] * 4)


def test_groups_of_one_task_are_one_try_of_it_at_their_mean():
    curriculum = Told("abc")
    of = sampler(curriculum)
    assert begun(of, 0) == ["a", "b", "c", "a"]
    of.update(results([1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0]), [])
    assert curriculum.told == [{"a": 0.75, "b": 0.25, "c": 0.0}]
    assert of.metrics() == {"curriculum/told": 1}


def test_groups_that_failed_throughout_say_nothing_of_their_task():
    curriculum, nan = Told("abc"), math.nan
    of = sampler(curriculum)
    begun(of, 0)
    of.update(results([nan, nan, 0.25, 0.25, nan, nan, nan, 0.5]), [])
    begun(of, 1)
    of.update(results([nan] * 8, [0] * 8), [])
    assert curriculum.told == [{"b": 0.25, "a": 0.5}]


def test_an_environment_that_never_tells_whether_it_achieved_is_a_sentence():
    of = sampler()
    begun(of, 3)
    with pytest.raises(TrainingError, match=r'info\["is_success"\] in no episode of iteration 3'):
        of.update(results([math.nan] * 8), [])


def test_rates_of_other_groups_than_were_begun_are_refused():
    of = sampler(Told("abc"))
    begun(of, 0)
    with pytest.raises(TrainingError, match="3 rates of 4 groups"):
        of.record([0.0] * 3)


def test_two_ranks_that_are_told_the_same_play_the_same():
    one, other = sampler(), sampler()
    assert trained(one, range(30)) == trained(other, range(30))
    assert one.digest("x") == other.digest("x")
    begun(one, 30)
    one.record([0.0] * 4)
    assert one.digest("x") != other.digest("x")


@pytest.mark.parametrize("name", ["tiers", "uniform"])
def test_a_restored_sampler_goes_on_as_if_nothing_had_been(name):
    whole, first, second = (sampler(make_curriculum(name, TASKS)) for _ in range(3))
    future = trained(whole, range(40))[20:]
    trained(first, range(20))
    second.load(json.loads(json.dumps(first.state())))
    assert trained(second, range(20, 40)) == future
    assert second.state() == whole.state()


def test_the_table_is_shown_and_kept_in_the_run_folder(tmp_path):
    assert sampler(Told("abc")).open_records(tmp_path).table() == "told 0"
    assert (tmp_path / "curriculum.txt").read_text() == "told 0\n"


@pytest.mark.parametrize(
    "state", [{"rate": np.float64(0.5)}, {"seen": {1: 2}}, {"seen": (1, 2)}, {"seen": {"a"}}, [1, 2], None]
)
def test_a_state_that_no_checkpoint_holds_is_a_sentence_after_the_first_iteration(state):
    curriculum = Told("abc")
    curriculum.state = lambda: state
    of = sampler(curriculum)
    begun(of, 0)
    with pytest.raises(
        TrainingError, match=r"Told.state\(\) returned .*, which checkpoints do not hold: return a dict"
    ):
        of.record([0.5] * 4)


def test_a_state_that_is_another_curriculum_s_is_refused_in_a_sentence():
    of_uniform = sampler(make_curriculum("uniform", TASKS)).state()
    with pytest.raises(
        RunFolderError, match="TieredCurriculum cannot go on from the checkpoint's state: KeyError"
    ):
        sampler().load(of_uniform)
    with pytest.raises(RunFolderError, match="the run has a curriculum now, and had none at its checkpoint"):
        sampler().load(None)


def made(name="auto", tasks=TASKS, kind="text", **settings):
    """Return the curriculum of a task, None where it has none."""
    config = config_class()(env=EnvConfig(id="Task-v0"), curriculum=CurriculumSettings(name, settings))
    obs = ArraySpec((8,), "text" if kind == "text" else "float32")
    found = make_sampler(config, EnvSpec(obs, ActionSpec(kind, (8,)), tasks=tasks), 8)
    return found.curriculum if isinstance(found, CurriculumSampler) else None


def test_tasks_with_tiers_are_learned_by_them_unless_one_says_otherwise():
    assert made().tier == "warm-up"
    assert made(window=3, fast_tries=2).settings.window == 3
    assert made("uniform").metrics() == {"round": 0}
    assert made(None) is None
    assert made(tasks=None) is None
    assert made(kind="box") is None  # whose episodes are begun without options
    assert isinstance(made(f"{__name__}:Told"), Told)


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
        made(**asked)
    assert said in str(e.value)
