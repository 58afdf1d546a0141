"""Profiles of configurations: each is run until it has written its trace and its page, which are kept."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ddppo.errors import ConfigError
from ddppo.files import stored
from ddppo.study.bench.code import this_code
from ddppo.study.bench.one_run import started
from ddppo.study.bench.workloads import Configuration

PAGE = "where_the_time_goes.md"  # as ddppo.run.measuring.profiling calls it
_ITERATIONS = 3
_WITHIN_S = 600.0


def write_profiles(todo: Sequence[Configuration], out: Path, say: Callable[[str], None]) -> list[Path]:
    """Run each configuration with log.profile_iterations and return the pages, in a folder of `out` each.

    Raises ConfigError, before anything is run, where such a folder is there already.
    """
    folders = {each: out / each.name.replace(" ", "_") for each in todo}
    for folder in folders.values():
        if folder.exists():
            raise ConfigError(f"{folder} is there already: give another folder by out=, or remove it")
    pages = []
    for configured, folder in folders.items():
        say(f"profiling {configured.name}")
        with tempfile.TemporaryDirectory(prefix="ddppo-bench-") as temporary:
            overrides = (*configured.overrides, f"log.profile_iterations={_ITERATIONS}")
            with started(this_code(), overrides, temporary) as run:
                written = run.run_dir / "profile"
                run.wait_until((written / PAGE).exists, _WITHIN_S)
                run.stop()
            with stored(folder):
                shutil.copytree(written, folder)
        pages.append(folder / PAGE)
    return pages
