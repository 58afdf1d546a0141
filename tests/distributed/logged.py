"""distributed=ddp whose ranks write the names of their collectives to a file, one a line."""

import os
from pathlib import Path

from ddppo.distributed.topologies.contract import Layout, Role, TopologySpec
from ddppo.distributed.topologies.ddp import Ddp


def layout(world_size, sizes):
    worker = Role("worker", tuple(range(world_size)), steps=True, acts=True, learns=True, does=())
    return Layout((worker,), ())


class LoggedWorker(Ddp):
    """LOGGED names the folder; the file of rank 1 is `1`. "begin" stands before every iteration."""

    def __init__(self, context):
        group = context.group
        log = (Path(os.environ["LOGGED"]) / str(group.rank)).open("w", buffering=1)

        def logged(name):
            call = getattr(group, name)

            def log_and_call(*arguments):
                log.write(f"{name}\n")
                return call(*arguments)

            return log_and_call

        for name in ("begin", "sum_", "gather", "gather_at_root", "broadcast_", "barrier"):
            setattr(group, name, logged(name))
        super().__init__(context)


Logged = TopologySpec("logged", "ddp with a log", layout, "tests.distributed.logged:LoggedWorker")
