"""Callbacks, and what ends a run early: called on rank 0, followed by all ranks after the same iteration."""

import json
import re

import pytest

import ddppo
from ddppo.config import rules
from ddppo.config.settings import Config
from ddppo.config.stored import load_config, to_omegaconf
from ddppo.errors import ConfigError, TrainingError
from ddppo.launch import resuming
from ddppo.loop.iteration import Loop
from ddppo.loop.rank import train_rank
from ddppo.records import checkpoint
from ddppo.records.callbacks import CallbackServer, LiveRun, call_each, import_callbacks, made
from ddppo.records.run_folder import RunFolder, ending_by_evaluation, ending_holds
from tests.support import CHECKOUT, TINY, door, lines, summary

HERE = "tests.distributed.test_callbacks"
STEPS = 8 * 16  # of an iteration
SMALL = (
    *TINY, "env=cartpole", "env.num_envs=8", "ppo.rollout_steps=16", f"ppo.total_steps={6 * STEPS}", "device=cpu",
    "ppo.num_minibatches=2", "ppo.num_epochs=1", "log.warmup_iterations=0", "checkpoint.every_steps=0",
)  # fmt: skip
FACTS = {
    "folder": "/tmp/run", "iteration": 3, "env_steps": 384, "total_steps": 768, "wall_s": 1.0, "world_size": 1,
    "status": "running", "metrics": {"rollout/fps": 1.0}, "checkpoint": None,
    "coefficients": {"learning_rate": 1e-3, "clip_coef": 0.2},
}  # fmt: skip


class Noting:
    """Writes a line for each call, and asks for what its arguments say."""

    def __init__(self, stop_at=0, save_at=0):
        self.stop_at, self.save_at = stop_at, save_at

    def note(self, hook, run):
        with (run.folder / "noted.jsonl").open("a") as file:
            file.write(
                json.dumps([hook, run.iteration, run.status, sorted(run.metrics), str(run.checkpoint)])
            )
            file.write("\n")

    def on_iteration(self, run):
        self.note("on_iteration", run)
        if run.iteration == self.stop_at:
            run.stop("enough")
        if run.iteration == self.save_at:
            run.save()

    def on_evaluation(self, run):
        self.note("on_evaluation", run)

    def on_checkpoint(self, run):
        self.note("on_checkpoint", run)

    def on_end(self, run):
        self.note("on_end", run)


class Misspelt:
    def on_step(self, run): ...


def failing(run, at):
    if run.iteration == at:
        raise KeyError("the scale")


def failing_at_the_end():
    class Ends:
        def on_end(self, run):
            raise OSError("no mail")

    return Ends()


at_the_end = failing_at_the_end()


def trained(
    folder, *, resume=False, final_episodes=0, every=0, episodes=1, target=None, limit=None, total=6, compile="auto",
    lr_schedule="none", **run,
):  # fmt: skip
    """Train CartPole in this process, or go on: iterations of 128 steps."""
    config = Config()
    config.env.id, config.env.max_episode_steps, config.device = "CartPole-v1", limit, "cpu"
    config.ppo.rollout_steps, config.ppo.total_steps = 16, total * STEPS
    config.ppo.num_minibatches, config.ppo.num_epochs, config.ppo.lr_schedule = 2, 1, lr_schedule
    config.compile = compile
    config.eval.every_steps, config.eval.episodes = every * STEPS, episodes
    config.eval.final_episodes, config.target_return = final_episodes, target
    config.log.tensorboard, config.log.progress, config.checkpoint.every_steps = False, "none", 0
    config.resume = str(folder) if resume else None
    for name, value in run.items():
        setattr(config.run, name, value)
    rules.validate(config)
    RunFolder(folder).begin(config)
    train_rank(folder)
    return summary(folder)


def halving(run, at):
    """Halve the learning rate, and give entropy a weight, after iteration `at`."""
    if run.iteration == at:
        run.set("learning_rate", run.coefficients["learning_rate"] / 2)
        run.set("entropy_coef", 0.01)


def noted(folder):
    return [json.loads(line) for line in (folder / "noted.jsonl").read_text().splitlines()]


def test_every_hook_is_called_once_and_a_stop_of_rank_0_completes_all_ranks_after_one_iteration(tmp_path):
    given = f"run.callbacks=[{{path:{HERE}:Noting,stop_at:4,save_at:2}}]"
    done = door(
        *SMALL, given, "dist.world_size=2", f"eval.every_steps={3 * STEPS}", "eval.episodes=2",
        "eval.final_episodes=2", "log.progress=plain", run_dir=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    calls = noted(tmp_path)
    assert [call[:3] for call in calls] == [
        ["on_iteration", 1, "running"],
        ["on_iteration", 2, "running"],
        ["on_checkpoint", 2, "running"],
        ["on_iteration", 3, "running"],
        ["on_evaluation", 3, "running"],
        ["on_iteration", 4, "running"],
        ["on_evaluation", 4, "running"],
        ["on_checkpoint", 4, "running"],
        ["on_end", 4, "completed"],
    ]
    assert {"train/entropy", "rollout/fps", "time/t_iter"} <= set(calls[0][3])
    assert "eval/return_mean" in calls[4][3]
    assert calls[2][4].startswith(str(tmp_path / "checkpoints"))
    assert {record["iteration"] for record in lines(tmp_path)} == {1, 2, 3, 4}
    assert len(lines(tmp_path)) == 4 * 2
    found = summary(tmp_path)
    assert found["status"] == "completed"
    assert found["eval"]["final"]["episodes"] == 2
    assert found["ended"] == {"by": "callback", "why": "a callback ended it: enough"}
    assert re.search("ended early +a callback ended it: enough", done.stdout)


def test_a_run_that_a_callback_ended_is_complete_until_the_callback_is_taken_away(tmp_path):
    given = [{"path": f"{HERE}:Noting", "stop_at": 2}]
    assert trained(tmp_path, callbacks=given)["env_steps"] == 2 * STEPS
    assert RunFolder(tmp_path).is_complete
    assert trained(tmp_path, resume=True, callbacks=given)["env_steps"] == 2 * STEPS
    found = trained(tmp_path, resume=True)
    assert (found["env_steps"], found["ended"]) == (6 * STEPS, None)


def test_a_callback_that_raises_ends_the_run_by_its_name_and_the_run_goes_on_from_that_iteration(tmp_path):
    given = f"run.callbacks=[{{path:{HERE}:failing,at:3}}]"
    done = door(*SMALL, given, "dist.world_size=2", run_dir=tmp_path)
    assert done.code == 1
    assert f"run.callbacks=[{HERE}:failing]: on_iteration raised KeyError: 'the scale'" in done.stderr
    assert f"go on with resume={tmp_path}" in done.stderr
    assert checkpoint.load(checkpoint.last(tmp_path / "checkpoints"))["iteration"] == 3


@pytest.mark.parametrize("compile", ["auto", "off"])  # C++, torch
def test_a_coefficient_that_a_callback_sets_holds_from_the_next_iteration_on_and_in_a_resumed_run(
    tmp_path, compile
):
    given = {"compile": compile, "lr_schedule": "linear"}
    halves = [{"path": f"{HERE}:halving", "at": 2}]
    whole = trained(tmp_path / "whole", **given, callbacks=halves)
    with pytest.raises(TrainingError):
        trained(tmp_path / "cut", **given, callbacks=[*halves, {"path": f"{HERE}:failing", "at": 3}])
    resumed = trained(tmp_path / "cut", **given, resume=True)
    assert resumed["params_hash"] == whole["params_hash"]
    for folder in ("whole", "cut"):
        records = lines(tmp_path / folder)
        rates = [record["train/learning_rate"] for record in records]
        assert rates[:2] == [3e-4, pytest.approx(3e-4 * 5 / 6)]
        assert rates[2:] == [pytest.approx(1e-4)] * 4  # half of what is left after 2 of 6 iterations
        assert [record.get("train/entropy_coef") for record in records] == [
            None,
            None,
            0.01,
            0.01,
            0.01,
            0.01,
        ]
    assert whole["params_hash"] != trained(tmp_path / "other", **given)["params_hash"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gamma", 0.9, "coefficients of this run are learning_rate, clip_coef"),
        ("clip_coef", 0.0, "must be a finite number greater than 0"),
        ("learning_rate", float("nan"), "must be a finite number greater than 0"),
    ],
)
def test_what_cannot_be_set_is_a_mistake_in_the_callback(name, value, said):
    with pytest.raises(ValueError, match=said):
        LiveRun(FACTS).set(name, value)


def test_one_that_raises_at_the_end_leaves_a_complete_run(tmp_path):
    found = trained(tmp_path, total=1, callbacks=[f"{HERE}:at_the_end"])
    assert found["status"] == "completed"
    (failed,) = found["failed_after_training"]
    assert (failed["step"], "OSError: no mail" in failed["why"]) == ("the callback on_end", True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"{HERE}:Misspelt", "has on_step, which nothing calls: hooks are on_iteration"),
        (f"{HERE}:HERE", "it must be a function of a run, or have a method on_iteration"),
        (f"{HERE}:nowhere", "cannot be imported: AttributeError"),
        ({"path": f"{HERE}:Noting", "stop": 3}, "got an unexpected keyword argument 'stop'"),
        ({"path": f"{HERE}:at_the_end", "at": 3}, "is an object, which takes no arguments"),
        ({"path": f"{HERE}:failing"}, "missing a required argument: 'at'"),
    ],
)
def test_a_callback_that_cannot_be_called_is_a_mistake(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        import_callbacks([given])


def test_a_callback_with_arguments_gets_them_behind_the_run():
    callbacks = made([{"path": f"{HERE}:failing", "at": 3}])
    answer = call_each(callbacks, "on_iteration", FACTS)
    assert "on_iteration raised KeyError: 'the scale'" in answer["error"]
    assert call_each(callbacks, "on_evaluation", FACTS) == {}


def test_objects_of_a_program_are_called_in_the_program_at_any_number_of_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    seen = []

    class Here:
        def on_end(self, run):
            seen.append(run.config.env.id)

    def until_3(run):
        seen.append(run.iteration)
        if run.iteration == 3:
            run.stop("seen enough")

    found = ddppo.train(
        [*SMALL, "dist.world_size=2", f"hydra.run.dir={tmp_path / 'run'}"],
        callbacks=[until_3, Here()],
    )
    assert seen == [1, 2, 3, "CartPole-v1"]
    assert found["ended"]["why"] == "a callback ended it: seen enough"


def test_an_object_that_raises_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)

    def wrong(run):
        raise ValueError("not so")

    with pytest.raises(TrainingError, match=r"wrong\]: on_iteration raised ValueError: not so"):
        ddppo.train([*SMALL, f"hydra.run.dir={tmp_path / 'run'}"], callbacks=[wrong])
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ("my_pkg:Early", "import paths belong into the settings, run.callbacks=[my_pkg:Early]"),
        (Noting, "is a class: give an object of it, Noting(...)"),
        (Misspelt(), "has on_step, which nothing calls"),
    ],
)
def test_an_object_that_cannot_be_called_is_a_mistake(callback, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        CallbackServer([callback])


# -- What ends a run by its evaluations.


def config(target=None, **run):
    made = Config()
    made.target_return = target
    for name, value in run.items():
        setattr(made.run, name, value)
    return made


def test_an_evaluation_ends_a_run_at_its_target_or_without_progress():
    at_target = config(10.0, stop_at_target=True)
    assert ending_by_evaluation(at_target, 9.9, 7) == {}
    reached = ending_by_evaluation(at_target, 10.0, 0)
    assert reached["by"] == "target"
    assert ending_holds(at_target, reached)
    assert not ending_holds(config(11.0, stop_at_target=True), reached)
    assert not ending_holds(config(10.0), reached)
    patient = config(patience=3)
    assert ending_by_evaluation(patient, 0.0, 2) == {}
    stuck = ending_by_evaluation(patient, 0.0, 3)
    assert stuck["by"] == "patience"
    assert ending_holds(patient, stuck)
    assert not ending_holds(config(patience=4), stuck)
    assert ending_by_evaluation(config(10.0), 99.0, 99) == {}


def test_a_run_completes_at_its_target_with_a_final_evaluation_and_the_evaluation_that_ended_it(tmp_path):
    given = {"every": 2, "episodes": 2, "final_episodes": 3, "target": 1.0, "stop_at_target": True}
    found = trained(tmp_path, **given)
    assert (found["env_steps"], found["status"], found["ended"]["by"]) == (2 * STEPS, "completed", "target")
    assert (found["eval"]["final"]["episodes"], found["target"]["steps_to_target"]) == (3, 2 * STEPS)
    assert [line.get("eval/episodes") for line in lines(tmp_path)] == [None, 2]
    with pytest.raises(ConfigError, match=r"add run\.stop_at_target=false, or a higher target_return"):
        resuming.resumed(to_omegaconf(load_config(tmp_path / "config.yaml")), tmp_path, [])
    assert trained(tmp_path, resume=True, **given | {"stop_at_target": False})["env_steps"] == 6 * STEPS


def test_a_run_that_is_killed_in_its_final_evaluation_only_evaluates_when_it_is_resumed(
    tmp_path, monkeypatch
):
    given = {"every": 2, "final_episodes": 3, "target": 1.0, "stop_at_target": True}
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(tmp_path, **given)
    found = trained(tmp_path, resume=True, **given)
    assert (found["env_steps"], found["ended"]["by"], found["eval"]["final"]["episodes"]) == (
        2 * STEPS,
        "target",
        3,
    )


def test_evaluations_without_a_new_best_are_counted_on_by_a_resumed_run(tmp_path):
    # Episodes of 4 steps at most: the first evaluation is as good as any.
    given = {"limit": 4, "every": 1, "patience": 3}
    with pytest.raises(TrainingError, match="the scale"):
        trained(tmp_path, **given, callbacks=[{"path": f"{HERE}:failing", "at": 3}])
    found = trained(tmp_path, resume=True, **given)
    assert (found["ended"]["by"], found["env_steps"]) == (
        "patience",
        4 * STEPS,
    )  # the first is a best, three are not


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"stop_at_target": True}, "run.stop_at_target=true needs target_return"),
        ({"stop_at_target": True, "target": 3.0, "final_episodes": 1}, "never compared without evaluations"),
        ({"patience": 2}, "run.patience=2 is never compared without evaluations"),
        ({"callbacks": ["early"]}, "run.callbacks=[early]: must be an import path"),
        (
            {"callbacks": [{"patience": 3}]},
            "must be an import path like my_pkg.early:Early, or one with arguments",
        ),
    ],
)
def test_a_stop_that_never_comes_is_a_mistake(tmp_path, run, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        trained(tmp_path, **run)
