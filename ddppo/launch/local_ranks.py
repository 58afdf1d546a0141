"""The ranks of a run on this machine: fork them, watch them, and name the rank that ended the run.

The process of the command computes nothing itself. It forks a server (`fork_server`) before it checks the run, the
server forks the ranks (`start_ranks`), and the loop in `_wait_for_end` passes on signals and restarts ranks. If the run
failed, `_blame` reads the exit codes and the ranks' last words in their store. Each rank's life is loop/rank.py.
"""

import atexit
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch.distributed as dist

from ddppo.collectives.peers import have_met, in_words, last_words, store_of_this_machine
from ddppo.config.rules import layout
from ddppo.config.settings import Config
from ddppo.distributed.network import loopback_address
from ddppo.errors import LOST_PEERS, MAY_PASS, RankLost, Stopped, TrainingError
from ddppo.processes import limits
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost, how_ended
from ddppo.processes.signals import StopRequest
from ddppo.terminal import warn

# Packages with modules that compute nothing when they are imported. A user's own are imported by each rank.
_SAME_FOR_ALL = ("ddppo.", "gymnasium.", "mujoco.", "numpy.")
_POLL_S = 0.05
_PATIENCE_S = 5.0  # for ranks to notice that one is lost, say so and close their files

_server: ForkServer | None = None  # one a process, kept for all runs of a sweep


def fork_server(config: Config | None = None) -> None:
    """Fork the server of this process's ranks, unless there is one. To be called before anything computes here.

    If this process has threads already, start_ranks starts a server as a program of its own, which takes longer. For a
    run of one rank, or of an unknown one, the server imports nothing.
    """
    global _server
    if _server is None or not _server.is_usable:
        _keep(ForkServer.forked())
    if _server is not None and config is not None and config.dist.world_size > 1:
        _import_for_ranks(_server, config)


def _usable_server(config: Config) -> ForkServer:
    """Return the forked server, or start another one if there is none or it failed."""
    if _server is None or not _server.is_usable:
        if _server is not None and (fault := _server.fault()):
            warn(
                f"the process that ranks are forked from failed: {fault}; another one is started, which takes longer"
            )
        _keep(ForkServer.started())
    assert _server is not None
    _import_for_ranks(_server, config)
    return _server


def _keep(server: ForkServer | None) -> None:
    global _server
    _server = server
    if server is not None:
        atexit.register(server.close)


def _import_for_ranks(server: ForkServer, config: Config) -> None:
    modules = ["ddppo.loop.rank"]
    if (
        config.compile == "torch"
    ):  # its compiler takes as long as the rest: once here instead of on every rank
        modules.append("torch._dynamo")
    if config.log.tensorboard:
        modules.append("tensorboard.compat.proto.event_pb2")
    # After the checks, which have built what ranks build: the modules of the task, the model and the topology.
    modules += [name for name in sys.modules if name.startswith(_SAME_FOR_ALL)]
    with suppress(ForkServerLost):  # start_ranks meets the same, and reports it
        server.have_imported(modules)


def start_ranks(run_dir: Path, config: Config, note: Callable[[str], None]) -> int | None:
    """Run all ranks of a run on this machine to their end: each is `python -m ddppo.launch.rank <run_dir>`.

    Every rank is a session of its own, so signals reach this process only. A request to stop is passed on as SIGUSR2: a
    rank inside its loop saves and ends, and a rank before its loop ends at once. Returns the number of that signal. If
    dist.on_lost=restart and its role allows it, a killed rank is started again while the others go on, and `note` is
    called with a sentence.

    Raises RankLost if a rank was killed or does not answer, TrainingError if it failed in another way, Stopped if there
    was nothing to save yet, KeyboardInterrupt after a second Ctrl-C. All ranks have ended then.
    """
    world_size, timeout_s = config.dist.world_size, config.dist.timeout_s
    # 1. Ranks meet in a store. It is this process's, so it outlives the last rank, and their last words stay readable.
    address = loopback_address()  # again: a restart may come days after the check
    store = store_of_this_machine(address)
    remedy = f"Checkpoints, if any, are in {run_dir}: go on with resume={run_dir}"
    with StopRequest() as stop:
        stop.listen()
        # 2. Fork the ranks, and wait until all have ended, or some do not answer.
        server = _usable_server(config)
        try:
            start = partial(_start, server, run_dir, world_size, address, store.port)
            ranks = [start(rank) for rank in range(world_size)]
            replacements = _Replacements(start, config, note)
            ended = _wait_for_end(ranks, stop, store, replacements, timeout_s)
        except ForkServerLost as e:
            cause = f"the process that the {world_size} ranks were forked from {e}"
            raise _failed(cause, remedy, is_lost=e.was_killed, stop=stop) from None
        except BaseException:
            server.close()
            raise
        if len(ended) < world_size:  # the others do not answer, and end with the server
            server.close()
    # 3. Did they end well? If not, which rank is the cause?
    if stop.signal is not None and -signal.SIGUSR2 in ended.values():
        raise Stopped(stop.signal)
    if _ended_well(ended, world_size, replacements.replaceable):
        return stop.signal
    cause, is_lost = _blame(ended, world_size, store, timeout_s)
    behind = next((hint for code in ended.values() if (hint := limits.after(code))), "")
    raise _failed(cause, behind + remedy, is_lost=is_lost, stop=stop)


def _failed(cause: str, remedy: str, *, is_lost: bool, stop: StopRequest) -> TrainingError:
    """Return the error of a run. RankLost leads to a restart, but not after a request to stop."""
    return RankLost(cause, remedy) if is_lost and not stop.requested else TrainingError(f"{cause}. {remedy}")


def _start(
    server: ForkServer, run_dir: Path, world_size: int, address: str, port: int, rank: int
) -> ForkedProcess:
    environ = os.environ | torchrun_variables(rank, world_size, address, port)
    title = f"ddppo.launch.rank {run_dir} rank {rank} of {world_size}"
    try:
        return server.start("ddppo.launch.rank", [str(run_dir)], environ, title=title)
    except OSError as e:
        server.close()
        cause = f"rank {rank} of {world_size} could not be started: {limits.why(e)}"
        remedy = f"Go on with resume={run_dir}"
        raise (RankLost(cause, remedy) if limits.may_pass(e) else TrainingError(f"{cause}. {remedy}")) from e


def torchrun_variables(rank: int, world_size: int, address: str, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set for a rank of this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


# -- While the ranks run.


class _Replacements:
    """Starts a killed rank again, if its role allows that and it happened at most dist.max_restarts times."""

    serving: set[int]  # ranks that others can lose, such as actors of async_actors
    replaceable: set[int]  # those of them that are started again: all with dist.on_lost=restart, else none
    started: set[int]  # ranks that were started again

    def __init__(
        self, start: Callable[[int], ForkedProcess], config: Config, note: Callable[[str], None]
    ) -> None:
        self.serving = {rank for role in layout(config).roles if role.can_restart for rank in role.ranks}
        self.replaceable = self.serving if config.dist.on_lost == "restart" else set[int]()
        self.started = set[int]()
        self._start = start
        self._note = note
        self._most = config.dist.max_restarts
        self._num_restarts = 0

    def of(self, rank: int, code: int) -> ForkedProcess | None:
        """Return the process that replaces a rank which ended with `code`; None if there is no replacement."""
        if not _may_pass(code) or rank not in self.replaceable or self._num_restarts == self._most:
            return None
        self._num_restarts += 1
        cause = f"rank {rank} {how_ended(code)}"
        warn(f"{cause}; it is started again, the others go on (restart {self._num_restarts} of {self._most})")
        self._note(cause)
        self.started.add(rank)
        return self._start(rank)


def _wait_for_end(
    ranks: list[ForkedProcess],
    stop: StopRequest,
    store: dist.Store,
    replacements: _Replacements,
    timeout_s: float,
) -> dict[int, int]:
    """Watch the ranks until all have ended, or waiting is in vain; return exit codes by rank, in the order of ends.

    A rank is missing in the result if it does not answer: it has not ended a few seconds after another rank failed,
    which it would have noticed, or, for a serving rank, `timeout_s` after all others ended.
    """
    ended: dict[int, int] = {}
    passed_on, give_up = False, math.inf
    while len(ended) < len(ranks) and time.monotonic() < give_up:
        # Pass on a request to stop, once. Not to a rank that was started again: before its loop it would end at once.
        # It learns of the request from the other ranks.
        if stop.requested and not passed_on:
            passed_on = True
            for rank, process in enumerate(ranks):
                if rank not in replacements.started:
                    process.send_signal(signal.SIGUSR2)
        time.sleep(_POLL_S)
        for rank, process in enumerate(ranks):
            if rank not in ended and (code := process.poll()) is not None:
                # The first rank that ended may be replaced; nothing else happens then.
                if not ended and not stop.requested and (again := replacements.of(rank, code)):
                    ranks[rank] = again
                    continue
                # After a failure, or once only serving ranks are left, the rest has limited time.
                ended[rank] = code
                if code != 0:
                    all_met = have_met(store, len(ranks))
                    patience_s = _patience_s(code, stopping=stop.requested, all_met=all_met)
                    give_up = min(give_up, time.monotonic() + patience_s)
                elif len(ended.keys() | replacements.serving) == len(ranks):
                    give_up = min(give_up, time.monotonic() + max(timeout_s, _PATIENCE_S))
    return ended


def _patience_s(code: int, *, stopping: bool, all_met: bool) -> float:
    """Return how long the others have to notice that a rank ended with `code`, to say so and to close their files."""
    if stopping and code == -signal.SIGUSR2:
        return 0.0  # there is nothing to save yet
    # Before all ranks have met, the others wait for the lost rank until dist.timeout_s, and have no files to close.
    return _PATIENCE_S if all_met or code == LOST_PEERS else 0.0


# -- After the end.


def _ended_well(ended: dict[int, int], world_size: int, replaceable: set[int]) -> bool:
    """Return whether the run is complete: every rank ended well, or was a replaceable one that was lost too late."""
    codes = {rank: ended.get(rank, LOST_PEERS) for rank in range(world_size)}
    return all(
        code == 0 or (rank in replaceable and (code < 0 or code == LOST_PEERS))
        for rank, code in codes.items()
    )


def _blame(ended: dict[int, int], world_size: int, store: dist.Store, timeout_s: float) -> tuple[str, bool]:
    """Return which rank failed, as a sentence, and whether a restart may help: it was killed, or does not answer."""
    # A rank that ended with LOST_PEERS only lost another one: it is not the cause, even if it ended first.
    for rank, code in ended.items():
        if code not in (0, LOST_PEERS):
            above = "" if code < 0 else "; its message is above"  # a killed rank prints nothing
            return (
                f"rank {rank} of {world_size} {how_ended(code)} and the others were stopped{above}",
                _may_pass(code),
            )
    # All ranks that ended, ended well: a serving rank does not.
    if not any(ended.values()):
        late = [rank for rank in range(world_size) if rank not in ended]
        sentence = f"{in_words(late)} of {world_size} did not end within {timeout_s:g} s after the others"
        return f"{sentence} (dist.timeout_s)", True
    # Every rank that lost its peers left a word. A rank that still runs and left none is the silent one.
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
    """Return whether a rank with this exit code may do better after a restart: it was killed, or lacked memory."""
    return code < 0 or code == MAY_PASS
