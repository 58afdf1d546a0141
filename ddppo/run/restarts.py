"""What becomes of a run that lost a rank: it ends, or goes on from its last checkpoint (dist.on_lost=restart)."""

from collections.abc import Callable
from typing import TypeVar

from ddppo.config import Config
from ddppo.errors import RankLost
from ddppo.run.folder import RunFolder
from ddppo.terminal import warn

_T = TypeVar("_T")


def with_restarts(folder: RunFolder, config: Config, run: Callable[[], _T]) -> _T:
    """Return what `run` does, called again whenever it lost a rank, at most dist.max_restarts times.

    The folder is made ready for that as resume=<folder> makes it; call this while it is held. Raises RankLost where
    that was once too often or dist.on_lost=stop, and whatever else `run` raises.
    """
    before = folder.num_restarts
    while True:
        try:
            return run()
        except RankLost as e:
            if config.dist.on_lost == "stop":
                raise
            number = folder.num_restarts - before + 1  # with those of single ranks
            if number > config.dist.max_restarts:
                raise RankLost(
                    f"{e}. That was after dist.max_restarts={config.dist.max_restarts} restarts"
                ) from None
            config = folder.begin(config)
            last = folder.last_iteration
            goes_on = (
                f"going on from iteration {last}" if last else "beginning anew, for there is no checkpoint"
            )
            folder.note_restart(e.who, goes_on_from=last)
            warn(f"{e.who}; {goes_on} (restart {number} of {config.dist.max_restarts})")
