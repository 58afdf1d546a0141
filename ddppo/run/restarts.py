"""What becomes of a run that lost a rank: it ends, or goes on from its last checkpoint (dist.on_lost=restart)."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ddppo.config import Config, validate
from ddppo.errors import ConfigError, RankLost
from ddppo.run.folder import RunFolder
from ddppo.terminal import warn

_T = TypeVar("_T")


def with_restarts(folder: RunFolder, config: Config, run: Callable[[Config], _T]) -> _T:
    """Return what `run` does, called again whenever it lost a rank, at most dist.max_restarts times.

    Where a rank was lost twice without a checkpoint in between, fewer go on, if dist.min_workers allows that. The
    folder is made ready as resume=<folder> makes it; call this while it is held. Raises RankLost where that was once
    too often or dist.on_lost=stop, and whatever else `run` raises.
    """
    before, most = folder.num_restarts, config.dist.max_restarts
    gone_on_from: int | None = None
    while True:
        try:
            return run(config)
        except RankLost as e:
            if config.dist.on_lost == "stop":
                raise
            number = folder.num_restarts - before + 1  # with those of single ranks
            if number > most:
                raise RankLost(f"{e}. That was after dist.max_restarts={most} restarts") from None
            config = folder.begin(config)
            last = folder.last_iteration
            goes_on = (
                f"going on from iteration {last}" if last else "beginning anew, for there is no checkpoint"
            )
            if gone_on_from == last and (smaller := fewer(config)) is not None:
                config = folder.begin(smaller)
                goes_on += f", on {config.dist.world_size} ranks"
            gone_on_from = last
            folder.note_restart(e.who, goes_on_from=last, world_size=config.dist.world_size)
            warn(f"{e.who}; {goes_on} (restart {number} of {most})")


def fewer(config: Config) -> Config | None:
    """Return the same run on the most ranks below W that its batch can be dealt to; None below dist.min_workers."""
    dist, sizes = config.dist, validate(config)
    for world_size in range(dist.world_size - 1, (dist.min_workers or dist.world_size) - 1, -1):
        smaller = replace(config, dist=replace(dist, world_size=world_size))
        with suppress(ConfigError):
            found = validate(smaller)
            if (found.num_envs, found.batch_size) == (sizes.num_envs, sizes.batch_size):
                return smaller
    return None
