"""Whatever stands in the files that a report and a prediction read: what cannot be used is named, nothing else changes.

The records of the trainer, and tables, are damaged at random. `DDPPO_GARBAGE=500` tries so many sweeps and tables
instead of the few of every test run.
"""

import json
import math
import os
import random
import shutil
from pathlib import Path

import pytest

from ddppo.errors import ConfigError
from ddppo.study.page.files import make_report, on_terminal
from ddppo.study.page.tables import run_row
from ddppo.study.predict.command import PredictConfig, predict
from ddppo.study.predict.model import WhatIf
from ddppo.study.report import ReportOptions, compute, read
from tests.study.scaling_folders import trained

COUNT = int(os.environ.get("DDPPO_GARBAGE", "3"))
DAMAGED = 30  # runs of a sweep
LONGEST = 700  # characters of what is said of one folder, its path included
HEALTHY_SEED = 7
NUMBERS = (
    0,
    -1,
    1,
    2,
    3.5,
    100,
    10**6,
    10**9,
    -2.5,
    1e-320,
    1e-12,
    1e12,
    1e20,
    1e308,
    -1e308,
    10**18,
    10**400,
    -(10**30),
)
FOREIGN = (
    None, True, False, "", "x", "5", "inf", "é\u202e\n\x00", "\ud800", "$x^{", "<script>", "y" * 200_000,
    [], {}, [1], {"a": 1}, [[[[None]]]], math.nan, math.inf, -math.inf,
)  # fmt: skip
# Of every run: a value of another type here, or one that is not finite, is damage.
NEEDED = {
    ("world_size",), ("iterations",), ("env_steps",), ("wall_s",), ("fps",), ("schema_version",), ("status",),
    ("warmup", "iterations"), ("warmup", "left_out"), ("warmup", "measured"), ("warmup", "too_few_iterations"),
    ("derived", "N"), ("derived", "T"), ("derived", "K"), ("derived", "M"), ("derived", "num_parameters"),
    ("config", "seed"), ("config", "env", "id"), ("config", "scaling", "rule"),
    ("warmup",), ("derived",), ("config",), ("config", "env"), ("config", "scaling"), ("eval",),
}  # fmt: skip
NEEDED_IN_LINE = {
    "iteration",
    "rank",
    *(f"time/t_{n}" for n in ("iter", "rollout", "learn", "sync", "comm", "other")),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A healthy run of W = 1, 2 and 4, and four that are damaged in copies: plain, resumed, with another W, weak."""
    folder = tmp_path_factory.mktemp("originals")
    for world_size in (1, 2, 4):
        trained(folder / f"healthy{world_size}", (world_size, 12, 0.6 / world_size), seed=HEALTHY_SEED)
    trained(folder / "plain", (2, 12, 0.3))
    trained(folder / "resumed", (2, 6, 0.3), (2, 6, 0.3))
    trained(folder / "mixed", (4, 6, 0.15), (2, 6, 0.3))
    trained(folder / "weak", (2, 12, 0.3), rule="weak")
    return folder


def places(value, path=()):
    """Every path into nested dicts and lists."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [inner for key, item in items for inner in places(item, (*path, key))]


def put(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def get(value, path):
    for key in path:
        value = value[key]
    return value


def is_damage(old, new):
    """Whether no trainer could have written `new` where it wrote `old`."""
    number = isinstance(old, (int, float)) and not isinstance(old, bool)
    if number:
        return not isinstance(new, (int, float)) or isinstance(new, bool) or not abs(new) < math.inf
    return type(new) is not type(old) or (
        isinstance(old, str) and new not in ("weak", "strong") and new == ""
    )


def damage_summary(folder, rng):
    """Damage summary.json; return whether the run must be left out, and what was done."""
    path = folder / "summary.json"
    text = path.read_text()
    kind = rng.choice(["replace"] * 12 + ["needed"] * 8 + ["drop", "truncate", "bytes", "twice", "deep"])
    summary = json.loads(text)
    if kind in ("replace", "needed", "drop"):
        where = rng.choice(sorted(NEEDED) if kind == "needed" else places(summary))
        new, old = rng.choice(FOREIGN + NUMBERS), get(summary, where)
        if kind == "drop" and isinstance(where[-1], str):
            del get(summary, where[:-1])[where[-1]]
        else:
            put(summary, where, new)
        path.write_text(json.dumps(summary))
        must = where in NEEDED and (kind == "drop" or is_damage(old, new))
        return must, f"{kind} {where} by {str(new)[:40]!r}"
    place = rng.randrange(1, len(text) - 2)
    if kind == "truncate":
        path.write_text(text[:place])
    elif kind == "bytes":
        path.write_bytes(text[:place].encode() + rng.randbytes(9) + text[place:].encode())
    elif kind == "twice":
        path.write_text(text.rstrip().removesuffix("}") + ', "fps": [1e999]}')
    else:
        path.write_text('{"schema_version": ' + "[" * 100_000)
    return kind != "bytes", kind


def damage_metrics(folder, rng):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kind = rng.choice(
        ["replace"] * 12 + ["lose", "drop", "twice", "swap", "truncate", "bytes", "empty", "long"]
    )
    place = rng.randrange(len(lines))
    if kind in ("replace", "lose"):
        line = json.loads(lines[place])
        name, new = rng.choice(sorted(line)), rng.choice(FOREIGN + NUMBERS)
        old = line.pop(name)
        if kind == "replace":
            line[name] = new
        lines[place] = json.dumps(line) + "\n"
        must = name in NEEDED_IN_LINE and (kind == "lose" or is_damage(old, new))
        path.write_text("".join(lines))
        return must, f"{kind} {name} of line {place + 1} by {str(new)[:40]!r}"
    if kind == "drop":
        del lines[place]
    elif kind == "twice":
        lines.insert(place, lines[place])
    elif kind == "swap":
        lines[place - 1], lines[place] = lines[place], lines[place - 1]
    elif kind == "truncate":
        lines[place:] = [lines[place][: len(lines[place]) // 2]]
    elif kind == "long":
        lines[place] = "[" * 3_000_000 + "\n"
    text = "" if kind == "empty" else "".join(lines)
    path.write_bytes(text.encode() + (rng.randbytes(99) if kind == "bytes" else b""))
    return True, f"{kind} line {place + 1}"


def rows_by_path(report):
    return {run.path: run_row(run) for each in report.studies for run in each.study.runs}


def checked(report, unusable, healthy):
    said = {item.path: str(item) for item in report.left_out}
    for path, done in unusable.items():
        assert path in said, f"{path}: {done}, and nothing is said"
    for text in said.values():
        assert len(text) < LONGEST
        assert text.isprintable()
    rows = rows_by_path(report)
    for path, row in healthy.items():
        assert json.dumps(rows[path]) == json.dumps(row)


def options(path, **more):
    return ReportOptions(path=str(path), **more)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_damaged_run_is_named_and_the_healthy_ones_are_reported_unchanged(originals, tmp_path, seed):
    rng = random.Random(seed)
    for world_size in (1, 2, 4):
        shutil.copytree(originals / f"healthy{world_size}", tmp_path / f"healthy{world_size}")
    healthy = rows_by_path(compute(options(tmp_path), read(options(tmp_path))))
    assert len(healthy) == 3
    must_go = {}
    for i in range(DAMAGED):
        folder = tmp_path / f"damaged{i}"
        shutil.copytree(originals / rng.choice(["plain", "resumed", "mixed", "weak"]), folder)
        summary = json.loads((folder / "summary.json").read_text())
        summary["config"]["seed"] = 100 + i
        (folder / "summary.json").write_text(json.dumps(summary))
        must, done = rng.choice([damage_summary, damage_metrics])(folder, rng)
        if must:
            must_go[str(folder)] = done
    if seed == 0:
        report, out = make_report(options(tmp_path))
        on_terminal(report, out).encode()
        assert all(path in (out / "report.html").read_text() for path in must_go)
        shutil.rmtree(out)
    else:
        report = compute(options(tmp_path), read(options(tmp_path)))
    checked(report, must_go, healthy)
    text = predict(PredictConfig(folder=str(tmp_path), world_sizes="1,2,4", fit_rule="strong"), WhatIf())
    for path in must_go:
        assert path in text
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_run_whose_damage_does_not_show_breaks_nothing_alone_among_healthy_ones(originals, tmp_path, seed):
    # In a sweep of many damaged runs one with other settings is not computed with; here it is the largest W.
    rng = random.Random(1000 + seed)
    for world_size in (1, 2):
        shutil.copytree(originals / f"healthy{world_size}", tmp_path / f"healthy{world_size}")
    folder = tmp_path / "damaged"
    shutil.copytree(originals / "healthy4", folder)
    _, done = rng.choice([damage_summary, damage_metrics])(folder, rng)
    report = compute(options(tmp_path), read(options(tmp_path)))
    rows = rows_by_path(report)
    assert {str(tmp_path / "healthy1"), str(tmp_path / "healthy2")} <= rows.keys(), done
    predict(PredictConfig(folder=str(tmp_path), world_sizes="1,2,4"), WhatIf())


HEAD = [
    "world_size",
    "fps",
    "seed",
    "env_steps",
    "wall_s",
    "num_envs",
    "rollout_steps",
    "final_return",
    "t_iter",
]
HEAD += [f"t_{name}" for name in ("rollout", "learn", "sync", "comm", "other")]
HEAD += ["target_return", "time_to_target_s", "cores", "threads_per_rank", "rule"]
CELLS = (
    "",
    "x",
    "inf",
    "-inf",
    "nan",
    "1e999",
    "1e308",
    "-3",
    "0",
    "0.5",
    "1e-320",
    "9" * 400,
    "z" * 200_000,
    '"',
    "\0",
    "é;,\t",
)


def row_of(world_size, seed):
    t = 0.8 / world_size
    times = [t, *[t / 5] * 5]
    return [
        world_size,
        100 * world_size,
        seed,
        1000,
        10 / world_size,
        8,
        10,
        5.0,
        *times,
        4.0,
        3.0,
        64,
        1,
        "strong",
    ]


@pytest.mark.parametrize("seed", range(5 * COUNT))
def test_a_damaged_row_of_a_table_is_named_and_the_healthy_ones_are_reported_unchanged(tmp_path, seed):
    rng = random.Random(seed)
    as_json = rng.random() < 0.5
    table = tmp_path / ("table.jsonl" if as_json else "table.csv")
    rows = [row_of(w, 1000) for w in (1, 2, 4)]
    lines, must_go = ([] if as_json else [",".join(HEAD)]), []
    for i in range(20):
        row = row_of(rng.choice([1, 2, 4]), i + 1)
        bad = rng.random() < 0.5
        for _ in range(rng.choice([1, 1, 2]) if bad else 0):
            row[rng.randrange(len(row))] = rng.choice(FOREIGN + NUMBERS) if as_json else rng.choice(CELLS)
        rows.append(row)
    for row in rows:
        text = json.dumps(dict(zip(HEAD, row, strict=True))) if as_json else ",".join(map(str, row))
        if row not in rows[:3] and rng.random() < 0.1:
            text = rng.choice(["[1, 2]", "{", "[" * 100_000, '"', "\x00\x01\udc80", "1," * 40])
            must_go.append(f"{table}, line {len(lines) + 1}")
        lines.append(text)
    table.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    only = tmp_path / ("only.jsonl" if as_json else "only.csv")
    only.write_text("\n".join(lines[: 3 if as_json else 4]))
    healthy = rows_by_path(compute(options(only), read(options(only))))
    report = compute(options(table), read(options(table)))
    same = {path.replace(str(only), str(table)): row for path, row in healthy.items()}
    for path, row in same.items():
        row["path"], row["env_id"] = path, "table"
    checked(report, dict.fromkeys(must_go, "no row"), same)


@pytest.mark.parametrize("name", ["random.csv", "random.jsonl", "summary.json"])
def test_bytes_at_random_are_one_clear_sentence(tmp_path, name):
    path = tmp_path / "run" / name
    for seed in range(5):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.Random(seed).randbytes(3000))
        for given in {str(path if path.suffix != ".json" else tmp_path)}:
            with pytest.raises(ConfigError) as e:
                compute(options(given), read(options(given)))
            assert len(str(e.value)) < 20 * LONGEST


def test_a_folder_with_a_name_that_is_no_text_is_named(originals, tmp_path):
    shutil.copytree(originals / "healthy1", tmp_path / "healthy")
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n$x^{"))
    shutil.copytree(originals / "healthy2", folder)
    (folder / "metrics.jsonl").unlink()
    report, out = make_report(options(tmp_path))
    assert [item.path for item in report.left_out] == [f"{tmp_path}/caf\\xe9\\n$x^{{"]
    assert "caf\\xe9" in (out / "report.html").read_text()
