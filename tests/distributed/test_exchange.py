"""What environments tell one another reaches all of them alike, whoever steps them, with real processes."""

import json
import shutil
import sys

import pytest
import torch

from tests.distributed.test_independence import largest_difference
from tests.support import TINY, door, lines, run, summary

TASK = "tests.distributed.telling:tests/Telling-v0"
SIZES = [
    "env=gym", f"env.id={TASK}", "env.num_envs=6", "ppo.rollout_steps=10", "ppo.total_steps=240",
    "ppo.num_minibatches=2", "dist.check_every=1", "dtype=float64",
]  # fmt: skip
NUM_ITERATIONS = 4
SPREAD = {
    "pool": ["env.backend=pool", "env.num_workers=4"],
    "ddp": ["dist.world_size=2"],
    "ddp of 3 with pools": ["dist.world_size=3", "env.backend=pool", "env.num_workers=2"],
    "gloo": ["dist.world_size=2", "dist.collective=gloo"],
    "sync_actors": ["distributed=sync_actors", "dist.world_size=3"],
    "env_workers": ["distributed=env_workers", "dist.world_size=3"],
    "unequal shares": ["distributed=env_workers_hetero", "dist.world_size=4", "dist.env_shares=[1,3,2]"],
    "observers": ["distributed=central_inference", "dist.world_size=2", "env.num_workers=2"],
    "multi_learner": ["distributed=multi_learner", "dist.world_size=4"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    def of(*arguments):
        if arguments not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            result = door(*TINY, *SIZES, *arguments, run_dir=folder)
            assert result.code == 0, result.stderr
            done[arguments] = folder
        return done[arguments]

    done = {}
    return of


def told(run_dir):
    """Return env_steps, the sum of the numbers told and how many environments there are, of every iteration."""
    return json.loads((run_dir / "sums.json").read_text())


def state(run_dir):
    path = run_dir / "checkpoints" / f"iteration_{NUM_ITERATIONS:08d}.pt"
    return torch.load(path, weights_only=True)


def model(run_dir):
    return state(run_dir)["model"]


@pytest.mark.quick_cases("ddp", "env_workers", "observers")
@pytest.mark.parametrize("spread", SPREAD)
def test_whoever_steps_them_environments_hear_the_same_and_the_same_is_learned(trained, spread):
    alone, apart = trained("env.backend=sync"), trained(*SPREAD[spread])
    assert told(alone) == told(apart)
    assert len({total for _, total, _ in told(alone)}) == NUM_ITERATIONS
    assert largest_difference(model(alone), model(apart)) <= 1e-9


def test_what_was_heard_changes_what_is_learned(trained):
    heard, silent = trained("env.backend=sync"), trained("env.kwargs.fault=silent")
    assert told(silent) == [[60 * k, 0, 6] for k in (1, 2, 3, 4)]
    assert largest_difference(model(heard), model(silent)) > 1e-6


def test_a_megabyte_of_news_of_each_environment_arrives(trained):
    long = trained("env.kwargs.padding=1000000", "dist.world_size=2", "env.backend=pool")
    assert told(long) == told(trained("env.backend=sync"))


def test_the_journals_metrics_are_recorded_beside_the_others_and_its_summary_too(trained):
    folder = trained("dist.world_size=2")
    first = [line for line in lines(folder) if line["rank"] == 0]
    assert [line["task/sum"] for line in first] == [total for _, total, _ in told(folder)]
    assert first[0]["task/sum/mean"] == first[0]["task/sum"] / 6
    assert not any(name.startswith("task/") for line in lines(folder) if line["rank"] for name in line)
    assert summary(folder)["task"] == {"pages": NUM_ITERATIONS, "last": told(folder)[-1][1]}
    for line in lines(folder):
        parts = sum(line[f"time/t_{part}"] for part in ("rollout", "learn", "sync", "comm", "other"))
        assert parts == pytest.approx(line["time/t_iter"], rel=1e-6)


def cut_back(run_dir, iteration):
    """Make of a run that is complete one that was killed after the checkpoint of this iteration."""
    (run_dir / "summary.json").unlink()
    for path in (run_dir / "checkpoints").iterdir():
        if path.name > f"iteration_{iteration:08d}.pt":
            path.unlink()


AGAIN = {
    "sync": [],
    "ddp with pools": ["dist.world_size=2", "env.backend=pool", "env.num_workers=2"],
    "observers": [
        "dist.world_size=3",
        "env.backend=auto",
        "dist.topology=central_inference",
        "dist.observers=2",
    ],
    "env_workers": ["dist.world_size=4", "dist.topology=env_workers"],
    "actors": ["dist.world_size=3", "dist.topology=sync_actors"],
}


@pytest.mark.quick_cases("sync", "observers")
@pytest.mark.parametrize("again", AGAIN)
def test_a_resumed_run_is_the_one_that_was_not_interrupted_whoever_goes_on_with_it(trained, tmp_path, again):
    how = ["checkpoint.every_steps=60", "checkpoint.keep=9", "env.backend=sync"]
    whole = trained(*how)
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    cut_back(run_dir, 2)
    command = [sys.executable, "-m", "ddppo.train", f"resume={run_dir}", *AGAIN[again]]
    resumed = run(command, run_dir)
    assert resumed.code == 0, resumed.stderr
    assert (
        told(run_dir)[4:] == told(whole)[2:]
    )  # the notebook's first two pages, and what came after the checkpoint
    assert largest_difference(model(run_dir), model(whole)) <= 1e-9
    assert state(run_dir)["window"] == state(whole)["window"]  # of episodes that were under way, too


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("world_size", [1, 2])
def test_environments_of_a_resumed_run_hear_what_its_folder_knows_where_they_begin_anew(tmp_path, world_size):
    how = [
        *TINY,
        *SIZES,
        f"dist.world_size={world_size}",
        "ppo.total_steps=120",
        "checkpoint.environments=false",
    ]
    assert door(*how, run_dir=tmp_path / "run").code == 0
    before = told(tmp_path / "run")
    resume = [f"resume={tmp_path / 'run'}", "resume_state=approximate", "ppo.total_steps=180"]
    command = [sys.executable, "-m", "ddppo.train", *resume]
    again = run(command, tmp_path / "run")
    assert again.code == 0, again.stderr
    after = told(tmp_path / "run")
    assert after[:2] == before
    assert [steps for steps, *_ in after] == [60, 120, 180]
    fresh = door(*TINY, *SIZES, "ppo.total_steps=60", run_dir=tmp_path / "fresh")
    assert fresh.code == 0, fresh.stderr
    assert told(tmp_path / "fresh")[0][1] != after[2][1]


@pytest.mark.slow
def test_a_resumed_run_may_leave_aside_what_its_checkpoint_holds_of_environments(tmp_path):
    def goes_on(held, wanted):
        run_dir = tmp_path / f"{held} {wanted}"
        how = [*TINY, *SIZES, "ppo.total_steps=120", f"checkpoint.environments={held}"]
        assert door(*how, run_dir=run_dir).code == 0
        again = [f"resume={run_dir}", "ppo.total_steps=180", f"checkpoint.environments={wanted}"]
        again.append("resume_state=approximate")
        result = run([sys.executable, "-m", "ddppo.train", *again], run_dir)
        assert result.code == 0, result.stderr
        return told(run_dir)

    assert goes_on("true", "false") == goes_on("false", "false") != goes_on("true", "true")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises in publish", "environment 0 of rank 0 raised ValueError from publish() after step 10"),
        (
            "publishes text",
            "environment 0 of rank 0 returned str from publish() after step 10, it must return",
        ),
        ("raises in receive", "environment 0 of rank 0 raised ValueError from receive() after step 10"),
        ("raises in note", "the journal tests.distributed.telling:Notebook raised ValueError from note()"),
        ("notes what is not listed", "returned the metric summ: which its table `metrics` does not list"),
        ("notes nothing", "Notebook returned None from note(): it must be a dict of numbers"),
        ("knows a number", "Notebook returned [7] from before(): it must be a list of bytes"),
    ],
)
@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_what_a_task_does_wrong_in_it_ends_the_run_and_is_named(tmp_path, fault, said, backend):
    how = [f"env.kwargs.fault={fault}", "dist.world_size=2", f"env.backend={backend}"]
    result = door(*TINY, *SIZES, *how, run_dir=tmp_path / "run")
    assert result.code == 1
    assert said in result.stderr


def test_pictures_and_metrics_against_wall_clock_are_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = door(*TINY, *SIZES, "log.tensorboard=true", "ppo.total_steps=120", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    pages = events.Images("task/page")
    assert [(page.step, page.height, page.width) for page in pages] == [(60, 4, 5), (120, 4, 5)]
    assert [event.value for event in events.Scalars("task_by_wall_ms/sum")] == [
        event.value for event in events.Scalars("task/sum")
    ]


def test_a_bad_summary_is_told_of_and_the_run_is_complete(tmp_path):
    result = door(
        *TINY, *SIZES, "env.kwargs.fault=says a sentence", "log.progress=plain", run_dir=tmp_path / "run"
    )
    assert result.code == 0, result.stderr
    assert "the journal's summary failed" in result.stderr
    assert "returned {'said': 'all is told'} from summary(): it must be a dict" in result.stderr
    assert (summary(tmp_path / "run")["status"], summary(tmp_path / "run")["task"]) == ("completed", None)


def test_bad_pictures_are_told_of_and_the_run_goes_on(tmp_path):
    how = ["log.tensorboard=true", "env.kwargs.fault=draws badly"]
    result = door(*TINY, *SIZES, *how, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert result.stderr.count("the journal's pictures failed and is switched off") == 1
    assert summary(tmp_path / "run")["task"]["pages"] == NUM_ITERATIONS
