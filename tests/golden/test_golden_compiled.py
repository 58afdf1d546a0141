"""The compiled step gives the numbers that were kept as well, at any number of ranks; one compilation serves all."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.golden.recipe import FOLDER, SETTINGS, measure
from tests.support import TINY, started, summary, wait_until

pytestmark = [
    pytest.mark.slow,  # a minute of a core for each task
    pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler knows no folders with spaces"),
]


def compilers(cache):
    """Processes that work for this cache, by their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if str(cache / "ddppo" / "step-").encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Where a rank was killed while it had its step compiled: its cache, and the folder for its temporary files."""
    folder = tmp_path_factory.mktemp("killed")
    cache, elsewhere = folder / "cache", folder / "tmp"
    elsewhere.mkdir()
    command = [
        sys.executable, "-m", "ddppo.train", *TINY, "env=cartpole", *SETTINGS, "compile=torch",
        f"hydra.run.dir={folder / 'run'}",
    ]  # fmt: skip
    with started(command, XDG_CACHE_HOME=str(cache), TMPDIR=str(elsewhere)) as process:
        wait_until(lambda: len(compilers(cache)) > 1, "C++ compiler")  # beside what starts it
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not compilers(cache), "end of what compiles")
    return cache, elsewhere


@pytest.fixture
def cache(killed):
    """The cache of all tests of this module, the first of which compiles anew what was not finished there."""
    return killed[0]


@pytest.mark.parametrize("task", ["cartpole", "pendulum"])
def test_a_short_run_compiled_gives_the_numbers_that_were_kept(task, tmp_path, cache):
    kept = json.loads((FOLDER / f"{task}.json").read_text())
    found = measure(task, tmp_path / "run", "compile=torch", XDG_CACHE_HOME=str(cache))
    assert summary(tmp_path / "run")["compiled_from"] == 1
    for k, (expected, numbers) in enumerate(zip(kept, found, strict=True), start=1):
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-6), f"iteration {k}"


def test_any_number_of_ranks_loads_what_one_compiled_and_learns_the_same(tmp_path, cache):
    settings = ("compile=torch", "dist.check_every=1")
    measure("cartpole", tmp_path / "first", *settings, XDG_CACHE_HOME=str(cache))
    libraries = {path: path.stat().st_mtime_ns for path in cache.rglob("step-*/*.so")}
    parameters = {}
    for world_size in (1, 2, 4):
        run_dir = tmp_path / f"W{world_size}"
        measure("cartpole", run_dir, *settings, f"dist.world_size={world_size}", XDG_CACHE_HOME=str(cache))
        assert summary(run_dir)["compiled_from"] == 1
        state = torch.load(run_dir / "checkpoints" / "iteration_00000005.pt", weights_only=True)
        parameters[world_size] = torch.cat([x.flatten() for x in state["model"].values()])
    assert libraries == {path: path.stat().st_mtime_ns for path in cache.rglob("step-*/*.so")}
    for world_size in (2, 4):
        assert (parameters[world_size] - parameters[1]).abs().max() <= 1e-9


def test_what_compiles_ends_with_its_rank_however_that_ends_and_leaves_nothing_elsewhere(killed, tmp_path):
    cache, elsewhere = killed
    assert list(elsewhere.iterdir()) == []
    measure("cartpole", tmp_path / "again", "compile=torch", XDG_CACHE_HOME=str(cache))
    assert not list(cache.rglob("*.unfinished"))
