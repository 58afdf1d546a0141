import csv
import errno
import json
import re
import sys
from xml.etree import ElementTree

import pytest

from ddppo import report as door
from ddppo.errors import ConfigError
from ddppo.study.page import files as report_files
from ddppo.study.page.files import make_report, on_terminal
from ddppo.study.page.tables import study_table
from ddppo.study.report import ReportOptions, compute, read
from tests.study.scaling_folders import change_summary, write_run

PUBLISHED = "W,FPS\n1,34985.84\n2,27694.95\n4,14262.60\n"
COLUMNS = {"world_size": "W", "fps": "FPS"}


def options(path, **more):
    return ReportOptions(path=str(path), **more)


def whole(path, **more):
    chosen = options(path, **more)
    return compute(chosen, read(chosen))


def computed(path, **more):
    """The report of the only study there."""
    (found,) = whole(path, **more).studies
    return found


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for world_size, t_iter in ((1, 0.5), (2, 0.3), (4, 0.2)):
        for seed in range(2):
            name = folder / f"{world_size}-{seed}"
            write_run(name, world_size, seed, t_iter=t_iter + 0.01 * seed, target_return=70.0)
    (folder / "broken").mkdir()
    (folder / "broken" / "summary.json").write_text("")
    make_report(options(folder))
    return folder


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_published_table_gives_its_speedup_and_efficiency_and_fails(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(PUBLISHED)
    report = computed(table, columns=COLUMNS)
    assert [round(row.speedup.median, 3) for row in report.study.rows] == [1.0, 0.792, 0.408]
    assert [round(row.efficiency.median, 3) for row in report.study.rows] == [1.0, 0.396, 0.102]
    assert [c.result for c in report.criteria] == ["FAIL", "NOT MEASURED"]


def test_a_table_of_throughput_alone_has_one_line_of_predictions_and_one_sentence_why(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(PUBLISHED)
    report, folder = make_report(options(table, columns=COLUMNS))
    (each,) = report.studies
    assert [why.world_size for why in each.why] == [4]
    speedup = (folder / "plots" / "speedup.svg").read_text()
    assert speedup.count("scalability law") == 1
    assert "model" not in speedup
    assert "<th>iteration</th>" not in (folder / "report.html").read_text()


def test_jsonl_and_semicolons_are_read_too(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"W": 1, "FPS": 10}\n\n{"W": 2, "FPS": 15}\n')
    (tmp_path / "a.csv").write_text("world_size;fps\n1;10\n2;15\n")
    for report in (computed(tmp_path / "a.jsonl", columns=COLUMNS), computed(tmp_path / "a.csv")):
        assert [row.fps.median for row in report.study.rows] == [10.0, 15.0]


def test_steps_and_seconds_give_throughput_and_times_an_account(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text(
        "world_size,env_steps,wall_s,t_iter,t_rollout,t_comm\n1,800,80,8,8,\n2,800,50,5,4,1\n2,800,40,4,3.2,0.8\n"
    )
    report = computed(table)
    assert [row.fps.median for row in report.study.rows] == [10.0, 18.0]
    assert report.study.row(2).seeds == (0, 1)
    assert report.accounts[0].shares["communication"] == pytest.approx(0.2)


def test_a_row_that_is_no_run_is_left_out_by_its_line(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("world_size,fps\n1,10\ntwo,15\n2.5,9\n4,\n")
    left_out = [str(item) for item in whole(table).left_out]
    assert left_out == [
        f"{table}, line 3: world_size='two' is not a number; correct the row, or remove it",
        f"{table}, line 4: world_size=2.5 is not a whole number of at least 1; correct the row, or remove it",
        f"{table}, line 5: fps=nan is not a number above 0; correct the row, or remove it",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("inf,20,,,", "world_size=inf is above 65536, more than any run has"),
        ("0,20,,,", "world_size=0.0 is not a whole number of at least 1"),
        ("1e12,20,,,", "world_size=1000000000000.0 is above 65536"),
        ("4,1e999,,,", "fps=inf is not a number above 0"),
        ("4,20,inf,,", "seed=inf is above"),
        ("4,20,,-inf,", "final_return=-inf is not a number"),
        ("4,20,,,0", "t_iter=0.0 is not a number above 0"),
        ("4,20,,,,7", "it has 6 cells, 5 columns have names"),
        ('4,"20,,,', "it is not CSV: unexpected end of data"),
        ("4," + "9" * 200_000 + ",,,", "it is not CSV: field larger than field limit"),
    ],
)
def test_a_row_with_a_nonsense_value_is_left_out_and_the_others_are_reported(tmp_path, row, said):
    table = tmp_path / "a.csv"
    table.write_text(f"world_size,fps,seed,final_return,t_iter\n1,10,0,5,1\n{row}\n2,16,0,5,1\n")
    report = whole(table)
    assert report.studies[0].study.world_sizes == [1, 2]
    (item,) = report.left_out
    assert str(item).startswith(f"{table}, line 3: {said}")


@pytest.mark.parametrize(
    "line", ["[1]", "{", '{"world_size": true, "fps": 3}', "[" * 100_000, '{"fps": [1]}']
)
def test_a_line_that_is_no_object_of_numbers_is_left_out_and_the_others_are_reported(tmp_path, line):
    table = tmp_path / "a.jsonl"
    table.write_text(f'{{"world_size": 1, "fps": 10}}\n{line}\n{{"world_size": 2, "fps": 16}}\n')
    report = whole(table)
    assert report.studies[0].study.world_sizes == [1, 2]
    assert [item.path for item in report.left_out] == [f"{table}, line 2"]


def test_rows_of_which_some_tell_their_times_are_all_reported(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("world_size,fps,t_iter,t_rollout\n1,10,8,7\n2,16,,\n4,20,5,4\n8,25,,3\n")
    report = whole(table)
    shown = study_table(report.studies[0].study)
    iteration = {line[0]: line[shown.head.index("iteration")] for line in shown.lines}
    assert iteration == {"1": "8 s", "2": "–", "4": "5 s", "8": "–"}
    assert report.left_out == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "needs columns for world_size and for fps (or env_steps and wall_s), it has FPS, W: name them"),
        ({"world_size": "w"}, "has no column w"),
        ({"worldsize": "W"}, "did you mean world_size?"),
    ],
)
def test_a_missing_column_is_named_with_what_there_is(tmp_path, columns, said):
    (tmp_path / "a.csv").write_text(PUBLISHED)
    with pytest.raises(ConfigError, match=re.escape(said)):
        computed(tmp_path / "a.csv", columns=columns)


@pytest.mark.parametrize(
    ("path", "said"),
    [("nowhere", "does not exist"), (".", "no summary.json below it"), ("empty.csv", "has no rows")],
)
def test_nothing_to_report_is_one_clear_sentence(tmp_path, path, said):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ConfigError, match=said):
        make_report(options(tmp_path / path))


def test_a_report_folder_has_page_tables_and_plots(sweep):
    report = sweep / "report"
    names = sorted(path.name for path in report.iterdir())
    assert names == ["per_run.csv", "plots", "report.html", "summary.csv", "summary.json", "tensorboard"]
    plots = {path.name for path in (report / "plots").iterdir()}
    names = ("speedup", "efficiency", "breakdown", "learning_steps", "learning_wall")
    names += ("pace_1", "pace_2", "pace_4", "loss", "ranks", "ranks_at_largest")
    assert {f"{name}.svg" for name in names} == plots


def test_every_figure_is_whole_xml_that_carries_its_own_style(sweep):
    for path in (sweep / "report" / "plots").iterdir():
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert "--blue" in root[0].text
        assert not {"nan", "inf"} & set(re.findall(r"[a-z]+", " ".join(root.itertext())))


def test_the_tables_hold_throughput_per_run_and_medians_per_world(sweep):
    runs = read_csv(sweep / "report" / "per_run.csv")
    assert len(runs) == 6
    for run in runs:
        expected = 80 / (0.5 if run["world_size"] == "1" else 0.3 if run["world_size"] == "2" else 0.2)
        slower = 80 / (80 / expected + 0.01)
        assert float(run["fps"]) == pytest.approx(expected if run["seed"] == "0" else slower, rel=1e-9)
    rows = read_csv(sweep / "report" / "summary.csv")
    assert [row["world_size"] for row in rows] == ["1", "2", "4"]
    assert float(rows[1]["efficiency"]) == pytest.approx(float(rows[1]["speedup"]) / 2)
    shares = sum(float(v) for k, v in rows[2].items() if k.startswith("loss_") and v)
    assert shares == pytest.approx(1 - float(rows[2]["efficiency"]), abs=1e-9)


def test_the_json_is_strict_and_names_what_was_left_out(sweep):
    text = (sweep / "report" / "summary.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["left_out"][0]["path"].endswith("broken")
    (study,) = found["studies"]
    assert study["criteria"][0]["result"] == "PASS"
    assert study["world_sizes"][1]["speedup"] == pytest.approx((1 / 0.3 + 1 / 0.31) / (1 / 0.5 + 1 / 0.51))


def test_the_page_is_one_file_that_asks_nobody_for_anything(sweep):
    page = (sweep / "report" / "report.html").read_text()
    assert "<script" not in page
    assert re.findall(r'src="', page) == []
    beside = {"summary.csv", "per_run.csv", "summary.json", "plots/"}
    assert set(re.findall(r'href="([^"]*)', page)) == {"data:,", *beside}
    for name in beside:
        assert (sweep / "report" / name).exists()
    assert "url(" not in page
    assert "@import" not in page
    assert "http-equiv" not in page


def test_the_page_begins_with_the_answer_and_four_charts_and_folds_the_rest(sweep):
    page = (sweep / "report" / "report.html").read_text()
    order = [
        "seeds <b>2</b>",
        "<dt>Use</dt>",
        "<dt>Speed ",
        "<dt>Learning ",
        ">Speedup S(W)",
        ">Efficiency",
        ">Where an",
    ]
    order += [">Learning: return by environment steps", "<details>"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    folded = page[page.index("<details>") :]
    for title in (
        "Numbers of each W",
        "Iterations over time",
        "Why efficiency is lost",
        "Which W, and predictions",
        "Ranks",
        "Learning and stability",
        "Where the numbers come from",
        "Runs left out: 1",
        "Definitions",
    ):
        assert f"<summary>{title}" in folded
    assert "<dt>commit</dt><dd>000000000000</dd>" in folded


def test_figures_say_their_numbers_to_a_pointer_and_show_every_seed(sweep):
    page = (sweep / "report" / "report.html").read_text()
    assert len(re.findall(r"<title>W=\d, seed \d: S = ", page)) == 6
    assert "<title>W=4, seed 1: S = 2.4 (381 steps/s)</title>" in page


def test_speedup_and_efficiency_are_scalars_for_tensorboard_with_w_as_the_step(sweep, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report, folder = make_report(options(sweep, out=str(tmp_path / "report")))
    (study,) = report.studies
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name in ("speedup", "efficiency"):
        shown = [(event.step, event.value) for event in events.Scalars(f"scaling/{name}")]
        rows = [(row.world_size, getattr(row, name).median) for row in study.study.rows]
        assert shown == [(w, pytest.approx(x)) for w, x in rows]


def test_a_report_made_again_replaces_its_own_folder_only(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(PUBLISHED)
    _, folder = make_report(options(table, columns=COLUMNS))
    page = (folder / "report.html").read_text()
    (folder / "stale.txt").write_text("")
    make_report(options(table, columns=COLUMNS))
    assert (folder / "report.html").read_text() == page
    assert not (folder / "stale.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv", "table_report"]


def test_a_folder_that_is_no_report_is_not_overwritten(sweep, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not an earlier report"):
        make_report(options(sweep, out=str(tmp_path)))
    assert (tmp_path / "thesis.txt").exists()


def test_a_study_without_one_worker_says_what_it_is_relative_to(tmp_path):
    for world_size in (2, 4):
        write_run(tmp_path / str(world_size), world_size)
    report = computed(tmp_path)
    assert "no run with W=1, so S and E are relative to W=2" in " ".join(report.remarks)


def test_the_terminal_has_the_table_the_verdict_and_the_path_of_the_page(sweep):
    text = on_terminal(whole(sweep, target_return=30), sweep / "report", width=160)
    assert "s to 30" in text
    assert re.search("(?m)^PASS +S\\(W\\) increases", text)
    assert "left out:" in text
    assert str(sweep / "report" / "report.html") in text


def test_names_from_outside_cannot_put_markup_into_the_page(tmp_path):
    table = tmp_path / "<i>.csv"
    table.write_text(PUBLISHED + "x,<script>\n")
    _, folder = make_report(options(table, columns=COLUMNS, env="<script>alert(1)</script>"))
    page = (folder / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<i>" not in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{sweep}", "tolerance=1"], "there is no setting tolerance (did you mean"),
        (["{sweep}", "return_tolerance=-1"], "must be at least 0"),
        (["{sweep}", "what_if={{latency: 1}}"], "did you mean latency_s?"),
        (["{sweep}", "what_if={{latency_s: fast}}"], "what_if: latency_s: fast is not a number"),
        (["{sweep}", "what_if={{latency_s: -1}}"], "what_if: latency_s=-1.0: must be at least 0"),
        (["{sweep}", "path={sweep}"], "a second path"),
        (["{sweep}", "nowhere"], "nowhere is no sweep folder"),
        (["{sweep}", "{sweep}", "watch=true"], "watch=true follows one sweep"),
        (["target_return=3"], "path= is missing (a sweep folder, or a .csv"),
    ],
)
def test_a_mistake_in_the_command_is_one_line_and_exit_code_2(sweep, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(sys, "argv", ["report", *(a.format(sweep=sweep) for a in arguments)])
    with pytest.raises(SystemExit) as exit_info:
        door.main()
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_the_door_makes_a_report_wherever_it_is_told(monkeypatch, capsys, tmp_path):
    (tmp_path / "table.csv").write_text(PUBLISHED)
    columns = "columns={world_size: W, fps: FPS}"
    monkeypatch.setattr(
        sys, "argv", ["report", str(tmp_path / "table.csv"), columns, f"out={tmp_path / 'a' / 'b'}"]
    )
    door.main()
    assert (tmp_path / "a" / "b" / "report.html").is_file()
    assert "4 1 14,263 0.408 0.102" in " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Strong and weak scaling of one task, another task at one W only, and a run that failed."""
    folder = tmp_path_factory.mktemp("mixed")
    for world_size in (1, 2, 4):
        write_run(folder / f"s{world_size}", world_size, t_iter=0.5 / world_size)
        write_run(folder / f"w{world_size}", world_size, t_iter=0.5 * world_size, scaling__rule="weak")
    write_run(folder / "o", env__id="my/Other:v0")
    (folder / "failed").mkdir()
    (folder / "failed" / "config.yaml").write_text("")
    return folder, *make_report(options(folder))


def test_every_study_of_a_folder_is_reported_with_its_own_numbers(mixed):
    _, report, folder = mixed
    names = [("Task-v0", "strong"), ("Task-v0", "weak"), ("my/Other:v0", "strong")]
    assert [(each.study.env_id, each.study.rule) for each in report.studies] == names
    rows = read_csv(folder / "summary.csv")
    speedups = [
        (row["rule"], row["world_size"], float(row["speedup"])) for row in rows if row["env_id"] == "Task-v0"
    ]
    assert speedups == [("strong", w, float(w)) for w in "124"] + [("weak", w, 1.0) for w in "124"]
    assert len(read_csv(folder / "per_run.csv")) == 7
    found = json.loads((folder / "summary.json").read_text())
    assert [(each["env_id"], each["rule"]) for each in found["studies"]] == names
    assert "are mixed" in found["remarks"][0]
    assert [item["path"][-6:] for item in found["left_out"]] == ["failed"]


def test_each_study_has_its_own_folder_of_plots(mixed):
    _, _, folder = mixed
    names = ["Task-v0_strong", "Task-v0_weak", "my_Other_v0_strong"]
    assert sorted(path.name for path in (folder / "plots").iterdir()) == names
    for name in names:
        assert (folder / "plots" / name / "breakdown.svg").stat().st_size > 0
    assert (folder / "plots" / names[0] / "speedup.svg").exists()
    assert not (folder / "plots" / names[2] / "speedup.svg").exists()  # one W


def test_the_page_has_a_chapter_for_each_study_that_its_contents_lead_to(mixed):
    page = (mixed[2] / "report.html").read_text()
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links == {"top", "study-1", "study-2", "study-3"}
    for link in links:
        assert page.count(f'id="{link}"') == 1
    assert page.count("<dt>Speed ") == 3
    assert page.count("<summary>Definitions</summary>") == 1


def test_the_terminal_has_a_table_for_each_study(mixed):
    folder, report, _ = mixed
    text = on_terminal(report, folder, width=160)
    for heading in (
        "Task-v0, strong scaling, 3 runs",
        "Task-v0, weak scaling, 3 runs",
        "my/Other:v0, strong scaling, 1 run",
    ):
        assert heading in text
    assert text.count("S(W) increases:") == 3
    assert "only W=1 was measured" in text


def test_env_and_rule_narrow_a_mixed_folder_to_one_study(mixed):
    folder, _, _ = mixed
    report = whole(folder, env="Task-v0", rule="weak")
    assert [(each.study.env_id, each.study.rule) for each in report.studies] == [("Task-v0", "weak")]
    assert len(report.left_out) == 3  # two studies, and the run that failed


def test_one_target_cannot_hold_for_several_tasks(mixed):
    with pytest.raises(
        ConfigError, match="cannot hold for 2 tasks at once: add env= one of Task-v0, my/Other:v0"
    ):
        whole(mixed[0], target_return=50.0)


def test_with_one_world_size_nothing_is_predicted_or_recommended(tmp_path):
    write_run(tmp_path / "a")
    ahead = computed(tmp_path).ahead
    assert (ahead.as_measured, ahead.recommendation) == ((), None)
    assert "No predictions: only W=1 was measured" in ahead.remarks[0]


def test_a_study_that_cannot_be_reported_is_left_out_and_the_rest_is_reported(tmp_path):
    for world_size in (1, 2):
        write_run(tmp_path / str(world_size), world_size)
    write_run(tmp_path / "short", iterations=3, env__id="Short-v0")  # one iteration: no model, so no what-if
    report = whole(tmp_path, what_if={"latency_s": 1e-3})
    assert [each.study.env_id for each in report.studies] == ["Task-v0"]
    (item,) = report.left_out
    assert str(item).startswith("Short-v0, strong scaling: cannot be reported; what_if=")
    with pytest.raises(ConfigError, match="no effect"):
        whole(tmp_path, what_if={"latency_s": 1e-3}, env="Short-v0")


def test_each_world_but_the_smallest_is_held_out_to_see_how_good_the_model_is(sweep):
    checks = computed(sweep).ahead.checks
    assert [(check.fitted_on, check.world_size) for check in checks] == [((1, 4), 2), ((1, 2), 4)]
    assert "Held out: fitted on W=1, 2" in (sweep / "report" / "report.html").read_text()
    (study,) = json.loads((sweep / "report" / "summary.json").read_text())["studies"]
    assert [c["world_size"] for c in study["held_out"]] == [2, 4]


def test_nodes_without_a_count_of_machines_are_remarked_on(tmp_path):
    for world_size, derived in ((1, {}), (2, {"num_nodes": 2}), (4, {"num_nodes": 4, "num_hosts": 1})):
        folder = write_run(tmp_path / str(world_size), world_size)
        change_summary(folder, derived=json.loads((folder / "summary.json").read_text())["derived"] | derived)
    (remark,) = [r for r in computed(tmp_path).remarks if "nodes" in r]
    assert remark.startswith("W=2 ran on several nodes")


def test_a_full_disk_ends_a_report_in_one_sentence_and_leaves_the_earlier_one(tmp_path, monkeypatch, capsys):
    table = tmp_path / "table.csv"
    table.write_text("world_size,fps\n1,10\n2,15\n")
    make_report(options(table))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report_files, "write_plots", full)
    monkeypatch.setattr("sys.argv", ["report.py", str(table)])
    with pytest.raises(SystemExit) as ended:
        door.main()
    assert ended.value.code == 1
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'table_report'} cannot be written: No space left on device\n"
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
