import pytest

from ddppo.errors import ConfigError
from ddppo.study.predict.usl import of_published_point, overhead


def test_an_overhead_of_a_fifth_is_what_a_speedup_of_107_at_128_means():
    assert overhead(128, 107) == pytest.approx(21 / 107)


def test_what_a_point_implies_is_said():
    # By hand: 256 / (1 + 21/107) = 214; 256 / (1 + 21/107 * 255/127) = 183.6; 127 * 107 / 21 = 647.1, E = 1/2 at 648.
    text = of_published_point(128, 107)
    assert "efficiency 83.6 %, overhead 0.196" in text
    assert "256 workers are 214.0 times" in text
    assert "183.6 and" in text
    assert "never above 647; half the workers are wasted beyond W=648" in text
    assert "Superlinear" in of_published_point(4, 4.2)


@pytest.mark.parametrize(("world_size", "speedup"), [(1, 1.0), (8, 0.0), (8, -1.0)])
def test_what_cannot_be_a_point_is_refused(world_size, speedup):
    with pytest.raises(ConfigError, match="at least 2 workers"):
        of_published_point(world_size, speedup)
