import math

import numpy as np
import pytest

from ddppo.domains.text.curriculum.sampler import CURRICULA, make_curriculum
from ddppo.domains.text.curriculum.settings import OF_TIERS, TIERS, Tier, TierSettings
from ddppo.domains.text.curriculum.tiers import TieredCurriculum
from ddppo.errors import ConfigError, RunFolderError

EASY = {"a": "warm-up", "b": "warm-up"}


def one_tier(tasks="ab", **settings):
    return TieredCurriculum(dict.fromkeys(tasks, "only"), TierSettings(tiers=(Tier("only"),), **settings))


def recorded(curriculum, *rounds):
    """Record rounds "a1": task a, rate 1; "b.5": task b, rate 0.5."""
    for one in rounds:
        curriculum.record({one[0]: float(one[1:])})
    return curriculum


def chosen(curriculum, *, draws=50, **options):
    return {curriculum.choose(np.random.default_rng(seed), **options) for seed in range(draws)}


def test_the_rules_are_those_of_the_five_tiers():
    assert [(t.name, t.minimum, t.advance) for t in TIERS] == [
        ("warm-up", 5, 0.6),
        ("beginner", 5, 0.6),
        ("intermediate", 8, 0.65),
        ("advanced", 10, 0.7),
        ("expert", 0, 1.0),
    ]


def test_the_rate_of_a_task_is_the_mean_of_its_last_ten_rounds():
    curriculum = recorded(one_tier(), *["a0"] * 5, *["a1"] * 6)
    assert curriculum.rate("a") == pytest.approx(0.6)
    assert curriculum.rate("b") == 0.0


def test_the_rate_of_a_task_that_is_not_mastered_decays_with_every_round_unseen():
    curriculum = recorded(one_tier(), "a1", "b0")
    assert curriculum.rate("a") == pytest.approx(0.85)
    assert recorded(curriculum, "b0").rate("a") == pytest.approx(0.7225)
    assert recorded(curriculum, "a0").rate("a") == pytest.approx(0.5)  # seen again


def test_a_task_is_mastered_after_three_tries_at_the_threshold():
    curriculum = recorded(one_tier(), "a1", "a1")
    assert not curriculum.is_mastered("a")
    assert recorded(curriculum, "a.1").is_mastered("a")  # a mean of 0.7 is enough
    assert not recorded(one_tier(), "a1", "a1", "a0").is_mastered("a")


def test_a_mastered_task_that_fails_below_the_threshold_is_mastered_no_longer():
    curriculum = recorded(one_tier(), "a1", "a1", "a1", "a0")
    assert curriculum.is_mastered("a")  # 3 of 4
    recorded(curriculum, "a0")
    assert not curriculum.is_mastered("a")
    assert curriculum.metrics()["lost"] == 1
    assert not curriculum.is_due("a")  # a task to learn again, not to review


def test_a_mastered_task_keeps_its_rate_until_its_review_is_due_and_is_lost_by_time_after():
    curriculum = recorded(one_tier(), *["a1"] * 3, "b0", "b0", "b0")
    assert curriculum.is_due("a")
    assert curriculum.rate("a") == 1.0
    recorded(curriculum, "b0", "b0")
    assert curriculum.rate("a") == pytest.approx(0.7225)
    assert curriculum.is_mastered("a")
    recorded(curriculum, "b0")
    assert curriculum.rate("a") == pytest.approx(0.614125)
    assert not curriculum.is_mastered("a")
    assert curriculum.is_due("a")  # until somebody looks


def rounds_until_due(curriculum):
    rounds = 0
    while not curriculum.is_due("a"):
        curriculum.record({"b": 0.0})
        rounds += 1
    return rounds


def test_reviews_come_after_ever_longer_pauses():
    curriculum = recorded(one_tier(), *["a1"] * 3)
    pauses = []
    for _ in range(7):
        pauses.append(rounds_until_due(curriculum))
        curriculum.record({"a": 1.0})
    assert pauses == [3, 6, 12, 24, 48, 96, 192]


def test_a_review_that_fails_comes_again_after_the_same_pause():
    curriculum = recorded(one_tier(), *["a1"] * 9)
    assert rounds_until_due(curriculum) == 3
    curriculum.record({"a": 0.5})
    assert curriculum.is_mastered("a")
    assert rounds_until_due(curriculum) == 3


def test_seeing_a_task_before_its_review_is_no_review():
    curriculum = recorded(one_tier(), *["a1"] * 3, "b0", "a1")
    assert rounds_until_due(curriculum) == 3


def test_what_failed_is_reviewed_from_the_first_pause_again():
    curriculum = recorded(one_tier(), *["a1"] * 3, *["b0"] * 3, "a1", *["a0"] * 2)
    assert not curriculum.is_mastered("a")  # 4 of 6
    recorded(curriculum, "a1")
    assert curriculum.is_mastered("a")
    assert rounds_until_due(curriculum) == 3


def test_what_was_lost_by_time_alone_goes_on_with_the_next_pause():
    curriculum = recorded(one_tier(), *["a1"] * 3, *["b0"] * 9)
    assert not curriculum.is_mastered("a")
    recorded(curriculum, "a1")
    assert curriculum.is_mastered("a")
    assert rounds_until_due(curriculum) == 6


def test_priorities_are_the_sum_of_what_speaks_for_a_task():
    curriculum = one_tier("abc")
    assert curriculum.priority("a") == 150.0  # never tried, and so at rate 0
    recorded(curriculum, "a.4")
    assert curriculum.priority("a") == pytest.approx(50 * 0.6 - 20)
    recorded(curriculum, "b0")
    assert curriculum.priority("a") == pytest.approx(50 * (1 - 0.4 * 0.85) - 20)
    recorded(curriculum, "b0")
    assert curriculum.priority("a") == pytest.approx(50 * (1 - 0.4 * 0.85**2))
    recorded(curriculum, *["c1"] * 3, *["b0"] * 3)
    assert curriculum.priority("c") == pytest.approx(30.0)  # mastered, and due


def test_the_highest_priority_is_next_and_equal_ones_come_at_random():
    curriculum = one_tier("abc")
    assert chosen(curriculum) == {"a", "b", "c"}
    assert chosen(recorded(curriculum, "b0")) == {"a", "c"}
    assert chosen(recorded(curriculum, "a1", "c.5")) == {"b"}  # 50 - 0; c: 25 - 20; a: 50 * 0.15 - 20


def test_a_round_of_several_tasks_takes_different_ones_while_there_are_any():
    curriculum = one_tier("abc")
    assert chosen(curriculum, besides=["a"]) == {"b", "c"}
    assert chosen(recorded(curriculum, "a0", "b1"), besides=["c"]) == {"a"}
    assert chosen(curriculum, besides=["a", "b", "c"]) == {"c"}
    assert chosen(curriculum, besides=["a", "b", "c", "c"]) == {"a"}  # all once more


def test_tasks_of_one_round_are_tries_of_their_own_and_one_step_of_time():
    curriculum = one_tier("abc")
    for _ in range(3):
        curriculum.record({"a": 1.0, "b": 1.0})
    assert curriculum.metrics()["mastered"] == 2
    assert curriculum.rate("a") == curriculum.rate("b") == 1.0  # neither was unseen
    for task in "ab":
        assert curriculum.priority(task) == pytest.approx(-20.0)
    curriculum.record({"c": 0.0})
    curriculum.record({"c": 0.0})
    assert not curriculum.is_due("a")
    curriculum.record({"c": 0.0})  # 3 rounds after the last try
    assert curriculum.is_due("a")
    assert curriculum.is_due("b")


def test_every_try_of_a_round_counts_towards_the_next_tier_until_that_opens():
    curriculum = TieredCurriculum({**dict.fromkeys("abcdef", "warm-up"), "x": "beginner"})
    curriculum.record(dict.fromkeys("abcdef", 0.6))
    assert curriculum.tier == "beginner"
    assert math.isnan(curriculum.metrics()["tier_rate"])  # the sixth try was none of it


def test_choosing_changes_nothing():
    curriculum = recorded(one_tier(), "a1")
    before = curriculum.state()
    chosen(curriculum)
    assert curriculum.state() == before


TWO = {"a": "warm-up", "b": "warm-up", "c": "intermediate"}  # none is for beginners


def test_only_tiers_that_were_reached_are_chosen_from():
    curriculum = TieredCurriculum(TWO)
    assert chosen(curriculum) == {"a", "b"}
    recorded(curriculum, *["a1", "b1"] * 2)
    assert curriculum.tier == "intermediate"  # and not one that has no tasks
    assert chosen(curriculum) == {"c"}
    recorded(curriculum, "c1", "c1")
    assert chosen(curriculum, besides="c") <= {"a", "b"}  # easier ones stay open


@pytest.mark.parametrize(
    ("rounds", "tier"),
    [
        (["a.6"] * 4, "warm-up"),
        (["a.6"] * 5, "intermediate"),
        (["a.5"] * 5, "warm-up"),
        (["a0"] * 30 + ["a1", "a.8"] * 3, "warm-up"),  # the last ten: 0.54
        (["a0"] * 30 + ["a1", "a.8"] * 3 + ["a.8"], "intermediate"),
    ],
)
def test_a_tier_is_left_after_its_minimum_of_rounds_at_its_rate(rounds, tier):
    curriculum = recorded(TieredCurriculum(TWO), *rounds)
    assert curriculum.tier == tier
    assert curriculum.metrics()["fast_tracks"] == 0


@pytest.mark.parametrize(
    ("rounds", "tier"),
    [
        (["a1", "b.9", "a1"], "intermediate"),
        (["a1", "b1"], "warm-up"),
        (["a1", "b.8", "a1"], "warm-up"),
        (["a0", "a1", "a1", "a1"], "intermediate"),
    ],
)
def test_three_rounds_in_a_row_at_nine_tenths_leave_a_tier_early(rounds, tier):
    curriculum = recorded(TieredCurriculum(TWO), *rounds)
    assert curriculum.tier == tier
    assert curriculum.metrics()["fast_tracks"] == (tier != "warm-up")


def test_rounds_of_easier_tasks_open_no_tier():
    tasks = {**TWO, "d": "advanced"}
    curriculum = recorded(TieredCurriculum(tasks), *["a1"] * 3, *["b1"] * 20)
    assert curriculum.tier == "intermediate"
    assert math.isnan(curriculum.metrics()["tier_rate"])


def test_the_hardest_tier_is_left_for_no_other():
    curriculum = recorded(TieredCurriculum(EASY), *["a1"] * 20)
    assert curriculum.tier == "warm-up"
    assert curriculum.metrics()["fast_tracks"] == 0


def test_metrics_are_the_listed_ones():
    curriculum = recorded(TieredCurriculum(TWO), *["a1"] * 3, *["c.5"] * 3)
    metrics = curriculum.metrics()
    rates = {"rate_warm-up": 0.5, "rate_intermediate": 0.5}  # a 1, b never tried; c
    assert metrics.keys() == OF_TIERS.keys() | rates.keys()
    expected = {"round": 6, "tier": 2, "tier_rate": 0.5, "mastered": 1, "untried": 1, "due": 1, "lost": 0}
    assert metrics == {**expected, "fast_tracks": 1, **rates}


def test_the_table_tells_of_every_task_that_may_come_and_counts_the_others():
    tasks = {
        "make-a-bucket": "beginner",
        "list": "warm-up",
        "drift": "expert",
        "key": "expert",
        "queue": "advanced",
    }
    curriculum = TieredCurriculum(tasks)
    for task, rate in [("list", 1.0)] * 3 + [("make-a-bucket", 0.5)]:
        curriculum.record({task: rate})
    assert curriculum.table().splitlines() == [
        "round 4, tier beginner: 1 of 5 tasks mastered, 3 untried, 0 due",
        "  task           tier          tries  rate  due  priority",
        "* list           warm-up           3  1.00    2     -20.0",
        "  make-a-bucket  beginner          1  0.50    -       5.0",
        "  3 more when their tiers open: advanced 1, expert 2",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window": 0}, "curriculum.settings.window=0: must be at least 1"),
        ({"threshold": 1.5}, "curriculum.settings.threshold=1.5: must be at most 1.0"),
        ({"decay": 0.0}, "curriculum.settings.decay=0.0: must be greater than 0.0"),
        ({"tiers": ()}, "curriculum.settings.tiers=[]: at least one"),
        ({"tiers": (Tier("x"), Tier("x"))}, "two named x"),
        (
            {"tiers": (Tier("x", advance=2.0),)},
            "curriculum.settings.tiers.x.advance=2.0: must be at most 1.0",
        ),
        ({"intervals": (3, 3)}, "curriculum.settings.intervals=[3, 3]: must be"),
        ({"intervals": ()}, "curriculum.settings.intervals=[]: must be"),
        (
            {"fast_tries": 11},
            "curriculum.settings.fast_tries=11 is more than the curriculum.settings.window=10",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, said):
    with pytest.raises(ConfigError) as e:
        TierSettings(**settings)
    assert said in str(e.value)


@pytest.mark.parametrize("name", CURRICULA)
def test_a_curriculum_without_tasks_is_refused(name):
    with pytest.raises(ConfigError, match="at least one task"):
        make_curriculum(name, {})


def test_a_task_of_an_unknown_tier_is_refused():
    with pytest.raises(ConfigError, match=r"task a is of tier warmup: .*did you mean warm-up"):
        make_curriculum("tiers", {"a": "warmup"})


@pytest.mark.parametrize("rate", [-0.1, 1.05, math.nan])
def test_a_rate_that_is_no_share_is_refused_before_anything_changes(rate):
    curriculum = one_tier()
    before = curriculum.state()
    with pytest.raises(AssertionError, match="is not in"):
        curriculum.record({"b": 1.0, "a": rate})
    assert curriculum.state() == before


def test_the_state_is_of_plain_values_whatever_numbers_were_recorded():
    curriculum = one_tier()
    for task, rate in [("a", np.float64(1.0))] * 3 + [("b", np.float32(0.5))] * 3 + [("a", np.float64(1.0))]:
        curriculum.record({task: rate})
    state = curriculum.state()
    known = state["tasks"]["a"]
    assert known["reviews"] > 0
    assert {type(x) for x in (*state.values(), *known.values())} <= {int, float, str, bool, list, dict}
    assert {type(x) for x in (*known["rates"], *state["tier_rates"])} == {float}


def test_a_state_of_other_tasks_is_refused():
    with pytest.raises(RunFolderError, match=r"has other tasks \(b\)"):
        one_tier("a").restore(one_tier("ab").state())
    with pytest.raises(RunFolderError, match=r"has other tasks \(only\)"):
        TieredCurriculum(EASY).restore(one_tier("ab").state())


def test_without_a_curriculum_every_task_is_as_likely_whatever_was_recorded():
    curriculum = make_curriculum("uniform", TWO)
    for _ in range(5):
        curriculum.record({"a": 1.0})
    rng = np.random.default_rng(0)
    counts = np.unique([curriculum.choose(rng) for _ in range(3000)], return_counts=True)[1]
    assert (abs(counts - 1000) < 100).all()  # four deviations
    assert chosen(curriculum, besides=["a", "c"]) == {"b"}


class RoundRobin:
    """A user's own."""

    def __init__(self, tasks):
        self.tasks, self.round = list(tasks), 0

    def choose(self, rng, *, besides=()):
        return self.tasks[self.round % len(self.tasks)]

    def record(self, rates):
        self.round += 1

    def state(self):
        return {"round": self.round}

    def restore(self, state):
        self.round = state["round"]

    def metrics(self):
        return {}

    def table(self):
        return ""


class Lacking:
    def __init__(self, tasks, window):
        pass


def test_a_curriculum_of_ones_own_goes_by_its_import_path():
    curriculum = make_curriculum(f"{__name__}:RoundRobin", EASY)
    rng = np.random.default_rng(0)
    order = []
    for _ in range(3):
        order.append(curriculum.choose(rng))
        curriculum.record({order[-1]: 1.0})
    assert order == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"windw": 3}, "curriculum.settings: there is no setting windw (did you mean window?)"),
        ({"window": "ten"}, "curriculum.settings: "),
        ({"window": 0}, "curriculum.settings.window=0: must be at least 1"),
        ({"tiers": [{"name": "x", "rate": 1}]}, "curriculum.settings: "),
    ],
)
def test_settings_of_a_command_line_that_cannot_work_are_refused(settings, said):
    with pytest.raises(ConfigError) as e:
        make_curriculum("tiers", EASY, **settings)
    assert str(e.value).startswith(said)


def test_settings_of_a_command_line_are_those_of_the_tiers():
    tiers = [{"name": "easy", "minimum": 1}, {"name": "hard"}]
    settings = {"tiers": tiers, "intervals": [5, 7], "threshold": 1}
    curriculum = make_curriculum("tiers", {"a": "easy", "b": "hard"}, **settings)
    assert [(tier.name, tier.minimum, tier.advance) for tier in curriculum.settings.tiers] == [
        ("easy", 1, 0.6),
        ("hard", 5, 0.6),
    ]
    assert list(curriculum.settings.intervals) == [5, 7]
    assert recorded(curriculum, "a1").tier == "hard"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tires",
            "curriculum.name=tires: must be one of auto, tiers, uniform (did you mean tiers?), or null",
        ),
        ("no_such_module:X", "No module named 'no_such_module'"),
        (f"{__name__}:NoSuch", "cannot be made: AttributeError"),
        (f"{__name__}:Lacking", "has no choose()"),
        ("uniform", "unexpected keyword argument 'window'"),
    ],
)
def test_a_curriculum_that_cannot_be_made_is_refused(name, said):
    with pytest.raises(ConfigError) as e:
        make_curriculum(name, EASY, window=3)
    assert said in str(e.value)
