"""The compiled part of the collectives: built once, whole, wherever that is possible."""

import os
import subprocess
import sys
import threading

import pytest

from ddppo.collectives import compiled
from ddppo.config import Config
from ddppo.distributed.launch import check_collective, resolve_device
from ddppo.errors import ConfigError


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.prepare.cache_clear()
    yield tmp_path / "ddppo"
    compiled.prepare.cache_clear()


def test_it_is_compiled_into_the_cache_at_first_use_and_found_there_later(empty_cache, monkeypatch):
    path = compiled.prepare()
    assert path == empty_cache / compiled.file_name()
    compiled.prepare.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    assert compiled.prepare() == path
    assert [each.name for each in empty_cache.iterdir()] == [path.name]


def test_many_at_once_leave_one_whole_file(empty_cache):
    empty_cache.mkdir()
    path = empty_cache / compiled.file_name()
    threads = [threading.Thread(target=compiled.build, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(empty_cache.iterdir()) == [path]
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).segment_bytes(2, 64))"
    assert int(subprocess.check_output([sys.executable, "-c", code])) > 2 * 3 * 64


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compiled.prepare.cache_clear()
    yield tmp_path / f"ddppo-{os.getuid()}"
    compiled.prepare.cache_clear()


def test_a_cache_that_cannot_be_written_is_done_without_and_leaves_one_folder(
    no_cache, tmp_path, monkeypatch
):
    first = compiled.prepare()
    assert first.is_file()
    compiled.prepare.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)  # a second process finds what the first has built
    assert compiled.prepare() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [no_cache.name, "file"]


def test_nothing_is_loaded_from_a_temporary_folder_that_others_can_write_to(no_cache):
    no_cache.mkdir()
    no_cache.chmod(0o777)
    with pytest.raises(compiled.NotCompiled, match="others can write to"):
        compiled.prepare()


def test_without_a_compiler_shm_is_refused_before_any_process_starts_and_auto_is_not(
    empty_cache, monkeypatch
):
    monkeypatch.setattr("shutil.which", lambda name: None)
    config, cpu = Config(), resolve_device("cpu")
    config.dist.world_size = 2
    check_collective(config, cpu, 2)
    config.dist.collective = "shm"
    with pytest.raises(ConfigError, match=r"dist\.collective=shm .* no C compiler .* dist\.collective=gloo"):
        check_collective(config, cpu, 2)
