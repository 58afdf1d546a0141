import io
import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.records.metrics import EXCLUSIVE_PARTS, IterationReport
from ddppo.records.progress_display import (
    FrameDisplay,
    NullDisplay,
    PlainDisplay,
    ProgressLine,
    RichDisplay,
    in_lines,
    make_display,
    sparkline,
)
from ddppo.records.summary import SummaryBuilder
from ddppo.records.terminal_text import closing, header


def console(terminal=False, width=120, color_system=None):
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        color_system=color_system,
        legacy_windows=False,
    )


def shown(console):
    return console.file.getvalue()


class Clock:
    """A clock that a test moves on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


PARTS = {
    "time/t_rollout": 0.25,
    "time/t_learn": 0.125,
    "time/t_sync": 0.0625,
    "time/t_comm": 0.05,
    "time/t_other": 0.0125,
}


def report(iteration, first_steps=0, **more):
    """Half a second and 1000 steps an iteration."""
    metrics = {"rollout/steps": 1000.0, "rollout/return_mean": 12.5, "train/approx_kl": 0.0081, **more}
    steps = first_steps + 1000 * iteration
    return IterationReport(iteration, steps, 0.5 * iteration, ({"time/t_iter": 0.5, **PARTS},), metrics)


def config():
    result = Config()
    result.env.id = "CartPole-v1"
    result.dist.world_size = 4
    return result


def play(display, clock, iterations, seconds=0.5):
    display.start()
    for iteration in iterations:
        clock.now += seconds
        display.update(report(iteration))
    display.close()


def test_the_header_gives_the_derived_sizes():
    text = header(
        config(), validate(config()), {"num_parameters": 9155, "device": "cpu", "run_dir": "outputs/x"}
    )
    assert "N = W x E = 4 x 2 = 8" in text
    assert "B = N x T = 8 x 128 = 1,024" in text
    assert "minibatch 256, M x K = 4 minibatches x 4 epochs = 16 per iteration" in text
    assert "100,000 steps = 98 iterations" in text
    assert "9,155" in text
    assert "outputs/x" in text


def test_where_episodes_are_whole_the_header_gives_sizes_as_bounds():
    text = header(config(), validate(config()), {"whole_episodes": True})
    assert "B = at most N x T = 8 x 128 = 1,024" in text
    assert "100,000 steps = at least 98 iterations" in text
    assert "whole episodes" not in text


def test_where_not_all_ranks_step_environments_the_header_says_how_many_do():
    spread = config()
    spread.dist.world_size, spread.dist.topology = 5, "sync_actors"
    text = header(spread, validate(spread), {"roles": ["learner", *["actor"] * 4]})
    assert "W = 5, sync_actors: 1 x learner, 4 x actor" in text
    assert "N = ranks that step x E = 4 x 2 = 8" in text


def test_where_they_step_unequal_numbers_the_header_says_how_many_step_how_many():
    spread = config()
    spread.dist.world_size, spread.dist.topology = 4, "sync_actors"
    assert "N = 2 x 3 + 1 x 2 = 8" in header(spread, validate(spread), {})


def test_where_an_update_learns_from_other_rollouts_than_one_of_each_rank_the_header_says_from_how_many():
    asynchronous = config()
    asynchronous.dist.world_size, asynchronous.dist.topology = 5, "async_actors"
    asynchronous.ppo.rollouts_per_update = 1
    assert "B = 1 x E x T = 2 x 128 = 256" in header(asynchronous, validate(asynchronous), {})
    asynchronous.dist.world_size = 4
    assert "B = about 1 x 8 / 3 x T = 2 x 128 = 256" in header(asynchronous, validate(asynchronous), {})


def test_plain_lines_come_every_few_seconds_and_for_the_first_and_the_last_iteration():
    clock, out = Clock(), console()
    play(PlainDisplay(40_000, out, clock=clock), clock, range(1, 26))
    iterations = [int(line.split("iteration ")[1].split()[0]) for line in shown(out).splitlines()]
    assert iterations == [1, 11, 21, 25]  # ten iterations of half a second apart


def test_the_last_line_is_not_printed_twice():
    clock, out = Clock(), console()
    play(PlainDisplay(40_000, out, clock=clock), clock, range(1, 12))
    assert len(shown(out).splitlines()) == 2


def test_a_plain_line_says_where_the_run_is_how_fast_and_where_the_time_goes():
    clock, out = Clock(), console()
    play(PlainDisplay(4000, out, clock=clock), clock, [1])
    (line,) = shown(out).splitlines()
    for words in (
        "1,000 / 4,000 steps", "25 %", "ETA 1.5 s", "iteration 1", "FPS 2,000", "return 12.50", "KL 0.0081",
        "rollout 50% learn 25% sync 12% comm 10% other 2%",
    ):  # fmt: skip
        assert words in line


def test_eta_counts_only_what_this_process_did_and_evaluations_too():
    clock, out = Clock(), console()
    display = PlainDisplay(100_000, out, clock=clock)
    display.update(report(1, first_steps=90_000))
    clock.now += 9.5  # iteration 2 and a long evaluation
    display.update(report(2, first_steps=90_000))
    display.close()
    # 2000 steps took 0.5 + 9.5 s, and 8000 are left.
    assert "ETA 40.0 s" in shown(out).splitlines()[-1]


def test_success_is_shown_and_what_is_not_known_is_a_question_mark():
    out = console()
    display = PlainDisplay(40_000, out, clock=Clock())
    display.update(report(1, **{"rollout/success_rate": 0.25, "train/approx_kl": math.nan}))
    display.say("a table [of] 1 line")
    assert "return 12.50  success 0.25  KL ?" in shown(out)
    assert shown(out).splitlines()[-1] == "a table [of] 1 line"


def test_a_table_is_shown_above_what_is_kept_in_place():
    out = console(terminal=True)
    display = RichDisplay(40_000, out, clock=Clock())
    display.start()
    display.update(report(1))
    display.say("a table")
    display.close()
    assert "a table\n" in shown(out)


def test_an_evaluation_stays_in_view_until_the_next():
    clock, out = Clock(), console()
    display = PlainDisplay(40_000, out, clock=clock)
    display.update(report(1, **{"eval/return_mean": 480.0}))
    clock.now += 10
    display.update(report(2))
    display.close()
    assert all("eval 480.00" in line for line in shown(out).splitlines())


def test_a_run_without_finished_episodes_shows_no_return():
    clock, out = Clock(), console()
    display = PlainDisplay(4000, out, clock=clock)
    display.update(IterationReport(1, 1000, 0.5, ({"time/t_iter": 0.5},), {}))
    display.close()
    assert "return" not in shown(out)


def test_rich_shows_a_bar_and_the_same_numbers_in_place():
    clock, out = Clock(), console(terminal=True)
    play(RichDisplay(4000, out, clock=clock), clock, range(1, 5))
    text = shown(out)
    for words in (
        "━",
        "4,000 / 4,000 steps",
        "100 %",
        "ETA 0.0 s",
        "FPS 2,000",
        "return 12.50",
        "KL 0.0081",
        "sync 12%",
    ):
        assert words in text
    assert "\x1b[1A" in text, "the cursor goes up: lines are redrawn in place"


def test_rich_redraws_at_most_four_times_a_second():
    clock, out = Clock(), console(terminal=True)
    play(RichDisplay(10**6, out, clock=clock), clock, range(1, 101), seconds=0.01)
    assert shown(out).count("ETA") <= 8  # one second of 10 ms iterations; start and stop draw once more each


def test_a_display_that_never_saw_an_iteration_closes():
    for display in (PlainDisplay(1, console()), RichDisplay(1, console(terminal=True)), NullDisplay()):
        display.start()
        display.close()


@pytest.mark.parametrize(
    ("kind", "terminal", "expected"),
    [
        ("auto", True, RichDisplay),
        ("auto", False, PlainDisplay),
        ("rich", False, RichDisplay),
        ("plain", True, PlainDisplay),
        ("none", True, NullDisplay),
    ],
)
def test_auto_is_rich_on_a_terminal_and_plain_elsewhere(kind, terminal, expected, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert type(make_display(kind, 100, console=console(terminal))) is expected


def summary(**evaluations):
    build = SummaryBuilder(config(), validate(config()), {}, 0)
    for iteration in (1, 2):
        build.add(report(iteration))
    return build.build(status="completed", **evaluations)


def with_checkpoint(run_dir):
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "iteration_00000002.pt").touch()
    return run_dir


def test_the_closing_gives_scores_times_and_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores = {
        "return_mean": 490.5,
        "return_median": 500.0,
        "return_iqm": 500.0,
        "return_std": 3.0,
        "episodes": 100,
    }
    text = closing(
        summary(
            final_eval=scores,
            best_eval={**scores, "env_steps": 1000},
            target={"return": 475.0, "reached": True, "time_to_target_s": 125.0, "steps_to_target": 1000},
        ),
        with_checkpoint(Path("outputs/cart pole")),
    )
    for words in (
        "2,000 steps in 1.0 s, 2,000 steps/s after warm-up",
        "500.0 ms an iteration: rollout 50% learn 25% sync 12% comm 10% other 2%",
        "mean 490.50, median 500.00, IQM 500.00, std 3.00 over 100 episodes",
        "at 1,000 steps",
        "reached after 2:05, 1,000 steps",
        "tensorboard --logdir 'outputs/cart pole'",
        "python -m ddppo.evaluate run='outputs/cart pole'",
        "python -m ddppo.train resume='outputs/cart pole'",
    ):
        assert words in text


def test_the_closing_tells_where_the_time_of_each_role_went():
    whole = summary()
    learner, actor = {"t_iter": 0.2} | dict.fromkeys(EXCLUSIVE_PARTS, 0.0), {"t_iter": 0.4}
    learner |= {"t_learn": 0.15, "t_sync": 0.05}
    actor |= dict.fromkeys(EXCLUSIVE_PARTS, 0.08)
    ranks = [{"role": "learner", "time": learner, "dist": {"lag_mean": 0.5}}]
    whole["per_rank"] = ranks + [{"role": "actor", "time": actor}] * 2
    text = closing(whole, Path("x"))
    assert "1 x learner: rollout 0% learn 75% sync 25% comm 0% other 0%" in text
    assert "2 x actor: rollout 20% learn 20% sync 20% comm 20% other 20%" in text
    assert "0.50 updates, mean over rollouts" in text


def test_the_closing_of_a_run_that_did_nothing_has_commands_only():
    empty = SummaryBuilder(config(), validate(config()), {}, 0).build(status="failed")
    text = closing(empty, Path("outputs/x"))
    assert "failed" in text
    assert "evaluation" not in text
    assert "tensorboard --logdir outputs/x" in text


def test_a_target_that_was_missed_is_said_to_be():
    text = closing(
        summary(
            target={"return": 475.0, "reached": False, "time_to_target_s": None, "steps_to_target": None}
        ),
        Path("x"),
    )
    assert "return 475" in text
    assert "not reached" in text


def test_what_a_task_tells_first_is_on_the_line_and_what_it_says_at_the_end():
    told = {"task/best_cost/a": 7.0, "task/best_cost/b": 12.0, "task/best": 1.0, "task/rewrites": 5.0}
    out = console()
    display = PlainDisplay(1_000, out)
    display.start()
    display.update(report(1, **told))
    display.close()
    assert "best_cost/a 7  best_cost/b 12" in shown(out)
    assert "rewrites" not in shown(out)
    assert "best 1" not in shown(out)
    said = {**summary(), "task": {"said": {"a": "9 -> 7 gates: best/a.qasm"}, "circuits": {}}}
    assert "9 -> 7 gates: best/a.qasm" in closing(said, Path("x"))


# -- evaluations, ranks, memory, and where there is little room or no colour -----------------------------------------


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▄▄"
    assert sparkline([0.0, math.nan, 7.0]) == "▁ █"
    assert sparkline([]) == ""


def test_of_many_evaluations_a_sparkline_shows_some_the_first_and_the_last_among_them():
    drawn = sparkline([1.0, *[0.5] * 98, 2.0], most=10)
    assert len(drawn) == 10
    assert drawn[-1] == "█"
    assert drawn[0] > drawn[1]


def test_words_are_never_broken_over_lines():
    assert in_lines(["FPS 2,000", "return 12.50", "KL 0.01"], 24) == ["FPS 2,000  return 12.50", "KL 0.01"]
    assert in_lines(["a word longer than the line", "b"], 10) == ["a word longer than the line", "b"]


def test_evaluations_so_far_are_drawn_in_place_and_a_line_has_the_last():
    clock, out, plain = Clock(), console(terminal=True), console()
    for display in (RichDisplay(4000, out, clock=clock), PlainDisplay(4000, plain, clock=clock)):
        display.start()
        for iteration in range(1, 5):
            clock.now += 10
            display.update(report(iteration, **{"eval/return_mean": 100.0 * iteration}))
        display.close()
    assert "eval ▁▃▆█ 400.00" in shown(out)
    assert "eval 400.00" in shown(plain)


def test_the_slowest_rank_is_who_acts_and_learns_longest():
    progress = ProgressLine(4000, Clock(), memory=lambda world_size: 1536.0)
    ranks = [{"time/t_iter": 0.5, "time/t_rollout": t, "time/t_learn": 0.1} for t in (0.1, 0.3, 0.1, 0.1)]
    for iteration in (1, 2):
        progress.add(IterationReport(iteration, 1000 * iteration, 0.5 * iteration, tuple(ranks), {}))
    assert progress.machine() == ["slowest rank 1 (+60%)", "memory 1.5 GB"]


def test_one_rank_is_no_slowest_and_memory_that_nobody_tells_is_not_shown():
    progress = ProgressLine(4000, Clock(), memory=lambda world_size: None)
    progress.add(report(1))
    assert progress.machine() == []


def test_memory_is_measured_every_few_seconds_only():
    clock, asked = Clock(), []

    def memory(world_size):
        asked.append(world_size)
        return 300.0

    progress = ProgressLine(4000, clock, memory=memory)
    for iteration in range(1, 101):
        clock.now += 0.25
        progress.add(report(iteration))
        assert progress.machine() == ["memory 300 MB"]
    assert asked == [1, 1, 1]


def test_the_memory_of_a_run_is_shown():
    clock, out = Clock(), console()
    play(PlainDisplay(4000, out, clock=clock), clock, [1])
    assert "memory" in shown(out)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_gets_more_lines_none_of_them_too_long(width):
    clock, out = Clock(), console(terminal=True, width=width)
    display = RichDisplay(4000, out, clock=clock)
    ranks = tuple({"time/t_iter": 0.5, **PARTS} for _ in range(4))
    display.start()
    for iteration in range(1, 5):
        clock.now += 1
        metrics = {"rollout/return_mean": 12.5, "eval/return_mean": 10.0 * iteration, "train/approx_kl": 0.01}
        display.update(IterationReport(iteration, 1000 * iteration, 0.5 * iteration, ranks, metrics))
    display.close()
    text = Text.from_ansi(shown(out)).plain
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for words in ("100 %", "4,000 / 4,000 steps", "eval ▁▃▆█ 40.00", "KL 0.0100", "slowest rank 0"):
        assert any(words in line for line in text.splitlines()), words


def test_no_color_is_respected(monkeypatch):
    def drawn():
        clock, out = Clock(), console(terminal=True, color_system="standard")
        play(RichDisplay(4000, out, clock=clock), clock, [1, 2])
        return re.findall(r"\x1b\[([\d;]+)m", shown(out))

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert any(set(each.split(";")) & {"31", "32", "35", "90", "91", "37"} for each in drawn())
    monkeypatch.setenv("NO_COLOR", "1")
    assert all(set(each.split(";")) <= {"0", "1", "2"} for each in drawn())


def test_frames_are_lines_of_json_for_whoever_started_the_run(monkeypatch, capsys):
    monkeypatch.setenv("DDPPO_FRAMES", "60")
    clock, display = Clock(), make_display("auto", 4000)
    assert isinstance(display, FrameDisplay)
    display._progress._clock = clock
    display.start()
    display.update(report(1))
    display.say("a table")
    display.close()
    frame, table, _ = capsys.readouterr().out.split("\n")
    assert table == "a table"
    lines = json.loads(frame.removeprefix("\x1e"))
    assert "1,000 / 4,000 steps" in " ".join(lines)
    assert max(map(len, lines)) <= 60
    assert isinstance(make_display("none", 4000), NullDisplay)
    assert isinstance(make_display("plain", 4000), PlainDisplay)


def test_a_run_without_a_checkpoint_is_to_begin_anew_and_cannot_be_evaluated(tmp_path):
    text = closing(summary(), tmp_path)
    assert "ddppo.evaluate" not in text
    assert re.search(r"begin anew +python -m ddppo.train resume=", text)


def test_the_header_keeps_to_the_width_of_the_terminal_and_commands_stay_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    derived = {"machines": [{"hostname": f"node{n}", "cores": 4} for n in range(5)]}
    lines = header(config(), validate(config()), derived, 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert any(line.startswith(" " * 10) for line in lines)
    text = closing(summary(), with_checkpoint(Path("outputs/a/folder/with/a/long/path")), 40)
    assert "python -m ddppo.evaluate run=outputs/a/folder/with/a/long/path" in text
