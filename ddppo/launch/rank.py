"""How a process becomes a rank: our own launcher forks it, or torchrun or mpirun started it.

Our launcher (local_ranks.py) runs `python -m ddppo.launch.rank <run folder>` in a fork for each rank: `main`.

torchrun, mpirun, mpiexec and srun start `ddppo.train` in every process. Rank 0 composes and checks the configuration,
tells the others the run folder and trains (`lead`). The others wait for it (`follow`). If rank 0 ends without a run, it
tells them to end (`dismiss`).

The ranks that torchrun started must not take an earlier start's words for this one's. After a fault torchrun starts its
ranks again, perhaps on fewer hosts. Its store may be the one of before, with all that ranks wrote into it, and torchrun
gives no rank a value that is the same on all hosts and new in every start. So each rank above 0 writes a random word,
and rank 0 answers to each word with a random name for this start. All further keys begin with that name.
"""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddppo.errors import CollectiveError, TrainingError, first_sentence
from ddppo.launch.torchrun import end_at_once, launcher
from ddppo.processes.signals import stop_signals_kill

if TYPE_CHECKING:  # torch takes a second, and signals are to be set before it
    import torch.distributed as dist

_LOOK_EVERY_S = 0.05
_HERE, _ANSWER, _CAME = "ddppo/here/{}", "ddppo/answer/{}", "ddppo/came/{}"  # keys in torchrun's store
_has_told = False  # whether this process, as rank 0, told the others about the run, or failed to reach them


def main() -> None:
    """Train as the rank that the environment variables describe; never returns.

    A signal to stop ends the process silently until the loop can stop in good order.
    """
    stop_signals_kill(signal.SIGINT)
    from ddppo.loop.rank import run_launched_rank

    run_launched_rank(Path(sys.argv[1]))


# -- Ranks that torchrun, mpirun, mpiexec or srun started.


def lead(run_dir: Path, timeout_s: float) -> int | None:
    """Train as rank 0 of a launcher, after telling the other ranks the run folder.

    Returns the signal that asked this rank to stop, if any. Raises CollectiveError if a rank does not come in time.
    """
    global _has_told
    from ddppo.distributed.network import leaving_meeting, rendezvous_store
    from ddppo.loop.rank import train_rank

    # A stop signal kills until the loop can stop in good order. Not SIGINT: rank 0 reports it, and its own waits below
    # are outside torch, where Python's handler runs.
    stop_signals_kill()
    world_size = int(os.environ["WORLD_SIZE"])
    try:
        with leaving_meeting():
            store = tell_run(rendezvous_store(timeout_s), world_size, run_dir.resolve(), timeout_s)
    except TrainingError:
        _has_told = True
        raise
    _has_told = True
    return train_rank(run_dir, lambda _: store)


def follow(arguments: Sequence[str]) -> NoReturn:
    """Be a rank above 0 of a launcher, and print nothing: rank 0 reports all that ends the run."""
    # Before torch is imported: an exception in the middle of that breaks torch.
    stop_signals_kill(signal.SIGINT)
    from ddppo.config.settings import DistSettings
    from ddppo.distributed.network import rendezvous_store
    from ddppo.loop.rank import run_rank

    timeout_s = _timeout_s(arguments, DistSettings().timeout_s)
    try:
        store, run_dir = hear_run(rendezvous_store(timeout_s), int(os.environ["RANK"]), timeout_s)
    except SystemExit as e:
        end_at_once(int(e.code or 0))
    # Exit code 0 would mean to torchrun that the run is complete. Perhaps it only stopped this rank to start it again
    # with another host's. mpirun would take any other code for a fault, and kill rank 0 while it says how to go on.
    run_rank(run_dir, lambda _: store, if_cut_short=os.EX_TEMPFAIL if launcher() == "torchrun" else 0)


def _timeout_s(arguments: Sequence[str], default: float) -> float:
    """Return dist.timeout_s of a command line. Only rank 0 reads presets: if they set it, this is the default."""
    for argument in reversed(arguments):
        name, _, value = argument.partition("=")
        if name.lstrip("+") == "dist.timeout_s":
            with suppress(ValueError):
                return min(max(float(value), 1.0), 2e6)
    return default


def dismiss(exit_code: int) -> None:
    """As rank 0 of a launcher without a run, tell the ranks that wait: they end silently with this exit code.

    Not after Ctrl-C on one host, which reached all ranks.
    """
    is_one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if _has_told or os.environ["RANK"] != "0" or (exit_code >= 128 and is_one_host):
        return
    stop_signals_kill(signal.SIGINT)
    # torchrun sends it to the others once one of them has ended, and mpirun too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from ddppo.distributed.network import leaving_meeting, rendezvous_store

    with suppress(Exception), leaving_meeting():  # an exception would hide the fault for which rank 0 ends
        tell_end(rendezvous_store(30.0), int(os.environ["WORLD_SIZE"]), exit_code)


# -- The words in torchrun's store: rank r writes here/r, rank 0 answers, rank r writes came/r under the start's name.


def tell_run(store: "dist.Store", world_size: int, run_dir: Path, timeout_s: float) -> "dist.Store":
    """Tell the other ranks of this start the run folder, as rank 0; return the store that is theirs alone.

    Raises CollectiveError if one has not come after `timeout_s`.
    """
    import torch.distributed as dist

    from ddppo.collectives.peers import in_words

    name = uuid.uuid4().hex
    own_store = dist.PrefixStore(f"ddppo/start/{name}", store)
    try:
        missing = _answer(store, world_size, {"start": name, "run_dir": str(run_dir)}, own_store, timeout_s)
    except dist.DistError as e:
        raise CollectiveError(f"rank 0 lost the store of the ranks: {first_sentence(e)}") from e
    if missing:
        raise CollectiveError(
            f"{in_words(missing)} of {world_size} did not come within {timeout_s:g} s of rank 0 (dist.timeout_s)"
        )
    return own_store


def tell_end(store: "dist.Store", world_size: int, exit_code: int, timeout_s: float = 30.0) -> None:
    """Tell the ranks of this start that come within `timeout_s` that there is no run, and rank 0's exit code."""
    import torch.distributed as dist

    name = uuid.uuid4().hex
    own_store = dist.PrefixStore(f"ddppo/start/{name}", store)
    _answer(store, world_size, {"start": name, "exit_code": exit_code}, own_store, timeout_s)


def hear_run(store: "dist.Store", rank: int, timeout_s: float) -> "tuple[dist.Store, Path]":
    """Return the store of this start's ranks and the run folder, once rank 0 has told them.

    Raises SystemExit if there is no run, CollectiveError if rank 0 does not answer within `timeout_s`.
    """
    import torch.distributed as dist

    word = uuid.uuid4().hex
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        store.set(_HERE.format(rank), word)
        answer = json.loads(store.get(_ANSWER.format(word)))
    except dist.DistError as e:
        raise CollectiveError(
            f"rank {rank} had no answer from rank 0 within {timeout_s:g} s (dist.timeout_s): {first_sentence(e)}"
        ) from e
    own_store = dist.PrefixStore(f"ddppo/start/{answer['start']}", store)
    own_store.set(_CAME.format(rank), word)
    if "exit_code" in answer:
        raise SystemExit(answer["exit_code"])
    return own_store, Path(answer["run_dir"])


def _answer(
    store: "dist.Store",
    world_size: int,
    answer: dict[str, str | int],
    own_store: "dist.Store",
    timeout_s: float,
) -> list[int]:
    """Answer every word until all ranks have come, or `timeout_s` is over; return the ranks that have not.

    A rank may have left a word in an earlier start. Its new word replaces that one, and is answered too.
    """
    missing, answered = list(range(1, world_size)), set[bytes]()
    end = time.monotonic() + timeout_s
    while missing and time.monotonic() < end:
        for rank in missing:
            if store.check([_HERE.format(rank)]) and (word := store.get(_HERE.format(rank))) not in answered:
                answered.add(word)
                store.set(_ANSWER.format(word.decode()), json.dumps(answer))
        missing = [rank for rank in missing if not own_store.check([_CAME.format(rank)])]
        if missing:
            time.sleep(_LOOK_EVERY_S)
    return missing


if __name__ == "__main__":
    main()
