"""The page of where the time goes."""

import json
import time

import torch

from ddppo.records.profiling import PAGE, TRACE, NullProfiler, make_profiler


def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_no_profile_is_none(tmp_path):
    assert type(make_profiler(0, tmp_path / "profile")) is NullProfiler


def test_operators_and_functions_are_in_the_phase_they_ran_in(tmp_path):
    profiler = make_profiler(2, tmp_path / "profile")
    for _ in range(5 + 3 * 2 + 1):
        with profiler.iteration():
            with profiler.phase("rollout"):
                work(0.002)
            with profiler.phase("learn"):
                torch.ones(64, 64).mm(torch.ones(64, 64))
            json.dumps([1, 2])
    page = (tmp_path / "profile" / PAGE).read_text()
    before, rollout, learn, rest = page.split("\n## ")
    assert "mean over 2 iterations without a profiler" in before
    assert "work" in rollout
    assert "`aten::mm` | 1 |" in learn
    assert "aten::mm" not in rollout
    assert "dumps" in rest
    assert "dumps" not in learn
    trace = json.loads((tmp_path / "profile" / TRACE).read_text())
    assert {"rollout", "learn", "aten::mm"} <= {event.get("name") for event in trace["traceEvents"]}
