import os

import pytest
import torch

from ddppo.errors import RunFolderError
from ddppo.run import checkpoint

STATE = {
    "iteration": 3,
    "wall_s": 1.5,
    "config": "seed: 0\n",
    "window": [[1.0, 2]],
    "best": {},
    "model": {"weight": torch.arange(6.0).reshape(2, 3)},
}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path):
    path = tmp_path / "checkpoints" / "best.pt"
    checkpoint.save(path, STATE)
    state = checkpoint.load(path)
    assert torch.equal(state["model"].pop("weight"), STATE["model"]["weight"])
    assert state == {**STATE, "model": {}, "format": checkpoint.FORMAT, "version": checkpoint.VERSION}
    assert names(path.parent) == ["best.pt"]


def test_a_checkpoint_is_loaded_without_unpickling_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "best.pt"
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "trap": Trap()}, path)
    with pytest.raises(RunFolderError, match=r"best.pt is truncated or not a checkpoint"):
        checkpoint.load(path)
    assert names(tmp_path) == ["best.pt"]


@pytest.mark.parametrize("moment", ["save", "fsync", "replace"])
def test_a_fault_while_saving_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch, moment):
    path = tmp_path / "iteration_00000001.pt"
    checkpoint.save(path, {"iteration": 1})

    def fail(*args):
        raise OSError("no space left on device")

    owner = {"save": torch, "fsync": os, "replace": os}[moment]
    monkeypatch.setattr(owner, moment, fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(path, {"iteration": 2})
    monkeypatch.undo()
    assert checkpoint.load(path)["iteration"] == 1
    assert checkpoint.last(tmp_path) == path


def test_only_the_newest_iterations_are_kept_and_the_best_is_not_counted(tmp_path):
    checkpoint.save(tmp_path / "best.pt", STATE)
    for iteration in (8, 9, 10, 100):
        checkpoint.save_iteration(tmp_path, iteration, STATE, keep=2)
    assert names(tmp_path) == ["best.pt", "iteration_00000010.pt", "iteration_00000100.pt"]
    assert checkpoint.last(tmp_path).name == "iteration_00000100.pt"


def test_an_empty_or_missing_folder_has_no_last_checkpoint(tmp_path):
    (tmp_path / "iteration_00000007.tmp").touch()
    (tmp_path / "iteration_7.pt").touch()
    assert checkpoint.last(tmp_path) is None
    assert checkpoint.last(tmp_path / "missing") is None


def load_error(path):
    with pytest.raises(RunFolderError) as caught:
        checkpoint.load(path)
    message = str(caught.value)
    assert message.startswith(f"checkpoint {path} ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_checkpoint_is_named_with_the_one_before_it(tmp_path, share):
    checkpoint.save_iteration(tmp_path, 1, STATE, keep=2)
    path = checkpoint.save_iteration(tmp_path, 2, STATE, keep=2)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    message = load_error(path)
    assert "is truncated or not a checkpoint; move it away to go on from iteration_00000001.pt" in message


def test_a_file_of_something_else_is_called_foreign(tmp_path):
    text, tensors = tmp_path / "notes.pt", tmp_path / "weights.pt"
    text.write_text("buy milk")
    assert "is truncated or not a checkpoint" in load_error(text)
    torch.save({"weight": torch.zeros(2)}, tensors)
    assert "was not written by ddppo" in load_error(tensors)
    torch.save([1, 2], tensors)
    assert "was not written by ddppo" in load_error(tensors)
    assert "does not exist" in load_error(tmp_path / "nothing.pt")


def test_a_checkpoint_of_another_version_asks_for_the_ddppo_that_wrote_it(tmp_path):
    path = tmp_path / "best.pt"
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION + 1}, path)
    assert f"has version {checkpoint.VERSION + 1}, this ddppo reads {checkpoint.VERSION}" in load_error(path)
