from math import inf

import pytest

from ddppo.errors import ConfigError
from ddppo.study.predict import published
from ddppo.study.predict.published import PublishedPoint

DDPPO = PublishedPoint(world_size=128, speedup=107)  # arXiv:1911.00357, abstract
CONSTANT, LOG, LINEAR = published.GROWTHS


def test_107_times_at_128_workers_is_83_6_percent_and_loses_0_196_of_an_ideal_iteration():
    assert DDPPO.efficiency == pytest.approx(0.8359375)
    assert DDPPO.overhead == pytest.approx(21 / 107)  # 128/107 - 1 = 0.19626


def test_every_growth_passes_through_the_point_and_through_one_worker():
    for growth in published.GROWTHS:
        assert published.speedup(DDPPO, growth, 128) == pytest.approx(107)
        assert published.speedup(DDPPO, growth, 1) == 1.0


def test_256_workers_make_214_209_or_184_times_by_how_the_overhead_grows():
    assert published.speedup(DDPPO, CONSTANT, 256) == pytest.approx(214)
    assert published.speedup(DDPPO, LOG, 256) == pytest.approx(256 / (1 + 21 / 107 * 8 / 7))
    assert published.speedup(DDPPO, LINEAR, 256) == pytest.approx(256 / (1 + 21 / 107 * 255 / 127))


def test_linear_overhead_bounds_the_speedup_by_647():
    # W / (1 + h (W - 1) / 127) tends to 127 / h = 127 * 107 / 21.
    assert published.speedup(DDPPO, LINEAR, 1e9) == pytest.approx(127 * 107 / 21, rel=1e-5)


def test_linear_overhead_halves_efficiency_at_648_workers():
    # h (W - 1) / 127 = 1 at W = 1 + 127 * 107 / 21 = 648.095.
    assert published.efficient_until(DDPPO, LINEAR, 0.5) == 648


def test_with_linear_overhead_doubling_adds_half_of_the_new_workers_up_to_181():
    # With k = 21 / 107 / 127 and c = 1 - k: (2 / (c + 2 k W) - 1 / (c + k W)) = c / ((c + 2 k W)(c + k W)) = 1/2.
    assert published.stops_paying(DDPPO, LINEAR, 0.5) == 181


def test_constant_overhead_never_stops_paying_and_no_overhead_neither():
    assert published.stops_paying(DDPPO, CONSTANT, 0.5) == inf
    assert published.efficient_until(DDPPO, CONSTANT, 0.5) == inf
    assert published.stops_paying(PublishedPoint(4, 4.2), LINEAR, 0.5) == inf


def test_the_text_says_what_one_point_cannot_say():
    text = published.text(DDPPO)
    assert "83.6 %" in text
    assert "0.196" in text
    assert "One point cannot say" in text
    assert "superlinear" in published.text(PublishedPoint(4, 4.2))


@pytest.mark.parametrize(("world_size", "speedup"), [(1, 1.0), (128, 0.0)])
def test_a_point_that_cannot_be_one_is_refused(world_size, speedup):
    with pytest.raises(ConfigError, match="at least 2 workers"):
        PublishedPoint(world_size, speedup)
