"""Starting ranks on this machine, and what a rank needs of it: a device, threads, its peers, an end."""

import hashlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from ddppo.collectives import Group, ProcessGroup, in_words, last_words, leave_word
from ddppo.config import Config
from ddppo.errors import LOST_PEERS, CollectiveError, ConfigError, Stopped, TrainingError
from ddppo.signals import StopRequest, die_with_parent

# Parameters times samples from which a second thread pays. Forward and backward of two trunks of two layers, 1 and 2
# threads: 64 units, 256 samples (2.5e6) .46 and .40 ms; 64 units, 2,048 samples (2e7) 3.0 and 1.6 ms.
_THREADS_PAY_FROM = 10_000_000

_POLL_S = 0.05
_PATIENCE_S = 5.0  # for ranks to notice that one is lost, say so and close their files


def resolve_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device of a rank. Raises ConfigError where CUDA is asked for and absent."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda, but torch sees no CUDA device here: use device=cpu, or device=auto to take what there is"
        )
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def resolve_backend(backend: str, device: torch.device, local_world_size: int) -> str:
    """Return nccl where every rank of this machine has a GPU of its own, else gloo.

    Raises ConfigError where NCCL is asked for and cannot be.
    """
    own_gpu = device.type == "cuda" and local_world_size <= torch.cuda.device_count()
    if backend == "nccl" and not own_gpu:
        raise ConfigError(
            f"dist.backend=nccl needs a GPU for each of the {local_world_size} ranks of this machine, which has "
            f"{torch.cuda.device_count()}: use dist.backend=gloo, or fewer ranks"
        )
    return backend if backend != "auto" else ("nccl" if own_gpu else "gloo")


def available_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_rank(local_world_size: int) -> int:
    """Return the cores that a rank has to itself, at least 1: a share of this machine's, or what a scheduler gave."""
    if allotted := os.environ.get("DDPPO_CORES_PER_RANK"):  # whether or not it also bound the rank to them
        return min(int(allotted), available_cores())
    return max(1, available_cores() // local_world_size)


def threads_per_rank(config: Config, local_world_size: int, work: int) -> int:
    """Return the CPU threads of one rank, unless set: its cores where a minibatch is work enough for them, else 1.

    `work` is parameters times samples of a rank's minibatch. torch's default of all cores on every rank makes ranks
    fight for them.
    """
    enough = work >= _THREADS_PAY_FROM
    return config.dist.threads_per_rank or (cores_per_rank(local_world_size) if enough else 1)


def machine_number() -> int:
    """Return a number of 48 bits that two processes share if they run on one machine, whatever their node's name."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = socket.gethostname()
    return int(hashlib.blake2b(identity.encode(), digest_size=6).hexdigest(), 16)


def loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def start_ranks(run_dir: Path, world_size: int, timeout_s: float) -> int | None:
    """Run `world_size` ranks of `python -m ddppo.run.rank <run_dir>` on this machine and wait for them.

    Signals are for this process alone, every rank being a session of its own. One that asks for a stop is passed on as
    SIGUSR2, which ends a rank at once before its loop and has it save inside; its number is returned. Raises
    TrainingError if a rank failed, Stopped where there was nothing to save yet, KeyboardInterrupt after a second
    Ctrl-C; all ranks have ended then.
    """
    # Ranks meet here: a store of this process lives as long as the last of them and tells how they ended.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks: list[subprocess.Popen] = []
    with StopRequest() as stop:
        stop.listen()
        try:
            for rank in range(world_size):
                variables = torchrun_variables(rank, world_size, store.port)
                command = [sys.executable, "-m", "ddppo.run.rank", str(run_dir), str(os.getpid())]
                ranks.append(subprocess.Popen(command, env=os.environ | variables, start_new_session=True))
            ended = _wait_for_end(ranks, stop)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    if stop.signal is not None and -signal.SIGUSR2 in ended.values():
        raise Stopped(stop.signal)
    if any(ended.get(rank) != 0 for rank in range(world_size)):
        raise TrainingError(
            f"{_blame(ended, world_size, store, timeout_s)} Checkpoints, if any, are in {run_dir}: go on with "
            f"resume={run_dir}"
        )
    return stop.signal


def torchrun_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return what torchrun would tell a rank of this machine in environment variables."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _wait_for_end(ranks: list[subprocess.Popen], stop: StopRequest) -> dict[int, int]:
    """Pass a request to stop on and return exit codes in the order of their ends.

    Ranks are missing that had not ended some seconds after another failed, of which they learn by themselves: one that
    still runs then does not answer.
    """
    ended: dict[int, int] = {}
    passed_on, give_up = False, math.inf
    while len(ended) < len(ranks) and time.monotonic() < give_up:
        if stop.requested and not passed_on:
            passed_on = True
            for process in ranks:
                process.send_signal(signal.SIGUSR2)
        time.sleep(_POLL_S)
        for rank, process in enumerate(ranks):
            if rank not in ended and (code := process.poll()) is not None:
                ended[rank] = code
                if code != 0:
                    has_nothing_to_save = stop.requested and code == -signal.SIGUSR2
                    patience_s = 0.0 if has_nothing_to_save else _PATIENCE_S
                    give_up = min(give_up, time.monotonic() + patience_s)
    return ended


def _blame(ended: dict[int, int], world_size: int, store: dist.Store, timeout_s: float) -> str:
    """Say which rank failed. One that only lost its peers is not the cause, whenever it ended."""
    for rank, code in ended.items():
        if code not in (0, LOST_PEERS):
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            return f"rank {rank} of {world_size} ended with {why} and the others were stopped; its message is above."
    words = last_words(store, world_size)
    silent = [rank for rank in range(world_size) if rank not in ended and rank not in words]
    if not silent or not words:
        return f"the {world_size} ranks lost one another; their messages are above."
    silence = max(words.values(), key=lambda word: float(word.split()[1]))
    return (
        f"{in_words(silent)} of {world_size} did not answer {silence} (limit dist.timeout_s={timeout_s:g}), and all "
        "ranks were stopped."
    )


def launchers_store(timeout_s: float = 300.0) -> dist.Store:
    """Return the store of the process that started this rank by start_ranks."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def rendezvous_store(timeout_s: float = 300.0) -> dist.Store:
    """Enter the rendezvous that torchrun's environment variables describe and return its store."""
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    return store


def join(config: Config, store: dist.Store | None = None) -> tuple[Group, torch.device]:
    """Make this process the rank that its environment says it is. At W = 1 there is no process group."""
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = resolve_device(config.device, int(os.environ.get("LOCAL_RANK", "0")))
    torch.set_num_threads(1)  # until the size of the model is known
    if config.dist.world_size == 1:
        return Group(), device
    die_with_parent()
    if local_world_size == config.dist.world_size:  # one machine needs no network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback_interface())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank = int(os.environ["RANK"])
    store = store or rendezvous_store()
    try:
        dist.init_process_group(
            resolve_backend(config.dist.backend, device, local_world_size),
            store=store,
            rank=rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=config.dist.timeout_s),
        )
    except dist.DistError as e:
        with suppress(dist.DistError):
            leave_word(store, rank, f"for {config.dist.timeout_s:.1f} s, never heard of")
        raise CollectiveError(
            f"rank {rank} on {socket.gethostname()} did not meet all other ranks within dist.timeout_s="
            f"{config.dist.timeout_s:g}: {e}"
        ) from e
    return ProcessGroup(device, config.dist.timeout_s), device


def leave(exit_code: int) -> NoReturn:
    """End a rank's process at once, without destructors.

    After a fault they may wait for a peer that is gone. After success a thread of Gloo may still free its last tensor,
    ask for the interpreter lock while Python shuts down, and abort the process (seen once in ten runs at W = 4).
    """
    with suppress(OSError):  # where a fork server of environments listens: a destructor would remove it
        shutil.rmtree(multiprocessing_util.get_temp_dir())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
