"""Searches by upper confidence bounds."""

import json
import math

import numpy as np
import pytest

from ddppo.search.spaces import Finite, Interval, Space
from ddppo.search.ucb import UCB
from tests.unit.orders_of_five import KENDALL, ORDERS, order_id, space


def of_orders(told=0, *, scale=1.0, shift=0.0, noise=None, **settings):
    """Return a search over orders that was told of `told` points it asked for: how near they are to order 77."""
    search = UCB(space(), **settings)
    for i in range(told):
        point = search.ask()[0]
        value = -float(KENDALL[77, order_id(point)]) + 0.1 * math.sin(i)
        search.tell(point, shift + scale * value, None if noise is None else noise * scale**2)
    return search


def test_a_search_finds_the_order_that_is_best():
    search = of_orders(20)
    assert search.incumbent().point == ORDERS[77]


def test_the_first_points_are_drawn_by_the_seed_and_are_not_the_same_twice():
    firsts = {of_orders(seed=seed).ask()[0] for seed in range(20)}
    assert len(firsts) > 10
    assert of_orders(seed=3).ask() == of_orders(seed=3).ask()
    assert len(set(of_orders(seed=3).ask(4))) == 4


def test_what_is_asked_changes_only_with_what_is_told():
    search = of_orders(8)
    asked = search.ask()
    assert search.ask() == asked
    assert search.ask(3)[:1] == asked


def test_a_search_goes_on_from_its_state_with_the_same_points():
    one, other = of_orders(6), of_orders(0)
    other.restore(json.loads(json.dumps(one.state())))
    for i in range(6):
        asked = one.ask(2)
        assert asked == other.ask(2)
        for search in (one, other):
            search.tell(asked[0], float(i % 3))
    assert one.state() == other.state()
    assert one.best(3) == other.best(3)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_shift_and_scale_of_the_values_change_nothing_that_is_asked(noise):
    plain = of_orders(14, noise=noise)
    other = of_orders(14, noise=noise, scale=250.0, shift=-3000.0)
    assert [told["code"] for told in plain.state()["told"]] == [
        told["code"] for told in other.state()["told"]
    ]
    mean, deviation = plain.posterior()
    other_mean, other_deviation = other.posterior()
    assert other_mean == pytest.approx(-3000.0 + 250.0 * mean, rel=1e-4)
    assert other_deviation == pytest.approx(250.0 * deviation, rel=1e-3)


def test_the_best_are_those_of_the_highest_bounds_and_the_first_is_asked_for():
    search = of_orders(10, beta=3.0)
    mean, deviation = search.posterior()
    best = search.best(3)
    assert [found.ucb for found in best] == pytest.approx(sorted(mean + 3.0 * deviation)[:-4:-1])
    assert best[0].ucb == pytest.approx(best[0].mean + 3.0 * best[0].deviation)
    assert search.ask() == [best[0].point]


def test_without_a_bonus_for_what_is_unknown_the_highest_mean_is_asked_for():
    search = of_orders(10, beta=0.0)
    mean, _ = search.posterior()
    assert order_id(search.ask()[0]) == int(mean.argmax())


def test_a_batch_holds_different_points_where_no_noise_is_known_of():
    search = of_orders(8, noise=0.0)
    assert len(set(search.ask(5))) == 5


def test_a_finite_space_is_asked_for_without_repeats_until_it_is_used_up():
    search = UCB(Space(Finite("abcdef")), repeats=False, num_random=2)
    asked = []
    for i in range(6):
        (point,) = search.ask()
        asked.append(point)
        search.tell(point, float(i % 2))
    assert sorted(asked) == list("abcdef")
    assert search.ask() == []
    search.restore({"told": search.state()["told"][:4]})
    assert sorted(search.ask(5)) == sorted(asked[4:])


def test_what_failed_counts_as_the_worst_of_all():
    search, other = (of_orders(8) for _ in range(2))
    worst = min(told["value"] for told in search.state()["told"])
    search.tell(ORDERS[5], None)
    other.tell(ORDERS[5], worst)
    assert search.best(5) == other.best(5)
    search.tell(ORDERS[6], worst - 50.0)
    other.tell(ORDERS[6], worst - 50.0)
    assert search.posterior()[0][5] < other.posterior()[0][5]


def test_a_search_of_which_all_failed_goes_on():
    search = of_orders()
    for _ in range(6):
        search.tell(search.ask()[0], None)
    assert search.ask()[0] in ORDERS
    assert np.isfinite(search.posterior()).all()


def test_equal_values_are_no_fault():
    search = of_orders()
    for _ in range(6):
        search.tell(search.ask()[0], 0.1)
    mean, deviation = search.posterior()
    assert mean == pytest.approx(0.1, abs=1e-6)
    assert (deviation > 0).any()


def test_a_value_of_much_noise_draws_the_mean_less_far():
    sure, unsure = of_orders(), of_orders()
    for search, variance in ((sure, 1e-4), (unsure, 400.0)):
        for i in range(0, 120, 20):
            search.tell(ORDERS[i], -float(KENDALL[77, i]), 1e-4)
        search.tell(ORDERS[77], 30.0, variance)
    assert sure.posterior()[0][77] == pytest.approx(30.0, abs=0.5)
    assert unsure.posterior()[0][77] < 20.0


def test_noise_is_estimated_from_repeats_of_a_point():
    rng = np.random.default_rng(0)
    for noise in (0.3, 3.0):
        search = of_orders()
        for i in np.repeat(rng.integers(120, size=8), 5):
            search.tell(ORDERS[i], -float(KENDALL[77, i]) + noise * rng.standard_normal())
        assert search.noise_deviation() == pytest.approx(noise, rel=0.35)


def test_values_that_rise_with_a_covariate_are_compared_as_of_its_mean():
    told, untold = of_orders(), of_orders()
    rng = np.random.default_rng(1)
    for age, i in enumerate(rng.permutation(120)[:30]):
        value = -float(KENDALL[77, i]) + 0.5 * age
        told.tell(ORDERS[i], value, covariate=float(age))
        untold.tell(ORDERS[i], value)
    truth = -KENDALL[77].astype(float) + 0.5 * 14.5
    away = [np.abs(search.posterior()[0] - truth).mean() for search in (told, untold)]
    assert away[0] < 1.2
    assert away[1] > 1.5 * away[0]


def test_the_interval_of_a_point_that_is_named_best_is_as_wide_as_its_noise_after_few_noisy_values():
    """A single best fit of the noise may be 0; then the interval is a point, and wrong."""
    search, rng = of_orders(seed=5), np.random.default_rng(5)
    for _ in range(12):
        (order,) = search.ask()
        search.tell(order, -float(KENDALL[77, order_id(order)]) + 2 * rng.standard_normal())
    low, high = search.incumbent().interval
    assert high - low > 1.0


def test_an_interval_is_searched_finer_than_its_first_candidates():
    search = UCB(Space(Interval(0.0, 10.0)))
    for _ in range(15):
        x = search.ask()[0]
        search.tell(x, -((x - math.pi) ** 2))
    assert search.incumbent().point == pytest.approx(math.pi, abs=1e-2)


def test_settings_of_every_kind_are_searched_together():
    def value(rate, width, name):
        return -((math.log10(rate) + 3) ** 2) - (width - 7) ** 2 / 20 - (name != "b")

    search = UCB(
        Space([Interval(1e-5, 1e-1, log=True), Interval(1, 16, step=1), Finite("abc")]), repeats=False, seed=1
    )
    for _ in range(35):
        point = search.ask()[0]
        search.tell(point, value(*point))
    rate, width, name = search.incumbent().point
    assert 10**-3.4 < rate < 10**-2.6
    assert isinstance(width, int)
    assert abs(width - 7) <= 1
    assert name == "b"


@pytest.mark.parametrize(
    "interval",
    [
        Interval(1e-4, 1e-2, log=True),
        Interval(-5.0, 10.0),
        Interval(2, 10, step=2),
        Interval(1, 64, log=True, step=1),
    ],
)
def test_codes_are_read_as_the_values_they_are_of(interval):
    codes = interval.spread(np.linspace(0, 1, 50, endpoint=False))
    assert ((codes >= 0) & (codes <= 1)).all()
    for code in codes:
        value = interval.decode(code)
        assert interval.low <= value <= interval.high
        assert interval.encode(value) == pytest.approx(code, abs=1e-9 if interval.step else 1e-6)
        if interval.step:
            assert isinstance(value, int)
            assert (value - interval.low) % interval.step == 0


def test_all_points_of_a_finite_space_are_listed_once():
    space = Space([Interval(1, 8, log=True, step=1), Finite("ab"), Interval(0.0, 1.0, step=0.25)])
    points = [space.decode(code) for code in space.all()]
    assert len(points) == len(set(points)) == space.size == 8 * 2 * 5
    assert points[:2] == [(1, "a", 0.0), (1, "a", 0.25)]


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda: of_orders().tell((0, 1), 1.0), "none of the 120 options"),
        (lambda: of_orders().tell(ORDERS[0], math.nan), "is no number"),
        (lambda: of_orders().tell(ORDERS[0], math.inf), "is no number"),
        (lambda: of_orders().tell(ORDERS[0], 1.0, -1.0), "no variance"),
        (lambda: of_orders().tell(ORDERS[0], 1.0, covariate=math.nan), "covariate of nan"),
        (lambda: of_orders(beta=-1.0), "beta=-1.0"),
        (lambda: of_orders(num_random=0), "num_random=0"),
        (lambda: UCB(Space(Interval(0.0, 1.0))).tell(2.0, 0.0), "not in interval"),
        (lambda: UCB(Space([Finite("ab")])).tell(("a", "b"), 0.0), "must be 1 values"),
        (lambda: Interval(1.0, 1.0), "the lower one first"),
        (lambda: Interval(0.0, 1.0, log=True), "above 0"),
        (lambda: Interval(0, 3, step=5), "step=5"),
        (lambda: Finite([]), "at least one"),
        (lambda: Finite("aa"), "twice"),
        (lambda: Finite("ab", [[0, 1], [2, 0]]), "symmetric"),
        (lambda: Space([]), "at least one dimension"),
    ],
)
def test_bad_input_is_refused(act, complaint):
    with pytest.raises(ValueError, match=complaint):
        act()
