import json
import re
from pathlib import Path

import pytest

from ddppo import predict
from ddppo.errors import ConfigError
from ddppo.study.predict import command


def said(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["predict", *arguments])
    predict.main()
    return capsys.readouterr().out


def refused(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["predict", *arguments])
    with pytest.raises(SystemExit) as e:
        predict.main()
    assert e.value.code == 2
    return capsys.readouterr().err


def write_run(folder, world_size, t_iter, rule="strong"):
    """Write a run folder of 12 iterations, without warm-up, as the trainer does."""
    folder.mkdir(parents=True)
    comm = 0.001 * (world_size - 1)
    rows, env_steps = [], 0
    for i in range(1, 13):
        env_steps += 128
        for rank in range(world_size):
            row = {"iteration": i, "rank": rank, "env_steps": env_steps, "wall_s": i * t_iter}
            rollout = 0.6 * t_iter + 1e-4 * ((rank + i) % 2)
            parts = {"t_rollout": rollout, "t_learn": 0.3 * t_iter, "t_sync": 0.0, "t_comm": comm}
            parts["t_other"] = t_iter - sum(parts.values())
            row |= {f"time/{k}": v for k, v in {"t_iter": t_iter, **parts}.items()}
            if rank == 0:
                row |= {"rollout/steps": 128.0}
            rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    config = {
        "seed": 0,
        "target_return": None,
        "env": {"id": "CartPole-v1", "backend": "sync"},
        "scaling": {"rule": rule},
        "dist": {"world_size": world_size},
    }
    summary = {
        "schema_version": 1,
        "status": "completed",
        "world_size": world_size,
        "env_steps": env_steps,
        "iterations": 12,
        "wall_s": 12 * t_iter,
        "fps": 128 / t_iter,
        "warmup": {"iterations": 0, "left_out": 0, "measured": 12, "too_few_iterations": False},
        "eval": {"final": None, "best": None},
        "target": None,
        "derived": {"N": 8, "T": 16, "K": 4, "M": 4, "num_parameters": 9667, "device": "cpu"},
        "config": config,
        "machine": {"cores": 8, "hostname": "h", "cpu": "c"},
        "started_at": f"2026-01-01T{world_size:02}:00:00+00:00",
        "finished_at": f"2026-01-01T{world_size:02}:01:00+00:00",
        "commit": "c",
        "dirty": False,
        "versions": {},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def sweep(tmp_path):
    for i, (world_size, t_iter) in enumerate([(1, 0.1), (2, 0.06), (4, 0.04)]):
        write_run(tmp_path / str(i), world_size, t_iter)
    return str(tmp_path)


def test_a_sweep_is_predicted_to_the_largest_w_that_divides_its_batch(sweep, capsys, monkeypatch):
    out = said(capsys, monkeypatch, sweep)
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line and line[0].isdigit()][:8] == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
        "128",
    ]
    assert "Which W" in out
    assert "cannot tell latency from bandwidth" in out


def test_runs_that_cannot_be_believed_are_told_first_and_no_w_is_recommended(sweep, capsys, monkeypatch):
    for path in Path(sweep).rglob("summary.json"):
        text = path.read_text()
        path.write_text(re.sub("2026-01-01T..:0", "2026-01-01T00:0", text))
    out = said(capsys, monkeypatch, sweep, "world_sizes=2")
    assert out.startswith("CANNOT BE BELIEVED: 3 of 3 runs shared the host h")
    assert "Which W" not in out


def test_changes_are_named_and_stand_beside_the_system_as_it_is(sweep, capsys, monkeypatch):
    out = said(capsys, monkeypatch, sweep, "world_sizes=8", "latency_s=0.01")
    assert "changed: latency_s=0.01" in out
    assert "as it is" in out


def test_a_published_point_needs_no_sweep(capsys, monkeypatch):
    assert "0.196" in said(capsys, monkeypatch, "published={world_size: 128, speedup: 107}")


def test_help_lists_every_setting(capsys, monkeypatch):
    with pytest.raises(SystemExit) as e:
        said(capsys, monkeypatch, "--help")
    assert e.value.code == 0
    out = capsys.readouterr().out
    for name in ("world_sizes", "published", "slow_factor", "latency_s"):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "sweep folder or a published point"),
        (("/nowhere",), "not a folder"),
        (("latencys=1",), "did you mean latency_s"),
        (("published={world_size: 128}",), "needs world_size and speedup"),
        (("published={world_size: 1, speedup: 1}",), "at least 2 workers"),
        (("published={world_size: many, speedup: 1}",), "are numbers"),
        (("published={world_size: 1e999, speedup: 3}",), "world_size=inf is above 1e+09"),
        (("published={world_size: 4, speedup: .nan}",), "speedup=nan is not a number above 0"),
        (("published={world_size: 4, speedup: true}",), "speedup=true is not a number above 0"),
        (("published={world_size: 128, speedup: 107}", "latency_s=1"), "excludes other settings"),
        (("x", "slow_factor=lots"), "slow_factor"),
        (("x", "fit_on=1,2", "latency_s=1"), "compares with measurements: leave latency_s out"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(arguments, message, capsys, monkeypatch):
    assert message in refused(capsys, monkeypatch, *arguments)


def test_world_sizes_that_cannot_be_are_refused(sweep, capsys, monkeypatch):
    assert "does not divide" in refused(capsys, monkeypatch, sweep, "world_sizes=999")
    assert "numbers of workers" in refused(capsys, monkeypatch, sweep, "world_sizes=few")
    assert "numbers of workers" in refused(capsys, monkeypatch, sweep, "world_sizes=0")


def test_what_was_measured_stands_beside_the_prediction_with_the_error(sweep, capsys, monkeypatch):
    out = said(capsys, monkeypatch, sweep, "world_sizes=4")
    (head,) = [line.split() for line in out.splitlines() if line.split()[-2:] == ["measured", "off"]]
    (line,) = [line.split() for line in out.splitlines() if line.startswith("    4")]
    assert head[-2:] == ["measured", "off"]
    assert line[-3] == "3,200"
    predicted = float(line[1].replace(",", ""))
    assert float(line[-2]) == pytest.approx(100 * (predicted / 3200 - 1), abs=0.06)


def test_a_model_fitted_to_some_world_sizes_is_compared_at_the_others(sweep, capsys, monkeypatch):
    out = said(capsys, monkeypatch, sweep, "fit_on=1,2", "world_sizes=4")
    last = out.splitlines()[-1]
    assert last.startswith("Held out: fitted on W=1, 2, ")
    assert "at W=4, where 3,200 were measured: off by " in last
    assert "Which W" not in out


@pytest.mark.parametrize(
    ("fit_on", "message"),
    [
        ("1,8", "W=8 was not measured; there are 1, 2, 4"),
        ("1,2,4", "leave out the one"),
        ("a", "numbers of workers"),
    ],
)
def test_world_sizes_to_fit_on_must_leave_one_measured_to_compare_at(
    sweep, capsys, monkeypatch, fit_on, message
):
    assert message in refused(capsys, monkeypatch, sweep, f"fit_on={fit_on}")


def test_of_strong_and_weak_scaling_the_larger_study_is_fitted_unless_one_is_asked_for(
    tmp_path, capsys, monkeypatch
):
    for i, (world_size, rule) in enumerate([(1, "strong"), (2, "strong"), (1, "weak")]):
        write_run(tmp_path / str(i), world_size, 0.1 / world_size, rule)
    out = said(capsys, monkeypatch, str(tmp_path), "world_sizes=2")
    assert out.startswith("CartPole-v1, strong scaling")
    assert "holds 2 studies" in out
    assert "env= and fit_rule= choose another" in out
    asked = said(capsys, monkeypatch, str(tmp_path), "world_sizes=1", "fit_rule=weak")
    assert asked.startswith("CartPole-v1, weak scaling")
    assert "no such run" in refused(capsys, monkeypatch, str(tmp_path), "env=Pong")


def test_an_empty_folder_is_no_sweep(tmp_path):
    options, what_if = predict._parsed([str(tmp_path)])
    with pytest.raises(ConfigError, match="no usable run"):
        command.predict(options, what_if)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("world_sizes=[]", "numbers of workers, e.g."),
        ("world_sizes=[1.5]", "numbers of workers, e.g."),
        ("world_sizes=0", "numbers of workers, e.g."),
        ("world_sizes=" + "9" * 40, "numbers of workers, e.g."),
        ("env_step_s=1e308", "must be at most"),
        ("bandwidth=1e-300", "must be at least 1"),
    ],
)
def test_numbers_that_nothing_could_follow_from_are_refused(sweep, capsys, monkeypatch, argument, words):
    assert words in refused(capsys, monkeypatch, sweep, argument)


def test_columns_stay_apart_whatever_the_numbers(sweep, capsys, monkeypatch):
    out = said(capsys, monkeypatch, sweep, "world_sizes=1,8", "env_step_s=50000")
    head, *rows = out.split("\n\n")[1].splitlines()
    assert len({len(line) for line in (head, *rows)}) == 1
    for row in rows:
        cells = row.split()
        assert len(cells) == 14  # the interval is three
        assert [float(cell.replace(",", "")) for cell in cells if cell != "to"]
        assert float(cells[1]) > 0  # a throughput below one step a second is not 0
