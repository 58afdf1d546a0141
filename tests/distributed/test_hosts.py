"""Several hosts, which network namespaces play, under torchrun's own rendezvous: what is lost, and what goes on."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.distributed import hosts as cluster
from tests.support import PATIENCE_S, TINY, lines, summary, wait_until

WHY_NOT = cluster.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]
STEPS = 8 * 32
SETTINGS = [
    *TINY, "env=synthetic", "env.num_envs=8", "env.kwargs.step_time_s=0.001", "ppo.rollout_steps=32",
    "ppo.num_epochs=2", f"checkpoint.every_steps={2 * STEPS}", "dist.timeout_s=20", "resume=auto",
    "dist.oversubscribe=warn",
]  # fmt: skip


def torchrun(hosts, host, folder, *settings, nodes="1:2", restarts=5):
    """Start torchrun on a host: 2 ranks, a rendezvous on the first host that forgets a lost one after 6 s."""
    conf = f"is_host={int(host == 0)},last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=3"
    return hosts.start(
        host,
        [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=2",
            f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-id=lander", f"--rdzv-conf={conf}",
            f"--rdzv-endpoint={hosts.addresses[0]}:29400", f"--local-addr={hosts.addresses[host]}",
            "-m", "ddppo.train", *SETTINGS, *settings, f"hydra.run.dir={folder / 'run'}",
        ],
        folder / f"log{host}",
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip


def ranks_of(hosts, host):
    """Return the processes that are ranks on a host, by their numbers."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            environ = dict(each.partition("=")[::2] for each in (entry / "environ").read_text().split("\0"))
        except (OSError, UnicodeDecodeError):
            continue
        if environ.get("DDPPO_MACHINE") == hosts.names[host] and "RANK" in environ:
            found[int(environ["RANK"])] = int(entry.name)
    return found


def reach(folder, iteration, world_size, processes):
    """Wait until so many ranks together have done an iteration above `iteration`; return which is the last."""

    def reached():
        said = [(folder / f"log{host}").read_text() for host in range(len(processes))]
        assert all(process.poll() is None for process in processes), said
        last = max((line["iteration"] for line in lines(folder / "run")), default=0)
        ranks = [line["rank"] for line in lines(folder / "run") if line["iteration"] == last]
        return last > iteration and ranks == list(range(world_size))

    wait_until(reached, f"iteration {iteration + 1} of {world_size} ranks")
    return max(line["iteration"] for line in lines(folder / "run"))


def test_a_run_goes_on_without_a_rank_and_without_a_host_with_one_more_and_after_a_power_cut(tmp_path):
    endless = "ppo.total_steps=100000000"
    with cluster.Hosts(2) as hosts:
        first, second = (torchrun(hosts, host, tmp_path, endless) for host in (0, 1))
        done = reach(tmp_path, 5, 4, [first, second])

        os.kill(ranks_of(hosts, 1)[3], signal.SIGKILL)
        done = reach(tmp_path, done + 5, 4, [first, second])

        hosts.cut_off(1)  # no connection of its is closed: only silence tells
        cluster.kill(second)
        done = reach(tmp_path, done + 5, 2, [first])

        hosts.plug_in(1)
        second = torchrun(hosts, 1, tmp_path, endless)
        done = reach(tmp_path, done + 5, 4, [first, second])

        for process in (first, second):
            cluster.kill(process)
        last = done + 30
        again = [torchrun(hosts, host, tmp_path, f"ppo.total_steps={last * STEPS}") for host in (0, 1)]
        codes = [process.wait(timeout=PATIENCE_S) for process in again]
        assert codes == [0, 0], [(tmp_path / f"log{host}").read_text()[-3000:] for host in (0, 1)]
    found = summary(tmp_path / "run")
    assert (found["status"], found["iterations"], found["derived"]["collective"]) == (
        "completed",
        last,
        "shm+gloo",
    )
    by_rank_0 = [line["iteration"] for line in lines(tmp_path / "run") if line["rank"] == 0]
    assert by_rank_0 == list(range(1, last + 1))


def test_ranks_of_other_hosts_end_where_rank_0_finds_a_mistake(tmp_path):
    with cluster.Hosts(2) as hosts:
        wrong = ["env.num_envs=3", "ppo.rollout_steps=33"]  # a batch that 4 ranks do not divide
        both = [torchrun(hosts, host, tmp_path, *wrong, nodes="2", restarts=0) for host in (0, 1)]
        codes = [process.wait(timeout=PATIENCE_S) for process in both]
    assert codes == [1, 1]
    assert "dist.world_size=4 does not divide the batch env.num_envs=3" in (tmp_path / "log0").read_text()
    assert "(exitcode: 2)" in (tmp_path / "log1").read_text()
