"""Tasks of EnvPool train, alike on one rank and on two, and go on with new episodes only."""

import importlib.util
import sys

import pytest

from tests.distributed.test_independence import sweep
from tests.support import TINY, door, lines, run, summary

if importlib.util.find_spec("envpool") is None:
    pytest.skip("needs the extra envpool", allow_module_level=True)

CARTPOLE = [*TINY, "env=gym", "env.id=envpool/CartPole-v1", "dtype=float64"]


def test_two_ranks_learn_what_one_does(tmp_path):
    folders = sweep(tmp_path, *CARTPOLE, "dist.world_size=1,2")
    one, two = ([line for line in lines(folders[w]) if line["rank"] == 0] for w in (1, 2))
    assert len(one) == len(two) > 4
    for a, b in zip(one, two, strict=True):
        assert a["rollout/steps"] == b["rollout/steps"]
        for name in ("rollout/return_mean", "train/policy_loss", "train/value_loss", "train/entropy"):
            assert b[name] == pytest.approx(a[name], rel=1e-9, abs=1e-9)
    assert one[-1]["rollout/steps"] < 256  # pseudo-steps are no transitions


def test_a_run_goes_on_approximately_alone(tmp_path):
    run_dir = tmp_path / "run"
    first = door(*CARTPOLE, run_dir=run_dir)
    assert first.code == 0, first.stderr
    assert "envpool/CartPole-v1 is stepped by EnvPool, which cannot save its state" in first.stderr
    more = [
        sys.executable,
        "-m",
        "ddppo.train",
        f"resume={run_dir}",
        f"ppo.total_steps={summary(run_dir)['env_steps'] + 500}",
    ]
    refused = run(more, run_dir)
    assert refused.code == 2
    assert "resume_state=approximate" in refused.stderr
    again = run([*more, "resume_state=approximate"], run_dir)
    assert again.code == 0, again.stderr
