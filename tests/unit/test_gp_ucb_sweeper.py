"""The sweeper gp_ucb: what its overrides let choose, and what it asks of a launcher that only computes."""

import csv
import math
import sys

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import OmegaConf

from ddppo.errors import ConfigError
from tests.support import CHECKOUT

sys.path.append(str(CHECKOUT / "ddppo" / "search" / "_plugins"))  # as the door does
from hydra_plugins.ddppo_gp_ucb import GpUcbSweeper, dimension


class Computer:
    """A launcher whose jobs cost nothing: each is a call of `function` with its overrides as {key: text}."""

    def __init__(self, function):
        self.function = function
        self.batches = []

    @property
    def jobs(self):
        return [job for batch in self.batches for job in batch]

    def launch(self, job_overrides, initial_job_idx):
        assert initial_job_idx == len(self.jobs)
        self.batches.append([tuple(job) for job in job_overrides])
        return [self._done(dict(word.split("=", 1) for word in job)) for job in job_overrides]

    def _done(self, given):
        done = JobReturn()
        try:
            done.status, done.return_value = JobStatus.COMPLETED, self.function(given)
        except ZeroDivisionError as e:
            done.status, done.return_value = JobStatus.FAILED, e
        return done


@pytest.fixture
def searched(monkeypatch, tmp_path):
    """Return a function that searches with overrides and settings; it returns the launcher."""

    def search(function, overrides, **settings):
        computer = Computer(function)
        monkeypatch.setattr(Plugins, "instantiate_launcher", lambda self, **kwargs: computer)
        sweeper = GpUcbSweeper(**settings)
        context = HydraContext(ConfigLoaderImpl(create_config_search_path(None)), None)
        config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
        sweeper.setup(hydra_context=context, task_function=None, config=config)
        sweeper.sweep(overrides)
        return computer

    return search


def trials(tmp_path):
    with (tmp_path / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def results(tmp_path):
    return OmegaConf.load(tmp_path / "optimization_results.yaml")


def near(given):
    """Return a value that is best, 0, at learning rate 1e-3 with 6 passes of tanh."""
    away = math.log10(float(given["ppo.learning_rate"])) + 3
    return -(away**2) - (int(given["ppo.num_epochs"]) - 6) ** 2 / 10 - (given["model.activation"] != "tanh")


SEARCHED = [
    "env=cartpole",
    "ppo.learning_rate=tag(log,interval(1e-5,1e-1))",
    "ppo.num_epochs=range(2,13,2)",
    "model.activation=relu,tanh",
]


def test_a_search_comes_near_the_best_settings(searched, tmp_path):
    computer = searched(near, SEARCHED, n_trials=25)
    assert len(computer.jobs) == len(set(computer.jobs)) == 25
    assert all(job[0] == "env=cartpole" for job in computer.jobs)
    best = results(tmp_path)
    assert best.name == "gp_ucb"
    assert best.best_value == max(near(dict(word.split("=") for word in job)) for job in computer.jobs)
    assert best.best_value > -0.1
    assert best.best_params["ppo.num_epochs"] == 6
    assert best.best_params["model.activation"] == "tanh"


def test_the_same_command_asks_for_the_same_runs_and_for_more_of_them_goes_on(searched):
    first = searched(near, SEARCHED, n_trials=9)
    assert searched(near, SEARCHED, n_trials=9).jobs == first.jobs
    assert searched(near, SEARCHED, n_trials=12).jobs[:9] == first.jobs
    assert searched(near, SEARCHED, n_trials=9, seed=1).jobs != first.jobs


def test_runs_at_once_are_asked_for_together(searched):
    computer = searched(near, SEARCHED, n_trials=10, n_jobs=4)
    assert [len(batch) for batch in computer.batches] == [4, 4, 2]
    assert len(set(computer.jobs)) == 10


def test_a_table_holds_what_was_thought_of_each_trial_and_what_came_of_it(searched, tmp_path):
    searched(near, SEARCHED, n_trials=6)
    rows = trials(tmp_path)
    assert [row["trial"] for row in rows] == list("012345")
    assert rows[0]["mean"] == rows[0]["bound"] == ""
    for row in rows[1:]:
        bound = float(row["mean"]) + 2 * float(row["deviation"])
        assert float(row["bound"]) == pytest.approx(bound)
        assert float(row["value"]) == pytest.approx(near(row))


def test_what_is_to_be_minimised_is(searched, tmp_path):
    searched(
        lambda given: (float(given["x"]) - 0.3) ** 2,
        ["x=interval(0.0,1.0)"],
        n_trials=12,
        direction="minimize",
    )
    values = [float(row["value"]) for row in trials(tmp_path)]
    assert results(tmp_path).best_value == min(values) < 1e-3
    last = trials(tmp_path)[-1]
    assert float(last["bound"]) == pytest.approx(float(last["mean"]) - 2 * float(last["deviation"]))


@pytest.mark.parametrize("nothing", [lambda: 1 / 0, lambda: math.inf, lambda: None])
def test_runs_that_fail_or_come_to_nothing_are_avoided(searched, tmp_path, nothing):
    def half(given):
        return nothing() if float(given["x"]) > 0.5 else float(given["x"])

    computer = searched(half, ["x=interval(0.0,1.0)"], n_trials=20)
    values = [row["value"] for row in trials(tmp_path)]
    assert 0 < values.count("") < 10
    assert results(tmp_path).best_value == max(float(value) for value in values if value)
    assert len(computer.jobs) == 20


def test_a_search_of_which_all_runs_failed_has_no_best(searched, tmp_path):
    searched(lambda given: 1 / 0, ["x=interval(0.0,1.0)"], n_trials=6)
    assert [row["value"] for row in trials(tmp_path)] == [""] * 6
    assert not (tmp_path / "optimization_results.yaml").exists()


def test_a_search_ends_when_all_combinations_were_tried(searched):
    computer = searched(lambda given: float(given["a"]), ["a=1,2,3", "b=x,y"], n_trials=50, n_jobs=4)
    assert sorted(computer.jobs) == [(f"a={a}", f"b={b}") for a in (1, 2, 3) for b in "xy"]


def test_the_command_replaces_what_the_preset_says_of_a_setting(searched):
    params = {"a": "interval(0.0,1.0)", "b": "choice(1,2)", "c": 5}
    computer = searched(lambda given: 0.0, ["a=7", "d=8"], params=params, n_trials=2)
    assert sorted(computer.jobs) == [("a=7", "c=5", "d=8", "b=1"), ("a=7", "c=5", "d=8", "b=2")]


def chosen(text):
    return dimension(OverridesParser.create().parse_override(text))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x=1,2,a", ["1", "2", "a"]),
        ("x=choice([1,2],'a b')", ["[1,2]", "a\\ b"]),
        ("x=0.1,null", ["0.1", "null"]),
        ("x=range(2,9,3)", [2, 5, 8]),
        ("x=range(9,2,-3)", [3, 6, 9]),
        ("x=range(0,1,0.25)", [0.0, 0.25, 0.5, 0.75]),
        ("x=range(3,4)", ["3"]),
        ("x=int(interval(1,4))", [1, 2, 3, 4]),
        ("x=tag(log,int(interval(1,4)))", [1, 2, 3, 4]),
        ("ppo.num_epochs=interval(1,3)", [1, 2, 3]),
    ],
)
def test_overrides_let_choose_from_what_they_say(text, values):
    found = chosen(text)
    assert [found.decode(code) for code in found.all()] == values
    assert all(
        type(found.decode(code)) is type(value) for code, value in zip(found.all(), values, strict=True)
    )


def test_an_interval_of_a_setting_that_is_no_whole_number_has_all_numbers():
    assert math.isinf(chosen("ppo.gae_lambda=interval(0,1)").size)
    assert math.isinf(chosen("x=interval(0,4)").size)
    assert chosen("ppo.learning_rate=tag(log,interval(1e-4,1e-2))").log


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x=interval(2,1)", r"x=interval\(2,1\): .*the lower one first"),
        ("x=tag(log,interval(0,1.0))", "must be above 0"),
        ("x=tag(linear,interval(0,1))", "the only tag is log"),
        ("x=tag(log,choice(1,2))", "of an interval or a range"),
        ("x=range(3,3)", "at least one option"),
        ("ppo.num_epochs=interval(1.5,3)", "ppo.num_epochs is a whole number"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_name(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        chosen(text)


def test_a_command_without_a_choice_is_refused(searched):
    with pytest.raises(ConfigError, match="nothing to choose: give a setting an interval"):
        searched(near, ["env=cartpole"])


@pytest.mark.parametrize("settings", [{"n_trials": 0}, {"n_jobs": 0}, {"beta": -1.0}, {"direction": "up"}])
def test_settings_out_of_their_bounds_are_refused(searched, settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"hydra.sweeper.{name}={value}: must be"):
        searched(near, SEARCHED, **settings)
