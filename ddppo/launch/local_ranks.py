"""Starting ranks on this machine and waiting for them; a run that failed says which rank did."""

import atexit
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch.distributed as dist

from ddppo.collectives.peers import have_met, in_words, last_words
from ddppo.config.rules import layout
from ddppo.config.settings import Config
from ddppo.distributed.network import loopback_address
from ddppo.errors import LOST_PEERS, MAY_PASS, RankLost, Stopped, TrainingError
from ddppo.processes import limits
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost, how_ended
from ddppo.processes.signals import StopRequest
from ddppo.terminal import warn

_POLL_S = 0.05
_PATIENCE_S = 5.0  # for ranks to notice that one is lost, say so and close their files

# What ranks find imported: themselves, and what torch's optimizers import when first made, which takes as long.
_IMPORTS = ("ddppo.loop.rank", "torch._dynamo")
_server: ForkServer | None = None


def prepare(world_size: int) -> None:
    """Fork the server of this process's ranks, to be called before anything computes here.

    Where it is too late for that, start_ranks starts a server as a program of its own. For a job of one rank, in a
    sweep, the server imports nothing.
    """
    global _server
    if _server is None or not _server.is_usable:
        _keep(ForkServer.forked())
    if _server is not None and world_size > 1:
        _have_imported(_server)


def _ready_server() -> ForkServer:
    if _server is None or not _server.is_usable:
        if _server is not None and (said := _server.fault()):
            warn(
                f"the process that ranks are forked from failed: {said}; another one is started, which takes longer"
            )
        _keep(ForkServer.started())
    assert _server is not None
    _have_imported(_server)
    return _server


def _keep(server: ForkServer | None) -> None:
    global _server
    _server = server
    if server is not None:
        atexit.register(server.close)


def _have_imported(server: ForkServer) -> None:
    with suppress(ForkServerLost):  # start_ranks finds out
        server.have_imported(_IMPORTS)


def start_ranks(run_dir: Path, config: Config, note: Callable[[str], None]) -> int | None:
    """Run a run's ranks, each what `python -m ddppo.launch.rank <run_dir>` is, on this machine and wait for them.

    Signals are for this process alone, every rank being a session of its own. One that asks for a stop is passed on as
    SIGUSR2, which ends a rank at once before its loop and has it save inside; its number is returned. Who may be
    started again while the others go on is, and `note` is told. Raises RankLost if a rank was killed or does not
    answer, TrainingError if it failed in another way, Stopped where there was nothing to save yet, KeyboardInterrupt
    after a second Ctrl-C; all ranks have ended then.
    """
    world_size, timeout_s = config.dist.world_size, config.dist.timeout_s
    # Ranks meet here: a store of this process lives as long as the last of them and tells how they ended.
    address = loopback_address()  # the door has tried, and a restart may come days later
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    remedy = f"Checkpoints, if any, are in {run_dir}: go on with resume={run_dir}"
    with StopRequest() as stop:
        stop.listen()
        server = _ready_server()
        try:
            start = partial(_start, server, run_dir, world_size, address, store.port)
            ranks = [start(rank) for rank in range(world_size)]
            replacements = _Replacements(start, config, note)
            ended = _wait_for_end(ranks, stop, store, replacements, timeout_s)
        except ForkServerLost as e:
            who = f"the process that the {world_size} ranks were forked from {e}"
            raise _failed(who, remedy, is_lost=e.was_killed, stop=stop) from None
        except BaseException:
            server.close()
            raise
        if len(ended) < world_size:  # some do not answer
            server.close()
    if stop.signal is not None and -signal.SIGUSR2 in ended.values():
        raise Stopped(stop.signal)
    if _ended_well(ended, world_size, replacements.replaceable):
        return stop.signal
    who, is_lost = _blame(ended, world_size, store, timeout_s)
    behind = next((said for code in ended.values() if (said := limits.after(code))), "")
    raise _failed(who, behind + remedy, is_lost=is_lost, stop=stop)


def _failed(who: str, remedy: str, *, is_lost: bool, stop: StopRequest) -> TrainingError:
    # Who asked for a stop wants no restart.
    return RankLost(who, remedy) if is_lost and not stop.requested else TrainingError(f"{who}. {remedy}")


def _start(
    server: ForkServer, run_dir: Path, world_size: int, address: str, port: int, rank: int
) -> ForkedProcess:
    environ = os.environ | torchrun_variables(rank, world_size, address, port)
    title = f"ddppo.launch.rank {run_dir} rank {rank} of {world_size}"
    try:
        return server.start("ddppo.launch.rank", [str(run_dir)], environ, title=title)
    except OSError as e:
        server.close()
        who = f"rank {rank} of {world_size} could not be started: {limits.why(e)}"
        remedy = f"Go on with resume={run_dir}"
        raise (RankLost(who, remedy) if limits.may_pass(e) else TrainingError(f"{who}. {remedy}")) from e


class _Replacements:
    """Starts a killed rank again, if its role allows that and it did not happen too often.

    serving: ranks whose role allows it, whom the others do not need to end well. started: those that were.
    """

    def __init__(
        self, start: Callable[[int], ForkedProcess], config: Config, note: Callable[[str], None]
    ) -> None:
        self.serving = {rank for role in layout(config).roles if role.can_restart for rank in role.ranks}
        self.replaceable = self.serving if config.dist.on_lost == "restart" else set[int]()
        self.started: set[int] = set()
        self._start = start
        self._note = note
        self._most = config.dist.max_restarts
        self._num_restarts = 0

    def of(self, rank: int, code: int) -> ForkedProcess | None:
        """Return what takes the place of a rank that ended with `code`, None for nothing."""
        if not _may_pass(code) or rank not in self.replaceable or self._num_restarts == self._most:
            return None
        self._num_restarts += 1
        who = f"rank {rank} {how_ended(code)}"
        warn(f"{who}; it is started again, the others go on (restart {self._num_restarts} of {self._most})")
        self._note(who)
        self.started.add(rank)
        return self._start(rank)


def _ended_well(ended: dict[int, int], world_size: int, replaceable: set[int]) -> bool:
    """Return whether all ranks did, or were lost, hang or started again too late to matter to those that did."""
    codes = {rank: ended.get(rank, LOST_PEERS) for rank in range(world_size)}
    return all(
        code == 0 or (rank in replaceable and (code < 0 or code == LOST_PEERS))
        for rank, code in codes.items()
    )


def torchrun_variables(rank: int, world_size: int, address: str, port: int) -> dict[str, str]:
    """Return what torchrun would tell a rank of this machine in environment variables."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _wait_for_end(
    ranks: list[ForkedProcess],
    stop: StopRequest,
    store: dist.Store,
    replacements: _Replacements,
    timeout_s: float,
) -> dict[int, int]:
    """Pass a request to stop on, put replacements in place, and return exit codes in the order of their ends.

    Ranks are missing that had not ended some seconds after another failed, of which they learn by themselves: one that
    still runs then does not answer. So are those that serve, timeout_s after all whom they serve have ended.
    """
    ended: dict[int, int] = {}
    passed_on, give_up = False, math.inf
    while len(ended) < len(ranks) and time.monotonic() < give_up:
        if stop.requested and not passed_on:
            passed_on = True
            for rank, process in enumerate(ranks):
                if (
                    rank not in replacements.started
                ):  # which may still start, and would end; the others tell it
                    process.send_signal(signal.SIGUSR2)
        time.sleep(_POLL_S)
        for rank, process in enumerate(ranks):
            if rank not in ended and (code := process.poll()) is not None:
                if not ended and not stop.requested and (again := replacements.of(rank, code)):
                    ranks[rank] = again
                    continue
                ended[rank] = code
                if code != 0:
                    patience_s = _patience_s(
                        code, stopping=stop.requested, all_met=have_met(store, len(ranks))
                    )
                    give_up = min(give_up, time.monotonic() + patience_s)
                elif len(ended.keys() | replacements.serving) == len(ranks):
                    give_up = min(give_up, time.monotonic() + max(timeout_s, _PATIENCE_S))
    return ended


def _patience_s(code: int, *, stopping: bool, all_met: bool) -> float:
    """Return how long the others have to notice that a rank ended with `code`, to say so and to close their files."""
    if stopping and code == -signal.SIGUSR2:
        return 0.0  # there is nothing to save yet
    # Who still waits to meet a rank that is gone would do so until dist.timeout_s, and has nothing to close.
    return _PATIENCE_S if all_met or code == LOST_PEERS else 0.0


def _blame(ended: dict[int, int], world_size: int, store: dist.Store, timeout_s: float) -> tuple[str, bool]:
    """Say which rank failed, and whether it may have better luck next time: it was killed, or does not answer.

    One that only lost its peers is not the cause, whenever it ended.
    """
    for rank, code in ended.items():
        if code not in (0, LOST_PEERS):
            above = "" if code < 0 else "; its message is above"  # who is killed says nothing
            return (
                f"rank {rank} of {world_size} {how_ended(code)} and the others were stopped{above}",
                _may_pass(code),
            )
    if not any(ended.values()):  # all whom the others serve
        late = [rank for rank in range(world_size) if rank not in ended]
        said = f"{in_words(late)} of {world_size} did not end within {timeout_s:g} s after the others (dist.timeout_s)"
        return said, True
    words = last_words(store, world_size)
    silent = [rank for rank in range(world_size) if rank not in ended and rank not in words]
    if not silent or not words:
        return f"the {world_size} ranks lost one another; their messages are above", False
    silence = max(words.values(), key=lambda word: float(word.split()[1]))
    return (
        f"{in_words(silent)} of {world_size} did not answer {silence} (limit dist.timeout_s={timeout_s:g}), and all "
        "ranks were stopped",
        True,
    )


def _may_pass(code: int) -> bool:
    """Return whether a rank that ended so may have better luck when it is started again: it was killed, for one."""
    return code < 0 or code == MAY_PASS
