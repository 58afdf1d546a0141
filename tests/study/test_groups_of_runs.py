"""`python -m ddppo.runs plot`: curves of groups of runs, ours and those of other programs."""

import csv
import re

import numpy as np
import pytest

from ddppo.errors import ConfigError, RunFolderError
from ddppo.records.event_file import EventFile
from ddppo.study.page.png import png
from ddppo.study.runs.command import plot
from ddppo.study.runs.groups import PlotOptions, grouped
from ddppo.study.runs.plot import groups_chart
from ddppo.study.runs.records import read_records
from tests.study.test_history import write_run
from tests.study.test_runs_door import answered


def runs(folder, gamma, seeds=5, points=6):
    for seed in range(seeds):
        returns = tuple(10.0 * seed + 100 * gamma * i for i in range(points))
        write_run(folder / f"{gamma}_{seed}", returns=returns, seed=seed, gamma=gamma)


def events(folder, tag, points, table=""):
    """Write the event file of another program."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    file = EventFile(folder)
    if table:
        text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        words = TensorProto(dtype=7, string_val=[table.encode()])
        value = Summary.Value(tag="hyperparameters/text_summary", metadata=text, tensor=words)
        file.add(Summary(value=[value]), 0)
    for step, number in points:
        file.add(Summary(value=[Summary.Value(tag=tag, simple_value=number)]), step)
    file.close()


def test_the_line_is_the_iqm_over_seeds_and_the_band_its_bootstrap(tmp_path):
    from scipy.stats import (
        trim_mean,
    )  # 1.6 s, which each process of the tests would take to collect this file

    runs(tmp_path, 0.9, seeds=8)
    runs(tmp_path, 0.99, seeds=2)
    found = grouped(PlotOptions(str(tmp_path), group="ppo.gamma", statistic="iqm"), {})
    first, second = found.groups
    held = np.array([[10.0 * seed + 90 * i for i in range(6)] for seed in range(8)])
    assert first.grid == [100, 200, 300, 400, 500, 600]
    assert first.middle == pytest.approx(trim_mean(held, 0.25, axis=0))
    # The percentile bootstrap over runs, as rliable has it: here with draws of its own.
    draws = trim_mean(held[np.random.default_rng(1).integers(8, size=(4000, 8))], 0.25, axis=1)
    assert first.low == pytest.approx(np.percentile(draws, 2.5, axis=0), abs=3)
    assert first.high == pytest.approx(np.percentile(draws, 97.5, axis=0), abs=3)
    # Two seeds have no band, and a sentence says so.
    assert np.isnan(second.low).all()
    assert found.notes == ["ppo.gamma=0.99: 2 runs, too few for a band (3)"]


def test_curves_of_other_lengths_are_held_not_interpolated_and_end_with_the_shortest(tmp_path):
    write_run(tmp_path / "a", returns=(0.0, 10.0, 20.0, 30.0), seed=0)
    write_run(tmp_path / "b", returns=(1.0, 2.0), seed=1, gamma=0.5)
    found = grouped(PlotOptions(str(tmp_path), window=2), {})
    (group,) = found.groups
    assert (group.label, group.grid, group.middle) == ("all runs", [100, 200], [0.5, 3.25])
    assert "all runs: ends at 200 steps, with b; others go to 400" in found.notes
    assert "all runs: its runs differ in ppo.total_steps, ppo.gamma, not in their seeds only" in found.notes
    hours = grouped(PlotOptions(str(tmp_path), x="hours"), {}).groups[0]
    assert hours.grid == pytest.approx([0.5 / 3600, 1 / 3600])


def test_curves_that_hide_one_another_are_named_and_long_titles_are_cut(tmp_path):
    for w in (1, 2):
        for seed in range(3):
            write_run(tmp_path / f"w{w}_{seed}", returns=(1.0, 2.0 + seed), seed=seed, world_size=w)
    options = PlotOptions(str(tmp_path), group="dist.world_size,env.id,ppo.learning_rate")
    found = grouped(options, {})
    (note,) = found.notes
    assert note.startswith("dist.world_size=1, env.id=CartPole-v1, ppo.learning_rate=")
    assert note.endswith(": the same curve")
    assert groups_chart(found).title == "rollout/return_mean"
    assert png(groups_chart(found)).startswith(b"\x89PNG")


def test_a_report_beside_the_runs_is_no_run(tmp_path):
    runs(tmp_path, 0.9, seeds=3)
    events(tmp_path / "report" / "tensorboard", "rollout/return_mean", [(1, 0.0), (2, 0.0)])
    (tmp_path / "report" / "summary.json").write_text('{"schema_version": 1, "kind": "report"}')
    assert [row.name for row in read_records(tmp_path)] == ["0.9_0", "0.9_1", "0.9_2"]
    (group,) = grouped(PlotOptions(str(tmp_path)), {}).groups
    assert len(group.members) == 3


def test_event_files_of_other_programs_are_runs(tmp_path):
    for seed in (1, 2, 3):  # CleanRL: an episode a point, several at one step, and a table of arguments
        table = f"|param|value|\n|-|-|\n|env_id|CartPole-v1|\n|learning_rate|0.1|\n|seed|{seed}|"
        points = [(0, 0.0), (10, 4.0), (10, 8.0), (20, 9.0)]
        events(tmp_path / f"CartPole-v1__ppo__{seed}__17{seed}", "charts/episodic_return", points, table)
    events(tmp_path / "SB3_1", "rollout/ep_rew_mean", [(0, 1.0), (20, 2.0)])
    runs(tmp_path / "ours", 0.9, seeds=1)
    both = "charts/episodic_return,rollout/ep_rew_mean,rollout/return_mean"
    found = grouped(PlotOptions(str(tmp_path), group="name", metric=both), {})
    assert [(g.label, len(g.members)) for g in found.groups] == [
        ("0.9", 1),
        ("CartPole-v1__ppo", 3),
        ("SB3", 1),
    ]
    assert found.groups[1].middle == [0, 6, 9]
    # Their arguments are settings: keys of groups and filters.
    found = grouped(PlotOptions(str(tmp_path), group="learning_rate,seed"), {"seed": "2"})
    assert [g.label for g in found.groups] == ["learning_rate=0.1, seed=2"]
    assert found.metric == "charts/episodic_return"


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_the_command_writes_a_picture_and_its_points_and_prints_a_table(tmp_path, monkeypatch, capsys, kind):
    runs(tmp_path, 0.9, seeds=3)
    runs(tmp_path, 0.99, seeds=2)
    file = tmp_path / f"curves.{kind}"
    out, err, code = answered(
        monkeypatch, capsys, "plot", tmp_path, "group=ppo.gamma", "metric=rollout/return_mean", f"file={file}"
    )
    assert (code, err) == (0, "")
    rows = [re.split(r" {2,}", line) for line in out.splitlines()]
    assert rows[0] == ["group", "runs", "steps", "mean halfway", "at the end", "95 %"]
    assert rows[1][:5] == ["ppo.gamma=0.9", "3", "600", "190", "460"]
    assert rows[2][-1] == "–"
    points = list(csv.DictReader(file.with_suffix(".csv").read_text().splitlines()))
    assert (len(points), points[5]["ppo.gamma"], points[5]["steps"], points[5]["mean"]) == (
        12,
        "0.9",
        "600",
        "460",
    )
    picture = file.read_bytes()
    if kind == "png":
        from PIL import Image

        with Image.open(file) as image:
            assert image.size[0] == 1200
            colours = {colour for _, colour in image.getcolors(1 << 20)}
        assert {(0, 114, 178), (230, 159, 0)} <= colours  # the lines: blue and orange of chart.css
    else:
        assert picture.count(b'class="band') == 1
        assert picture.count(b"thin") >= 2  # the two runs without a band
        assert (b"95 % percentile-bootstrap" in picture) is (kind == "html")


@pytest.mark.parametrize(
    ("options", "filters", "said"),
    [
        ({"file": "curves.jpg"}, {}, "file=curves.jpg: a file that ends in .png, .svg or .html"),
        ({"file": "nowhere/curves.png"}, {}, "file=nowhere/curves.png: there is no folder nowhere"),
        ({"group": "ppo.gama"}, {}, "ppo.gama: none of the runs has such a setting (did you mean ppo.gamma"),
        ({"metric": "rollout/return"}, {}, "none of the 10 runs has it (did you mean rollout/return_mean"),
        ({"group": "run"}, {}, "10 groups, and a picture has at most 8"),
        ({}, {"ppo.gamma": "0.8"}, "no run with ppo.gamma=0.8"),
        ({"others": ["{}/none"]}, {}, "is not a folder"),
        ({"others": ["{}-pole"]}, {}, "all runs has runs of CartPole-v1, Other-v1, whose mean"),
        ({"others": ["{}-bad"]}, {}, "no curve"),
    ],
)  # fmt: skip
def test_what_cannot_be_plotted_is_one_sentence(tmp_path, options, filters, said):
    folder = tmp_path / "x"
    runs(folder, 0.9)
    runs(folder, 0.99)
    write_run(tmp_path / "x-pole" / "a", env="Other-v1")
    (tmp_path / "x-bad").mkdir()
    (tmp_path / "x-bad" / "events.out.tfevents.1.x.1").write_bytes(
        b"no events at all, but longer than a head"
    )
    options["others"] = [each.format(folder) for each in options.get("others", [])]
    if said == "no curve":  # a damaged event file is an empty run, and named
        assert (
            "1 of 11 runs have no such metric: x-bad"
            in grouped(PlotOptions(str(folder), **options), {}).notes
        )
        return
    with pytest.raises((ConfigError, RunFolderError)) as e:
        plot(PlotOptions(str(folder), **options), filters)
    assert said in str(e.value)
    assert "\n" not in str(e.value)
