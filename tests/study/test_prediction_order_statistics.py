import pytest

from ddppo.study.predict.parameters import normal_expected_max


@pytest.mark.parametrize(
    ("world_size", "table"),
    [(1, 0.0), (2, 0.56419), (3, 0.84628), (4, 1.02938), (10, 1.53875), (100, 2.50759), (1000, 3.24144)],
)
def test_expected_maxima_of_normals_are_those_of_the_tables(world_size, table):
    # Harter 1961, Expected values of normal order statistics, Biometrika 48
    assert normal_expected_max(world_size) == pytest.approx(table, abs=6e-6)
