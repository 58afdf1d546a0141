import os

import pytest
import torch

from ddppo.errors import RunFolderError, StorageError
from ddppo.records import checkpoint

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
    assert state.pop("made_by").keys() == {"torch", "Python"}
    assert state == {**STATE, "model": {}, "format": checkpoint.FORMAT, "version": checkpoint.VERSION}
    assert names(path.parent) == ["best.pt"]


def test_a_checkpoint_is_loaded_without_unpickling_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = tmp_path / "best.pt"
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "trap": Trap()}, path)
    with pytest.raises(RunFolderError, match=r"best.pt is damaged, or not a checkpoint"):
        checkpoint.load(path)
    assert names(tmp_path) == ["best.pt"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_fault_while_saving_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch, moment):
    path = tmp_path / "iteration_00000001.pt"
    checkpoint.save(path, {"iteration": 1})

    def fail(*args):
        raise OSError("no space left on device")

    owner = {"fsync": os, "replace": os}[moment]
    monkeypatch.setattr(owner, moment, fail)
    with pytest.raises(StorageError, match=f"{path} cannot be written: no space left on device"):
        checkpoint.save(path, {"iteration": 2})
    monkeypatch.undo()
    assert names(tmp_path) == [path.name]
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


def cut(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])


def flip_a_bit(path):
    """In a tensor's data, where torch.load sees nothing wrong."""
    content = bytearray(path.read_bytes())
    content[content.find(STATE["model"]["weight"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["iteration"] == 3


DAMAGES = {
    "empty": lambda path: cut(path, 0.0),
    "cut": lambda path: cut(path, 0.3),
    "end missing": lambda path: cut(path, 0.99),
    "one bit": flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_not_loaded_and_the_one_before_it_found(tmp_path, damage):
    first = checkpoint.save_iteration(tmp_path, 1, STATE, keep=2)
    second = checkpoint.save_iteration(tmp_path, 2, STATE, keep=2)
    assert checkpoint.last_whole(tmp_path) == (second, [])
    damage(second)
    assert "is damaged, or not a checkpoint" in load_error(second)
    assert checkpoint.last_whole(tmp_path) == (first, [second])
    damage(first)
    assert checkpoint.last_whole(tmp_path) == (None, [second, first])


def test_damaged_checkpoints_stay_under_another_name(tmp_path):
    checkpoint.save(tmp_path / "best.pt", STATE)
    for iteration in (1, 2, 3):
        checkpoint.save_iteration(tmp_path, iteration, STATE, keep=3)
    for name in ("iteration_00000001.pt", "iteration_00000003.pt", "best.pt"):
        flip_a_bit(tmp_path / name)
    kept = checkpoint.set_damaged_aside(tmp_path)
    assert [path.name for path in kept] == ["iteration_00000003.damaged.1.pt", "best.damaged.1.pt"]
    assert checkpoint.last(tmp_path).name == "iteration_00000002.pt"
    assert checkpoint.set_damaged_aside(tmp_path) == [], "an older one hinders nobody"


def test_a_file_of_something_else_is_called_foreign(tmp_path):
    text, tensors = tmp_path / "notes.pt", tmp_path / "weights.pt"
    text.write_text("buy milk")
    assert "is damaged, or not a checkpoint" in load_error(text)
    torch.save({"weight": torch.zeros(2)}, tensors)
    assert "was not written by ddppo" in load_error(tensors)
    torch.save([1, 2], tensors)
    assert "was not written by ddppo" in load_error(tensors)
    assert "does not exist" in load_error(tmp_path / "nothing.pt")


def test_a_checkpoint_of_another_version_asks_for_the_ddppo_that_wrote_it(tmp_path):
    path = tmp_path / "best.pt"
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION + 1}, path)
    assert f"has version {checkpoint.VERSION + 1}, this ddppo reads {checkpoint.VERSION}" in load_error(path)
