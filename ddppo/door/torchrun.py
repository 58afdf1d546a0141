"""The door under an outer torchrun: rank 0 composes the configuration, the others follow it."""

import os
from contextlib import suppress
from pathlib import Path

from ddppo.processes.signals import stop_signals_kill

_leads = False  # whether this process, as rank 0, has told the others of their run


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def forget_torchrun() -> None:
    """Take what torchrun says to its ranks out of the environment: left in a shell, it would be believed."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        os.environ.pop(name, None)


def lead(run_dir: Path) -> int | None:
    global _leads
    from ddppo.distributed import formation
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import train_rank

    stop_signals_kill()  # until the loop can stop in good order: it may wait inside torch for the others
    store = formation.lead(rendezvous_store(), int(os.environ["WORLD_SIZE"]), run_dir.resolve())
    _leads = True
    return train_rank(run_dir, store)


def follow() -> None:
    from ddppo.distributed import formation
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import run_rank

    stop_signals_kill()
    store, run_dir = formation.follow(rendezvous_store(), int(os.environ["RANK"]))
    # Not 0, which torchrun takes for the run's end: it may have stopped the ranks to start them with another host's.
    run_rank(run_dir, lambda: store, if_cut_short=os.EX_TEMPFAIL)


def dismiss(exit_code: int) -> None:
    """Tell ranks that would wait that rank 0 ends without a run. Where it fails those of its own host end anyway."""
    is_one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if _leads or os.environ["RANK"] != "0" or (exit_code != 0 and is_one_host):
        return
    from ddppo.distributed import formation
    from ddppo.distributed.launch import rendezvous_store

    with suppress(Exception):  # what comes on top of a fault would hide it
        formation.dismiss(rendezvous_store(), int(os.environ["WORLD_SIZE"]), exit_code)
