"""Runs as real jobs: submitted by submitit as a launcher does it, watched by squeue."""

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import submitit

from ddppo.cluster import slurm
from ddppo.cluster.driver import Driver
from ddppo.cluster.resources import RankLayout, SlurmLauncherConfig, sbatch_parameters
from ddppo.config import stored
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.settings import CheckpointConfig, Config, EnvConfig, EvalConfig, LogConfig
from tests.slurm.local_cluster import LocalCluster
from tests.support import CHECKOUT, lines, summary, wait_until

STEPS = 64  # of an iteration
QUIET = LogConfig(tensorboard=False, progress="none")


def config(
    iterations: int, world_size: int, *, step_time_s: float = 0.0, checkpoint_every: int = 0
) -> Config:
    """Return a run of so many iterations of 64 steps, whose speed step_time_s sets."""
    kwargs = {"step_time_s": step_time_s, "episode_steps": 20}
    base = Config(
        env=EnvConfig(id="ddppo/Synthetic-v0", num_envs=4, backend="sync", kwargs=kwargs),
        ppo=PPOSettings(total_steps=iterations * STEPS, rollout_steps=16, num_epochs=1, num_minibatches=2),
        eval=EvalConfig(final_episodes=0),
        checkpoint=CheckpointConfig(every_steps=checkpoint_every * STEPS),
        log=QUIET,
        device="cpu",
    )
    return replace(base, dist=replace(base.dist, world_size=world_size, timeout_s=600.0))


def iterations(run_dir: Path, name: str = "metrics.jsonl") -> list[int]:
    """Return the iterations that rank 0 wrote down, in order."""
    return [line["iteration"] for line in lines(run_dir, name) if line["rank"] == 0]


class Job:
    def __init__(self, job: submitit.Job, run_dir: Path, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.id = job.job_id
        self.run_dir = run_dir
        self.paths = job.paths

    @property
    def info(self) -> slurm.JobInfo:
        return slurm.query([self.id])[self.id]

    @property
    def log(self) -> str:
        return self.paths.stdout.read_text() if self.paths.stdout.exists() else ""

    @property
    def iterations(self) -> list[int]:
        return iterations(self.run_dir)

    @property
    def summary(self) -> dict:
        return summary(self.run_dir)

    def ranks(self) -> dict[int, int]:
        """Return the process of each of the job's ranks."""
        found = {}
        for pid in self.cluster.processes():
            with suppress(OSError):  # it ended meanwhile
                arguments = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
                if Path(arguments[0]).name.startswith("python") and str(self.run_dir) in arguments[3:]:
                    environ = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
                    found[
                        next(int(e.partition("=")[2]) for e in environ if e.startswith("SLURM_PROCID="))
                    ] = pid
        return found

    def wait_for_state(self, *states: str) -> None:
        """Wait for one of the states, or for any end; fail with the job's log if the end is another, or none."""

        def reached() -> bool:
            info = self.info
            assert info.state in states or not info.has_ended, f"not {states}"
            return info.state in states

        self._wait_until(reached, f"state {' or '.join(states)}")

    def wait_for_iteration(self, number: int) -> None:
        def reached() -> bool:
            assert not self.info.has_ended, f"it ended before iteration {number}"
            return bool(self.iterations) and self.iterations[-1] >= number

        self._wait_until(reached, f"iteration {number}")

    def _wait_until(self, reached: Callable[[], bool], what: str) -> None:
        try:
            wait_until(reached, f"{what} of job {self.id}")
        except AssertionError as error:
            nodes = slurm.command("sinfo", "--Node", "--long", "--noheader")
            raise AssertionError(
                f"{error}\n{self.info}\nits ranks: {self.ranks()}\n{nodes}\n{self.log}"
            ) from error

    def wait_until_requeued(self) -> int:
        """Wait until the job is in the queue again, and return its last iteration.

        SLURM would hold it for two minutes. We say two seconds; at once, a node might still refuse it as the job that
        it has just ended.
        """
        self.wait_for_state("PENDING")
        done = self.iterations[-1]
        slurm.command("scontrol", "update", f"jobid={self.id}", "StartTime=now+2")
        return done


class Jobs:
    """Submits runs, and ends those that are left."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.folder = folder
        self.submitted: list[Job] = []

    def submit(self, config: Config, layout: RankLayout, *, run_dir: Path | None = None, **more: Any) -> Job:
        """Submit a run, in a folder of its own unless one is given; see submit_array."""
        (job,) = self._submit([(config, run_dir or self._new())], layout, **more)
        return job

    def submit_array(self, configs: Sequence[Config], layout: RankLayout, **more: Any) -> list[Job]:
        """Submit runs as one array; `more` are parameters of submitit in place of the launcher's."""
        return self._submit([(config, self._new()) for config in configs], layout, **more)

    def _submit(
        self, runs: Sequence[tuple[Config, Path]], layout: RankLayout, *, signal_s: int = 20, **more: Any
    ) -> list[Job]:
        launcher = SlurmLauncherConfig(signal_s=signal_s, additional_parameters={"chdir": str(CHECKOUT)})
        executor = submitit.SlurmExecutor(
            self.folder / "submitit", python=f"exec {shlex.quote(sys.executable)}"
        )
        executor.update_parameters(**(sbatch_parameters(layout, launcher, "test") | more))
        for config, run_dir in runs:
            (run_dir / "config.yaml").write_text(stored.to_yaml(config))
        submitted = executor.submit_array([Driver(run_dir, layout) for _, run_dir in runs])
        jobs = [Job(job, run_dir, self.cluster) for job, (_, run_dir) in zip(submitted, runs, strict=True)]
        self.submitted += jobs
        return jobs

    def _new(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="run", dir=self.folder))

    def cancel_all(self) -> None:
        if ids := [job.id for job in self.submitted]:
            slurm.cancel(ids)
            wait_for_end(*ids)


def wait_for_end(*job_ids: str) -> None:
    def ended() -> bool:
        infos = slurm.query(job_ids)
        return len(infos) == len(job_ids) and all(info.has_ended for info in infos.values())

    wait_until(ended, f"end of {job_ids}")
