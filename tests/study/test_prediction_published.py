from math import inf

import pytest

from ddppo.errors import ConfigError
from ddppo.study.predict import published

H = 21 / 107  # DD-PPO: 107 at 128 workers, 128 / 107 - 1


def at(growth, world_size):
    return published.speedup_at(growth, 128, H, world_size)


def test_an_overhead_of_a_fifth_is_what_a_speedup_of_107_at_128_means():
    assert published.overhead(128, 107) == pytest.approx(0.19626, abs=1e-5)


def test_every_growth_goes_through_the_point():
    for growth in published.GROWTHS:
        assert at(growth, 128) == pytest.approx(107)


def test_the_speedup_of_twice_as_many_by_hand():
    assert at("constant", 256) == pytest.approx(214)
    assert at("log", 256) == pytest.approx(256 / (1 + 21 / 107 * 8 / 7))
    assert at("linear", 256) == pytest.approx(256 / (1 + 21 / 107 * 255 / 127))


def test_linear_growth_has_a_largest_speedup():
    assert at("linear", 1e9) == pytest.approx(127 * 107 / 21, rel=1e-5)


def test_half_efficiency_is_where_the_overhead_is_an_iteration():
    # 1 = h (W - 1) / 127, h = 21 / 107: W = 648.1.
    until = published.efficient_until("linear", 128, H, 0.5)
    assert int(until) == 648
    assert until / at("linear", until) - 1 == pytest.approx(1)
    until = published.efficient_until("log", 128, H, 0.5)
    assert until / at("log", until) - 1 == pytest.approx(1)
    assert published.efficient_until("constant", 128, H, 0.5) == inf
    assert published.efficient_until("constant", 128, 1.5, 0.5) == 1


def test_what_a_point_implies_is_said():
    text = published.text(128, 107)
    assert "0.196" in text
    assert "efficiency 83.6 %" in text
    assert "648" in text
    assert "superlinear" in published.text(4, 4.2)


@pytest.mark.parametrize(("world_size", "speedup"), [(1, 1.0), (8, 0.0), (8, -1.0)])
def test_what_cannot_be_a_point_is_refused(world_size, speedup):
    with pytest.raises(ConfigError, match="at least 2 workers"):
        published.text(world_size, speedup)
