"""What a rank's end, without destructors, leaves behind."""

import os
import tempfile
from multiprocessing import current_process

import pytest

from ddppo.distributed.join import leave


@pytest.fixture
def left(monkeypatch):
    """Have a rank leave, but for the very end."""

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)

    def leave_with(code):
        with pytest.raises(SystemExit) as ended:
            leave(code)
        assert ended.value.code == code

    return leave_with


def test_a_rank_that_leaves_makes_no_temporary_file(left, monkeypatch):
    monkeypatch.delitem(current_process()._config, "tempdir", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", lambda: pytest.fail("a folder was tried"))
    left(3)


def test_a_rank_takes_the_folder_with_it_in_which_servers_of_multiprocessing_listen(
    left, monkeypatch, tmp_path
):
    folder = tmp_path / "pymp"
    folder.mkdir()
    monkeypatch.setitem(current_process()._config, "tempdir", str(folder))
    left(0)
    assert not folder.exists()
