import re
from pathlib import Path

import pytest

from ddppo.records.metrics import (
    EXCLUSIVE_PARTS,
    METRICS,
    TIME_NAMES,
    IterationReport,
    check_names,
    markdown,
    plugin_metrics,
)

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def report(rank_metrics=({"time/t_iter": 1.0},), global_metrics=None):
    return IterationReport(1, 512, 1.0, tuple(rank_metrics), global_metrics or {})


def test_every_metric_is_listed_once_and_fully():
    rows = (*METRICS, *plugin_metrics())
    names = [m.name for m in rows]
    assert len(names) == len(set(names))
    for metric in rows:
        groups = {
            "rollout",
            "reward",
            "train",
            "time",
            "dist",
            "curriculum",
            "search",
            "eval",
            "loss",
            "user",
            "algorithm",
            "env",
        }
        assert metric.name.split("/")[0] in groups
        assert all((metric.unit, metric.reduction, metric.meaning, metric.source))


def test_the_parts_of_an_iteration_are_in_the_table():
    besides = {"time/t_iter", "time/t_comm_total", "time/t_checkpoint"}
    assert {f"time/{part}" for part in EXCLUSIVE_PARTS} | besides == set(TIME_NAMES)


def test_a_misspelt_name_raises_with_near_matches():
    with pytest.raises(KeyError, match=r"train/approx-kl is not listed .*did you mean train/approx_kl"):
        check_names(["train/entropy", "train/approx-kl"], per_rank=False)


def test_a_per_rank_metric_among_the_global_ones_raises():
    with pytest.raises(KeyError, match=r"time/t_iter is per rank in the table .*, not global"):
        report(global_metrics={"time/t_iter": 1.0})


def test_a_global_metric_of_one_rank_raises():
    with pytest.raises(KeyError, match=r"train/entropy is global in the table .*, not per rank"):
        report(rank_metrics=[{"train/entropy": 1.0}])


def test_the_mean_over_ranks_counts_the_ranks_that_have_the_metric():
    both = report([{"time/t_iter": 1.0, "time/t_sync": 0.5}, {"time/t_iter": 3.0}])
    assert both.rank_mean("time/t_iter") == 2.0
    assert both.rank_mean("time/t_sync") == 0.5
    assert both.rank_mean("time/t_comm") is None


def test_docs_hold_the_table_that_the_module_prints():
    table = re.search(r"<!-- table -->\n(.*)<!-- /table -->", DOCS.read_text(), flags=re.DOTALL)
    assert table is not None
    assert table.group(1) == markdown(), "update docs/metrics.md from `python -m ddppo.records.metrics`"


def test_every_row_of_the_table_has_five_cells():
    for row in markdown().splitlines():
        assert len(re.findall(r"(?<!\\)\|", row)) == 6, row
