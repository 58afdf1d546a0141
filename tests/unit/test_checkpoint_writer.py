"""Checkpoints are written in a thread, whole and in order, and what goes wrong there is raised where it is seen."""

import os
import threading

import pytest
import torch

from ddppo.errors import StorageError
from ddppo.loop.checkpointer import Writer, copied
from ddppo.loop.evaluation import _best_is_there
from ddppo.records import checkpoint
from ddppo.records.checkpoint import BEST, PREVIOUS
from tests.support import PATIENCE_S


def state(env_steps, best=None):
    return {"env_steps": env_steps, "best": {} if best is None else {"env_steps": best}, "x": torch.zeros(2)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps_of(path):
    return checkpoint.load(path)["env_steps"]


def test_what_changes_after_it_was_handed_over_is_not_in_the_file(tmp_path):
    writer, held = Writer(tmp_path, keep=2), state(1)
    writer.save_iteration(1, held)
    held["x"] += 1
    writer.wait()
    assert checkpoint.load(tmp_path / "iteration_00000001.pt")["x"].tolist() == [0, 0]


def test_a_copy_shares_no_memory_with_what_it_was_made_of():
    x = torch.arange(3.0)
    copy = copied({"a": [x, (x, "text")], "b": None})
    x += 1
    assert copy["a"][0].tolist() == copy["a"][1][0].tolist() == [0, 1, 2]
    assert copy["a"][1][1] == "text"
    assert copy["b"] is None


def test_one_file_is_written_at_a_time_and_the_next_waits_for_it(tmp_path, monkeypatch):
    begun, goes_on, done = threading.Event(), threading.Event(), []

    def slow(folder, iteration, state, keep):
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        done.append(iteration)

    monkeypatch.setattr(checkpoint, "save_iteration", slow)
    writer = Writer(tmp_path, keep=2)
    writer.save_iteration(1, state(1))
    assert begun.wait(PATIENCE_S)
    writer.check()  # nothing has gone wrong, and nobody waits for what is under way
    assert done == []
    goes_on.set()
    writer.save_iteration(2, state(2))
    assert done[0] == 1
    writer.wait()
    assert done == [1, 2]


def test_a_full_disk_is_told_of_by_the_next_look_and_leaves_what_was_there(tmp_path, monkeypatch):
    writer = Writer(tmp_path, keep=2)
    writer.save_iteration(1, state(1))
    writer.wait()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writer.save_iteration(2, state(2))
    with pytest.raises(
        StorageError, match=r"iteration_00000002\.pt cannot be written: No space left on device"
    ):
        writer.wait()
    monkeypatch.undo()
    writer.check()  # told of once
    assert names(tmp_path) == ["iteration_00000001.pt"]


def test_no_thread_is_left_between_writes(tmp_path):
    writer = Writer(tmp_path, keep=2)
    writer.save_iteration(1, state(1))
    writer.wait()
    assert not any(thread.name == "checkpoint" for thread in threading.enumerate())


def test_the_best_that_the_newest_checkpoint_names_stays_until_another_names_its_successor(tmp_path):
    writer = Writer(tmp_path, keep=1)
    writer.save_best(state(1))
    writer.save_iteration(1, state(1, best=1))
    writer.save_best(state(2))
    writer.save_best(state(3))
    writer.wait()
    assert (steps_of(tmp_path / BEST), steps_of(tmp_path / PREVIOUS)) == (3, 1)
    writer.save_iteration(3, state(3, best=3))
    writer.save_best(state(4))
    writer.wait()
    assert (steps_of(tmp_path / BEST), steps_of(tmp_path / PREVIOUS)) == (4, 3)


@pytest.mark.parametrize(("named", "there"), [(4, True), (3, True), (2, False), (None, False)])
def test_a_run_that_goes_on_has_the_best_that_its_checkpoint_names(tmp_path, named, there):
    writer = Writer(tmp_path, keep=1)
    writer.save_best(state(3))
    writer.save_iteration(3, state(3, best=3))
    writer.save_best(state(4))
    writer.wait()
    assert _best_is_there(tmp_path, named) is there
    assert (tmp_path / BEST).exists() is there
    if there:
        assert steps_of(tmp_path / BEST) == named
