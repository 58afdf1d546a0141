"""A folder has one holder at a time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ddppo.errors import RunFolderError
from ddppo.records.run_folder import held
from tests.support import PATIENCE_S


def test_a_folder_that_is_held_is_refused_until_its_holder_leaves(tmp_path):
    folder = tmp_path / "new"
    refused = pytest.raises(RunFolderError, match=f"{folder} is in use by another process")
    with held(folder), refused, held(folder):
        pass
    with held(folder):
        pass


def test_a_holder_that_leaves_in_time_is_waited_for(tmp_path):
    def wait():
        with held(tmp_path, patience_s=PATIENCE_S):
            return True

    with ThreadPoolExecutor() as pool, held(tmp_path):
        waiting = pool.submit(wait)
        with pytest.raises(RunFolderError), held(tmp_path, patience_s=0.3):
            pass
        assert not waiting.done()
    assert waiting.result(timeout=PATIENCE_S)
