"""Jobs that SLURM interrupts go on where they were, with no step lost that was saved and none counted twice."""

from dataclasses import replace

import pytest

from ddppo.cluster import slurm
from ddppo.cluster.resources import RankLayout
from tests.slurm.jobs import STEPS, config
from tests.support import wait_until

pytestmark = pytest.mark.slow
TWO_NODES = RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo")
ITERATIONS = 40


def slow(iterations=ITERATIONS, world_size=2, **more):
    """An iteration takes 64 ms or more of 2 ranks: 16 steps of 2 environments each."""
    return config(iterations, world_size, step_time_s=0.002, **more)


def assert_every_iteration_once(job, iterations=ITERATIONS):
    assert job.iterations == list(range(1, iterations + 1))
    assert job.summary["status"] == "completed"
    assert job.summary["env_steps"] == iterations * STEPS
    assert not (job.run_dir / "metrics.superseded.jsonl").exists()


def saved(job):
    return [
        int(p.stem.removeprefix("iteration_")) for p in (job.run_dir / "checkpoints").glob("iteration_*.pt")
    ]


def test_a_job_told_to_stop_saves_queues_again_and_goes_on(jobs):
    run = slow()
    run = replace(run, env=replace(run.env, backend="pool"))  # environments' processes get the signal too
    job = jobs.submit(run, TWO_NODES)
    job.wait_for_iteration(3)
    for _ in range(2):  # what works once must work again
        slurm.command("scancel", "--batch", "--signal=USR2", job.id)
        done = job.wait_until_requeued()
        assert max(saved(job)) == done
        job.wait_for_iteration(done + 3)
    job.wait_for_state("COMPLETED")
    assert_every_iteration_once(job)


def test_so_does_a_heterogeneous_job_all_of_whose_ranks_stop_at_one_step(jobs, forked_ranks):
    run = slow(world_size=3)
    run = replace(run, dist=replace(run.dist, topology="env_workers"))
    learner = RankLayout(1, 1, 1, cpus_per_rank=2)
    job = jobs.submit(run, RankLayout(2, 2, 1, cpus_per_rank=1, interface="lo", learner=learner))
    job.wait_for_iteration(3)
    slurm.command("scancel", "--batch", "--signal=USR2", job.id)
    done = job.wait_until_requeued()
    assert max(saved(job)) == done
    job.wait_for_state("COMPLETED")
    assert_every_iteration_once(job)


@pytest.mark.parametrize("which", [0, 1], ids=["first", "last"])
def test_an_element_of_an_array_is_told_to_stop_alone(jobs, forked_ranks, which):
    elements = jobs.submit_array([slow(), slow()], TWO_NODES)
    told, other = elements[which], elements[1 - which]
    for job in elements:
        job.wait_for_iteration(3)
    slurm.command("scancel", "--batch", "--signal=USR2", told.id)
    done = told.wait_until_requeued()
    assert saved(told) == [done]
    for job in elements:
        job.wait_for_state("COMPLETED")
        assert_every_iteration_once(job)
    assert saved(other) == [ITERATIONS]


def test_a_signal_while_ranks_still_start_kills_none_and_is_not_lost(jobs):
    job = jobs.submit(slow(), TWO_NODES)
    wait_until(lambda: bool(job.ranks()), "rank")
    slurm.command("scancel", "--batch", "--signal=USR2", job.id)
    done = job.wait_until_requeued()
    assert done < ITERATIONS
    assert saved(job) == [done]
    job.wait_for_state("COMPLETED")
    assert_every_iteration_once(job)


@pytest.fixture(params=["USR2", "TERM"])
def notice(request, cluster):
    """What SLURM sends when it takes nodes: SIGUSR2 to the job's script if it is told to, else SIGTERM to ranks."""
    text = cluster.conf.read_text()
    if request.param == "TERM":
        cluster.conf.write_text(text.replace("SlurmctldParameters=preempt_send_user_signal\n", ""))
        cluster.ask("scontrol", "reconfigure")
    yield request.param
    if request.param == "TERM":
        cluster.conf.write_text(text)
        cluster.ask("scontrol", "reconfigure")


def test_a_job_whose_nodes_are_wanted_gives_them_up_and_goes_on_later(jobs, notice):
    job = jobs.submit(slow(), TWO_NODES, partition="low")
    job.wait_for_iteration(3)
    arguments = ("--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    other = slurm.command("sbatch", "--parsable", *arguments).strip()
    wait_until(lambda: slurm.query([other])[other].state == "COMPLETED", "end of the job in front")
    done = job.wait_until_requeued()
    assert saved(job) == [done]
    job.wait_for_state("COMPLETED")
    assert_every_iteration_once(job)


def test_a_job_whose_time_is_over_goes_on_in_another(jobs, forked_ranks):
    # SLURM looks every 30 s, and gives notice if the time would be over before it looks again: after 15 to 45 s.
    job = jobs.submit(slow(10**6), TWO_NODES, time=1, signal_s=15)
    job.wait_for_iteration(1)
    done = job.wait_until_requeued()
    assert saved(job) == [done]
    assert job.summary["status"] == "stopped"
    job.wait_for_iteration(done + 2)
    iterations = job.iterations  # once: it goes on
    assert iterations == list(range(1, len(iterations) + 1))
