"""log.metrics: functions of a user's own, reduced over ranks by count."""

import json

import pytest

from ddppo.collectives.group import Group
from ddppo.distributed.topologies.base import Collected
from ddppo.errors import ConfigError, TrainingError
from ddppo.records.user_metrics import UserMetrics, import_functions, reduce_sums

HERE = "tests.unit.test_own_metrics"
SEEN = Collected(8, [], ())  # stands for a rollout, which none of these reads


class Counting:
    def __init__(self):
        self.num_calls = 0

    def __call__(self, seen):
        self.num_calls += 1
        return {"calls": self.num_calls, "share/of_it": (1, 4), "never": (0, 0)}


class Greedy:
    def __init__(self, limit):
        self.limit = limit


def listed(seen):
    return [1]


def again(seen):
    return {"calls": 1}


def worded(seen):
    return {"calls": ("many", 1)}


def negative(seen):
    return {"calls": (1, -1)}


def unnamed(seen):
    return {"": 1}


def failing(seen):
    raise KeyError("camera")


def test_a_class_goes_on_from_one_iteration_to_the_next():
    metrics = UserMetrics([f"{HERE}:Counting"], Group())
    assert metrics.reduce(1, SEEN) == {"calls": 1, "share/of_it": 0.25}
    assert metrics.reduce(2, SEEN._replace(rollout=None)) == {}  # of a rank that does not act
    assert metrics.reduce(3, SEEN)["calls"] == 2


def test_ranks_count_as_much_as_they_have():
    of_ranks = [{"mean": [6.0, 3.0], "sum": 2.0}, {}, {"mean": [1.0, 1.0], "sum": 5.0, "late": [0.0, 0.0]}]
    assert reduce_sums(json.loads(json.dumps(of_ranks))) == {"mean": 7 / 4, "sum": 7.0}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["listed"], r"listed\] on rank 0, iteration 3: returned a list: it must be a dict of names"),
        (["Counting", "again"], r"again\] on rank 0, iteration 3: 'calls' is the name of two metrics"),
        (["worded"], "calls=.*must be \\(sum, count\\), or a number"),
        (["negative"], "a count is at least 0"),
        (["unnamed"], "'' is no name"),
        (["failing"], "raised KeyError: 'camera'"),
    ],
)
def test_what_is_no_metric_is_said(names, said):
    with pytest.raises(TrainingError, match=said):
        UserMetrics([f"{HERE}:{name}" for name in names], Group()).reduce(3, SEEN)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{HERE}:Greedy", "cannot be made without arguments: TypeError"),
        (f"{HERE}:HERE", "is of type str: it must be a function"),
        (f"{HERE}:missing", "cannot be imported: AttributeError"),
    ],
)
def test_what_is_no_function_is_said_before_anything_starts(path, said):
    with pytest.raises(ConfigError, match=said):
        import_functions([path])
