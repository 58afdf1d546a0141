"""Starting ranks: in process at W = 1, through torch's elastic agent (what torchrun runs) above."""

import ctypes
import hashlib
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from ddppo.collectives import Group, ProcessGroup
from ddppo.config import Config
from ddppo.errors import LOST_PEERS, ConfigError, TrainingError

# Parameters times samples from which a second thread pays. Forward and backward of two trunks of two layers, 1 and 2
# threads: 64 units, 256 samples (2.5e6) .46 and .40 ms; 64 units, 2,048 samples (2e7) 3.0 and 1.6 ms.
_THREADS_PAY_FROM = 10_000_000


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


def start_ranks(run_dir: Path, world_size: int, timeout_s: float) -> None:
    """Run `world_size` ranks of `python -m ddppo.run.worker <run_dir>` on this machine and wait for them.

    Raises TrainingError if one fails, after all others were ended; KeyboardInterrupt after Ctrl-C.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, launch_agent

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in handled}
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=round(
            timeout_s
        ),  # Ctrl-C lets the iteration end; after a fault SIGTERM ends ranks at once
    )
    try:
        launch_agent(launch, sys.executable, ["-m", "ddppo.run.worker", str(run_dir)])
    except ChildFailedError as e:
        # A dead rank's peers notice and end before the agent looks: the first failure is seldom the cause.
        rank, failure = min(
            e.failures.items(), key=lambda item: (item[1].exitcode == LOST_PEERS, item[1].timestamp)
        )
        why = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        raise TrainingError(
            f"rank {rank} of {world_size} ended with {why} and the others were stopped; its message is above. "
            f"Checkpoints, if any, are in {run_dir}: go on with resume={run_dir}"
        ) from e
    except SignalException as e:
        raise KeyboardInterrupt from e
    finally:  # the agent's own handlers would outlive it
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


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
    dist.init_process_group(
        resolve_backend(config.dist.backend, device, local_world_size),
        store=store or rendezvous_store(),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=config.dist.timeout_s),
    )
    return ProcessGroup(device, config.dist.timeout_s), device


def leave(exit_code: int) -> NoReturn:
    """End a rank's process at once, without destructors.

    After a fault they may wait for a peer that is gone. After success a thread of Gloo may still free its last tensor,
    ask for the interpreter lock while Python shuts down, and abort the process (seen once in ten runs at W = 4).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def die_with_parent() -> None:
    """Ask Linux to end this rank if the agent that started it dies, by kill -9 even; elsewhere do nothing."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


class StopRequest:
    """Ctrl-C or SIGUSR2 asks for a stop at the end of the iteration; a second Ctrl-C stops at once.

    So does SIGTERM in a process that ignored it before, as ranks under SLURM do.
    The handlers are in force inside `with`. The flag is this rank's alone: act on it only when all ranks agree.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> "StopRequest":
        ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGUSR2, *([signal.SIGTERM] if ignored else [])):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
