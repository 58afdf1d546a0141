"""What made-up rounds say: medians, fractions of limits, speedups, files that hold them."""

import dataclasses
import json

import pytest

from ddppo.errors import ConfigError
from ddppo.study.bench import results
from ddppo.study.bench.measured import summed_up
from ddppo.study.bench.results import (
    Measurement,
    Result,
    differences,
    differences_of_files,
    medians,
    read,
    speedups,
)
from ddppo.study.bench.workloads import configurations, fixed
from tests.support import CHECKOUT

LIMITS = {
    "num_processes": 1,
    "env_fps": 1000.0,
    "matrix_gflops": 100.0,
    "calls_per_s": 100.0,
    "collective_us": 25.0,
}


def measured(
    number, fps, *, world_size=1, rule="strong", code="this", machine=1.0, overrides=("a=1",), memory=300.0
):
    run = {
        "fps": fps, "t_iter": 1.0, "t_rollout": 0.5, "t_learn": 0.25, "t_sync": 0.125, "t_comm": 0.0625,
        "t_other": 0.0625, "start_up_s": 2.0, "memory_per_rank_mb": memory, "peak_rss_mb": 400.0, "wait_us": 10.0,
        "learn_gflops": 5.0,
    }  # fmt: skip
    limits = {name: value * machine for name, value in LIMITS.items()}
    return Measurement(number, code, "W1", world_size, rule, overrides, run, limits)


def result(*measurements, path="made_up.json", **about):
    return Result(path, about, measurements, "this")


def test_medians_are_over_rounds_and_parts_are_fractions():
    found = medians([measured(1, 100.0), measured(2, 300.0, memory=None), measured(3, 110.0)])
    assert (found["fps"], found["fps_low"], found["fps_high"], found["rounds"]) == (110.0, 100.0, 300.0, 3)
    assert found["fractions"] == {
        "t_rollout": 0.5, "t_learn": 0.25, "t_sync": 0.125, "t_comm": 0.0625, "t_other": 0.0625,
    }  # fmt: skip
    assert (found["of_env"], found["of_matrix"], found["relative_fps"]) == (0.11, 0.05, 1.1)
    assert found["memory_per_rank_mb"] == 300.0


def test_speedup_is_pair_by_pair_over_one_rank_and_over_the_w_before():
    rounds = []
    for number, fps in enumerate((100.0, 200.0, 50.0), start=1):  # the machine's speed
        rounds += [
            measured(number, fps),
            measured(number, 1.5 * fps, world_size=2),
            measured(number, 1.2 * fps, world_size=4),
            measured(number, 1.9 * fps, world_size=2, rule="weak"),
        ]
    rows = {row["configuration"]: row for row in speedups(rounds, "this")}
    assert list(rows) == ["W1 W=2", "W1 W=4", "W1 W=2 weak"]
    assert rows["W1 W=2"]["S"]["estimate"] == pytest.approx(1.5)
    assert rows["W1 W=4"]["S"]["estimate"] == pytest.approx(1.2)
    assert rows["W1 W=4"]["over"] == 2
    assert rows["W1 W=4"]["ratio"]["estimate"] == pytest.approx(0.8)
    assert rows["W1 W=2 weak"]["S"]["estimate"] == pytest.approx(1.9)
    assert "1.50" in results.table(rounds, "this")


def test_without_one_rank_there_is_no_speedup():
    rows = speedups([measured(1, 100.0, world_size=2), measured(1, 90.0, world_size=4)], "this")
    assert [row["S"] for row in rows] == [None, None]
    assert rows[1]["ratio"]["estimate"] == 0.9


def test_two_codes_are_compared_round_by_round():
    rounds = [
        measured(number, factor * fps, code=code)
        for number, fps in enumerate((100.0, 200.0, 50.0, 100.0, 100.0), start=1)
        for code, factor in (("this", 0.9), ("old", 1.0))
    ]
    (ratio,) = differences(rounds, "this", "old").values()
    assert ratio.verdict(0.05) == "slower"
    assert "slower" in results.verdicts({"W1 W=1": ratio}, 0.05, against="old")


def test_a_slower_machine_is_not_slower_code():
    old = result(*(measured(number, 100.0 + number) for number in range(3)))
    new = result(*(measured(number, 50.0 + number / 2, machine=0.5) for number in range(3)))
    ratios, _ = differences_of_files(new, old)
    assert ratios["W1 W=1"].estimate == pytest.approx(1.0)


def test_slower_code_is_found_on_a_faster_machine():
    old = result(*(measured(number, 100.0 + number) for number in range(3)))
    new = result(*(measured(number, 160.0 + number, machine=2.0) for number in range(3)))
    ratios, _ = differences_of_files(new, old)
    assert ratios["W1 W=1"].verdict(0.05) == "slower"


def test_what_two_files_do_not_share_is_named():
    old = result(*(measured(n, 100.0) for n in range(3)), path="old.json", machine={"cpu": "a"})
    new = result(
        *(measured(n, 100.0) for n in range(3)),
        *(measured(n, 100.0, world_size=2) for n in range(3)),
        path="new.json",
        machine={"cpu": "b"},
    )
    _, remarks = differences_of_files(new, old)
    assert remarks == [
        "W1 W=2 is only in new.json",
        "another machine, cpu b instead of a: read with care",
    ]
    changed = result(*(measured(n, 100.0, overrides=("a=2",)) for n in range(3)), path="changed.json")
    with pytest.raises(ConfigError, match=r"changed\.json and old\.json have no configuration in common"):
        differences_of_files(changed, old)


def test_a_result_reads_back_as_itself(tmp_path):
    path = tmp_path / "there" / "a.json"
    result(measured(1, 100.0), measured(1, 150.0, world_size=2), path=str(path), git_commit="abc").write()
    found = read(str(path))
    assert found.about["git_commit"] == "abc"
    assert [each.run["fps"] for each in found.measurements] == [100.0, 150.0]
    assert json.loads(path.read_text())["schema_version"] == 1


def test_a_history_gets_a_line_per_configuration(tmp_path):
    path = tmp_path / "history.jsonl"
    for commit in ("a", "b"):
        result(
            measured(1, 100.0), measured(1, 150.0, world_size=2), path=str(path), git_commit=commit
        ).write()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["git_commit"], line["configuration"], line["fps"]) for line in lines] == [
        ("a", "W1 W=1", 100.0), ("a", "W1 W=2", 150.0), ("b", "W1 W=1", 100.0), ("b", "W1 W=2", 150.0),
    ]  # fmt: skip
    assert lines[0]["S"] is None
    assert lines[1]["S"]["estimate"] == 1.5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a result"),
        ('{"kind": "other"}', "not a result"),
        ('{"kind": "ddppo.bench", "schema_version": 99}', "schema_version=99"),
        ('{"kind": "ddppo.bench", "schema_version": 1, "code": "this"}', "damaged"),
        ('{"kind": "ddppo.bench", "schema_version": 1, "code": "this", "measurements": [{}]}', "damaged"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, content, said):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read(str(tmp_path / "nothing.json"))


def line(iteration, rank, wall_s, t_iter):
    parts = {"t_rollout": 0.5, "t_learn": 0.25, "t_sync": 0.125, "t_comm": 0.0625, "t_other": 0.0625}
    times = {f"time/{name}": share * t_iter for name, share in parts.items()}
    position = {"iteration": iteration, "rank": rank, "env_steps": 64 * iteration, "wall_s": wall_s}
    return position | times | {"time/t_iter": t_iter}


def test_a_run_is_summed_up_without_its_warm_up():
    """Two ranks; the third iteration is the first that ends half a second after the first, and so still warm-up."""
    walls = {1: 5.0, 2: 5.2, 3: 5.6, 4: 5.8, 5: 6.0}
    lines = [
        line(i, rank, wall_s, t_iter=1.0 if i < 4 else 0.2) for i, wall_s in walls.items() for rank in (0, 1)
    ]
    sizes = {"K": 2, "M": 4, "B": 64, "num_parameters": 1000, "threads_per_rank": 1}
    found = summed_up(lines, sizes, warmup_s=0.5)
    assert found["iterations"] == 2
    assert found["fps"] == pytest.approx(128 / 0.4)
    assert found["t_iter"] == pytest.approx(0.2)
    assert found["wait_us"] == pytest.approx(1e6 * (0.125 + 0.0625) * 0.2 / 8)
    assert found["learn_gflops"] == pytest.approx(6 * 1000 * 64 * 2 / 0.05 / 1e9)


def test_the_floor_that_ci_compares_with_has_the_settings_that_the_bench_measures():
    floor = results.read(str(CHECKOUT / "experiments" / "speed" / "floor.json"))
    (configuration,) = configurations(fixed("W1"), [1], ["strong"])
    now = [dataclasses.replace(each, overrides=list(configuration.overrides)) for each in floor.measurements]
    ratios, remarks = differences_of_files(dataclasses.replace(floor, measurements=now), floor)
    assert ratios["W1 W=1"].estimate == pytest.approx(1.0)
    assert remarks == []
