"""Two machines, which one plays: shared memory inside each, Gloo between their leaders, started by two torchruns."""

import sys

import pytest
import torch

from tests.distributed.forked_ranks import need_shared_memory
from tests.support import PATIENCE_S, TINY, door, run, started, summary

ITERATIONS = 4
SIZES = [
    *TINY, "env=cartpole", "dtype=float64", "env.num_envs=8", "ppo.rollout_steps=16", "ppo.num_epochs=2",
    f"ppo.total_steps={ITERATIONS * 128}", "ppo.normalize_obs=true", "dist.check_every=1",
]  # fmt: skip
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--nnodes=2"]


def model(run_dir):
    return torch.load(run_dir / "checkpoints" / f"iteration_{ITERATIONS:08d}.pt", weights_only=True)["model"]


@pytest.mark.slow
def test_two_machines_learn_what_one_learns_by_shared_memory_and_by_gloo(tmp_path, unused_port):
    need_shared_memory()
    over, arguments = tmp_path / "over", [*SIZES, f"hydra.run.dir={tmp_path / 'over'}"]
    at = ["--master-addr=127.0.0.1", f"--master-port={unused_port}"]
    first, second = ([*TORCHRUN, f"--node-rank={n}", *at, "-m", "ddppo.train", *arguments] for n in (0, 1))
    with started(second, DDPPO_MACHINE="b") as other:
        result = run(first, over, DDPPO_MACHINE="a")
        assert result.code == 0, result.stderr
        assert other.wait(timeout=PATIENCE_S) == 0
    derived = summary(over)["derived"]
    assert (derived["collective"], derived["num_hosts"]) == ("shm+gloo", 2)
    for kind in ("shm", "gloo"):
        flat = door(*SIZES, "dist.world_size=4", f"dist.collective={kind}", run_dir=tmp_path / kind)
        assert flat.code == 0, flat.stderr
        assert summary(flat.run_dir)["derived"]["collective"] == kind
        expected, found = model(flat.run_dir), model(over)
        assert max((expected[name] - found[name]).abs().max().item() for name in expected) < 1e-9


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
