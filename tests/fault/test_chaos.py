"""A run that is disturbed at random instants is in the end the run that was not, to the bit."""

import json
import os
import random
import subprocess
import sys

import pytest

from tests.fault.chaos import KILLS, OTHERS, plan
from tests.support import CHECKOUT, PATIENCE_S


def test_a_plan_has_its_kills_dealt_evenly_and_every_other_fault():
    faults = plan(16, random.Random(1), has_pool=True)
    assert [faults.count(kind) for kind in (*KILLS, *OTHERS)] == [4, 4, 4, 4, 2, 2, 2]
    assert faults == plan(16, random.Random(1), has_pool=True)
    assert "environments" not in plan(6, random.Random(1), has_pool=False)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "kills"), [("cartpole", 3), ("lunarlander", 4)])
def test_kills_a_full_disk_a_truncated_checkpoint_and_a_frozen_process_change_no_bit(tmp_path, task, kills):
    command = [
        sys.executable,
        "-m",
        "tests.fault.chaos",
        str(tmp_path / "chaos"),
        f"kills={kills}",
        f"task={task}",
    ]
    environ = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        [*command, "seed=1"],
        cwd=CHECKOUT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    log = tmp_path / "chaos" / "log"
    assert result.returncode == 0, result.stdout + result.stderr + (log.read_text() if log.exists() else "")
    found = json.loads(result.stdout)
    assert (found["kills"], found["other_faults"], found["wrong"]) == (kills, len(OTHERS), [])
