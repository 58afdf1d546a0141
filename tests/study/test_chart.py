import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddppo.study.page.chart import Axis, Chart, named, stylesheet, workers

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart):
    return ElementTree.fromstring(chart.svg(standalone=True))


def linear(**more):
    return Chart("name", "title", Axis("x"), Axis("y", **more))


def texts(chart, kind):
    return [e.text for e in drawn(chart).iter(f"{SVG}text") if e.get("class") == kind]


def test_a_line_joins_its_points_and_breaks_where_one_is_not_finite():
    chart = linear()
    chart.line([0, 1, 2, 3, 4], [0, 1, math.nan, 3, math.inf], "blue")
    (line,) = [e for e in drawn(chart).iter(f"{SVG}path") if e.get("class") == "line blue"]
    assert re.sub(r"[\d. ]+", "", line.get("d")) == "MLM"


def test_a_pointer_is_told_what_is_said_of_each_point_whatever_characters_it_has():
    chart = linear()
    chart.dots([1, 2, 3], [1, math.nan, 3], "red", ["<first>", "unknown", 'the "last" & least'])
    assert [e.text for e in drawn(chart).iter(f"{SVG}title")] == ["<first>", 'the "last" & least']


def test_larger_values_are_further_up_and_to_the_right():
    chart = Chart("name", "", workers([1, 2, 4]), Axis("", "log2"))
    chart.dots([1, 2, 4], [1, 2, 4], "blue", ["", "", ""])
    xs, ys = zip(
        *((float(c.get("cx")), float(c.get("cy"))) for c in drawn(chart).iter(f"{SVG}circle")), strict=True
    )
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)  # powers of two are as far apart
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert ys[0] > ys[1]


@pytest.mark.parametrize(
    ("scale", "values", "ticks"),
    [
        ("linear", [0, 100], ["0", "20", "40", "60", "80", "100"]),
        ("linear", [-0.3, 0.3], ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]),
        ("linear", [0, 2_400_000], ["0", "500k", "1M", "1.5M", "2M", "2.5M"]),
        ("log2", [0.25, 8], ["0.25", "0.5", "1", "2", "4", "8"]),
        ("log2", [1 / 32, 2], ["1/32", "1/16", "1/8", "0.25", "0.5", "1", "2"]),
        ("log10", [3, 700], ["5", "10", "20", "50", "100", "200", "500"]),
        ("log10", [1, 1e6], ["1", "10", "100", "1k", "10k", "100k", "1M"]),
    ],
)
def test_ticks_are_round_numbers(scale, values, ticks):
    chart = linear(scale=scale)
    chart.line([0, 1], values, "blue")
    assert texts(chart, "end") == ticks


def test_an_axis_of_many_names_shows_some_of_them():
    chart = Chart("name", "", named([str(r) for r in range(64)], "rank"), Axis("y", shows=(0,)))
    for rank in range(64):
        chart.bar(rank, 0, 1, "blue", "")
    assert texts(chart, "mid")[:-2] == [str(r) for r in range(0, 64, 4)]
    assert len(list(drawn(chart).iter(f"{SVG}rect"))) == 64


def test_an_axis_that_shows_0_stands_on_it():
    chart = linear(shows=(0,))
    chart.bar(1, 0, 5, "blue", "")
    (bar,) = drawn(chart).iter(f"{SVG}rect")
    assert float(bar.get("y")) + float(bar.get("height")) == pytest.approx(208, abs=0.1)


def test_what_has_nothing_to_draw_is_not_in_the_legend():
    chart = linear()
    chart.line([], [], "red", "model")
    chart.band([1], [math.nan], [2], "red")
    chart.whisker(1, math.nan, math.nan)
    chart.line([1, 2], [1, 2], "blue", "measured")
    svg = chart.svg()
    assert "model" not in svg
    assert "measured" in svg
    assert "band" not in svg


@given(
    scale=st.sampled_from(["linear", "log2", "log10"]),
    values=st.lists(st.floats(width=32) | st.integers(-5, 5).map(float), min_size=1, max_size=8),
)
def test_no_value_leaves_the_picture(scale, values):
    chart = Chart("name", "", Axis("x"), Axis("y", scale))
    places = list(range(len(values)))
    chart.line(places, values, "blue", "a label")
    chart.seeds(places, values, "red", [""] * len(values))
    chart.band(places, values, values, "green")
    chart.whisker(0, values[0], values[-1])
    chart.bar(0, 0, values[0] if math.isfinite(values[0]) else 1, "grey", "")
    root = drawn(chart)
    for circle in root.iter(f"{SVG}circle"):
        assert 54 <= float(circle.get("cx")) <= 390
        assert 26 <= float(circle.get("cy")) <= 208
    shapes = [
        value for e in root.iter() for key, value in e.items() if key in ("d", "points", "x", "y", "height")
    ]
    assert not re.search("nan|inf", " ".join(shapes))


def test_the_style_has_every_colour_in_light_dark_and_print():
    css = stylesheet("chart.css")
    for name in ("blue", "orange", "green", "red", "purple", "sky", "grey", "ink"):
        assert f"--{name}:" in css
        assert f".{name} {{ --c: var(--{name}) }}" in css
    assert "prefers-color-scheme: dark" in css
    assert "@media print" in css


def test_a_band_beyond_its_bounds_does_not_stretch_the_axis_and_ends_at_the_frame():
    chart = linear(shows=(0,))
    chart.line([0, 1], [0, 1], "blue")
    chart.band([0, 1], [0, 0], [100, 100], "blue", within=(0, 2))
    assert max(map(float, texts(chart, "end"))) == 2
    (band,) = drawn(chart).iter(f"{SVG}polygon")
    assert min(float(point.split(",")[1]) for point in band.get("points").split()) == 26
