"""The network over which ranks meet: addresses, network interfaces, and the store, with one sentence for each failure.

torch waits for connections inside C++, where Ctrl-C does not interrupt it, and its failures print C++ stacks. So this
module tries addresses from Python first, and torch connects only to an address that answers.
"""

import json
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from ddppo.collectives.peers import store_of_this_machine
from ddppo.errors import CollectiveError, ConfigError, TrainingError, first_sentence
from ddppo.files import write_json

_PROBE_S = 0.4  # enough on a busy machine too: the kernel, not the process, accepts a connection
_AGAIN_S = 0.1  # between two attempts to connect
# Seconds for which a host name may be unknown, a network unreachable, or torchrun's own store missing. They were there
# when torchrun started this rank, so waiting for dist.timeout_s would be pointless.
_PATIENCE_S = 10.0
_LOOPBACK = ("127.0.0.1", "::1")


def loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def loopback_address() -> str:
    """Return the loopback address of this machine, IPv4 or IPv6. Raises ConfigError within a second if none works."""
    failures = []
    for address in _LOOPBACK:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.create_server((address, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], timeout=_PROBE_S).close()
            return address
        except OSError as e:
            failures.append(f"{address}: {_reason(e)}")
    raise ConfigError(
        f"ranks of this machine cannot reach one another over its loopback interface ({'; '.join(failures)}): bring it "
        "up (ip link set lo up) and let the firewall allow it, or use dist.world_size=1"
    )


def unknown_interface(environ: Mapping[str, str], variable: str, names: Sequence[str]) -> str | None:
    """Return an error message if GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names no interface among `names`, else None.

    Gloo's variable holds whole names. NCCL's holds beginnings of names, or `=` and whole names, or `^` and names to
    exclude.
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    value = environ.get(variable, "")
    is_nccl = variable.startswith("NCCL")
    if not value or (is_nccl and value.startswith("^")):
        return None
    is_whole = not is_nccl or value.startswith("=")
    wanted = [each.strip().partition(":")[0] for each in value.removeprefix("=").split(",")]
    known = [
        each for each in wanted if any(n == each or (not is_whole and n.startswith(each)) for n in names)
    ]
    if known == wanted or (is_nccl and known):
        return None
    return (
        f"{variable}={value}: {socket.gethostname()} has no such network interface; it has {', '.join(names)}: use one "
        f"of them, or unset {variable}"
    )


def check_interfaces(*variables: str) -> None:
    """Raise ConfigError if an environment variable names an interface that this machine does not have."""
    names = [name for _, name in socket.if_nameindex()]
    for variable in variables:
        if wrong := unknown_interface(os.environ, variable, names):
            raise ConfigError(wrong)


def check_host_name() -> str | None:
    """Return a warning if Gloo would give other hosts a loopback address of this one, else None.

    Without GLOO_SOCKET_IFNAME Gloo uses the address of the host's name, or loopback if the name does not resolve.
    """
    name = socket.gethostname()
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    if os.environ.get("GLOO_SOCKET_IFNAME") or any(not each.startswith(("127.", "::1")) for each in found):
        return None
    others = [each for _, each in socket.if_nameindex() if each != loopback_interface()]
    means = f"means {', '.join(sorted(found))}" if found else "does not resolve"
    return (
        f"the name of this host, {name}, {means} here, which other hosts cannot reach: set GLOO_SOCKET_IFNAME to the "
        f"interface that they reach ({', '.join(others) or 'this host has none'})"
    )


def launchers_store(timeout_s: float) -> dist.Store:
    """Return the store of the launcher that started this rank (launch/local_ranks.py)."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def rendezvous_store(timeout_s: float) -> dist.Store:
    """Return the store at MASTER_ADDR and MASTER_PORT: torchrun's, or one that rank 0 opens.

    Ranks that mpirun or srun started on one host have no such address: rank 0 opens a store at any free port and writes
    the port into the file DDPPO_MEETING (launch/mpi.py), from which the other ranks read it.

    Raises CollectiveError if it does not answer within `timeout_s`, TrainingError if rank 0 cannot open it.
    """
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_master = os.environ["RANK"] == "0" and not is_torchruns
    meeting = _meeting_file()
    if meeting is None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    elif is_master:
        address, port = loopback_address(), 0  # any that is free
    else:
        address, port = _read(meeting, timeout_s)
    if not is_master:
        _reach(address, port, timeout_s, is_there=is_torchruns)
    made: queue.SimpleQueue[dist.TCPStore | RuntimeError] = queue.SimpleQueue()

    def make() -> None:
        try:
            if meeting is not None and is_master:
                store = store_of_this_machine(address, timeout_s)
            else:
                store = dist.TCPStore(
                    address, port, is_master=is_master, timeout=timedelta(seconds=timeout_s), multi_tenant=is_master,
                    wait_for_workers=False,
                )  # fmt: skip
        except RuntimeError as e:
            made.put(e)
        else:
            made.put(store)

    # In a thread, because if another program listens at the address, torch waits for its answer without a limit and
    # without reacting to Ctrl-C.
    threading.Thread(target=make, daemon=True).start()
    try:
        found = made.get(timeout=timeout_s)
    except queue.Empty:
        found = RuntimeError("the program that listens there does not answer as a store of torch")
    if not isinstance(found, RuntimeError):
        if meeting is not None and is_master:
            write_json(meeting, [os.getpid(), address, found.port])
        return found
    if not is_master:
        raise CollectiveError(
            f"no rendezvous at {address}:{port} (MASTER_ADDR, MASTER_PORT): {first_sentence(found)}"
        )
    is_taken = "EADDRINUSE" in str(found)
    why = "another program, or the rest of a run, holds the port" if is_taken else first_sentence(found)
    raise TrainingError(
        f"rank 0 cannot listen at {address}:{port} (MASTER_ADDR, MASTER_PORT): {why}; choose another MASTER_PORT "
        "(torchrun --master-port)"
    )


def _meeting_file() -> Path | None:
    return Path(os.environ["DDPPO_MEETING"]) if "DDPPO_MEETING" in os.environ else None


def _read(meeting: Path, timeout_s: float) -> tuple[str, int]:
    """Wait until rank 0 has written where its store is; return address and port. Raises CollectiveError."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            number, address, port = json.loads(meeting.read_text())
            # A rank 0 that was killed left its file; its number may be that of another user's process now.
            os.kill(number, 0)
            return address, port
        time.sleep(_AGAIN_S)
    raise CollectiveError(
        f"rank {os.environ['RANK']} on {socket.gethostname()} heard nothing from rank 0 within {timeout_s:g} s "
        f"(dist.timeout_s) by the file {meeting}; if each rank is in a container of its own, set MASTER_ADDR=127.0.0.1 "
        "and MASTER_PORT=<a free port>"
    )


@contextmanager
def leaving_meeting() -> Iterator[None]:
    """Remove rank 0's file behind the block, when all ranks have met: a later run of the same mpirun writes another."""
    try:
        yield
    finally:
        if (meeting := _meeting_file()) is not None:
            meeting.unlink(missing_ok=True)


def _reach(address: str, port: int, timeout_s: float, *, is_there: bool) -> None:
    """Wait until a program listens at an address. Raises CollectiveError after `timeout_s`.

    is_there: the program listened before this process began (torchrun). A refused connection then means that it has
    ended, and the wait is short.
    """
    began = time.monotonic()
    while True:
        try:
            socket.create_connection((address, port), timeout=min(timeout_s, _PATIENCE_S)).close()
            return
        except OSError as e:
            error = e
        may_come = isinstance(error, (ConnectionRefusedError, TimeoutError)) and not is_there
        waited_s = time.monotonic() - began
        if waited_s >= (timeout_s if may_come else min(timeout_s, _PATIENCE_S)):
            break
        time.sleep(_AGAIN_S)
    rank = os.environ["RANK"]
    stale = (
        "; if a torchrun that has ended left these variables in this shell, unset them" if is_there else ""
    )
    raise CollectiveError(
        f"rank {rank} on {socket.gethostname()} found no rendezvous at {address}:{port} (MASTER_ADDR, MASTER_PORT) "
        f"within {waited_s:.0f} s: {_reason(error)}{stale}"
    ) from None


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror})"
    if isinstance(error, TimeoutError):
        return "no answer"
    return os.strerror(error.errno).lower() if error.errno else str(error)


def in_one_sentence(error: RuntimeError, rank: int, timeout_s: float) -> TrainingError:
    """Return the error of a rank that did not meet the others, from the error of torch.distributed."""
    names = [name for _, name in socket.if_nameindex()]
    if re.search("address for|interface|device", str(error)) and isinstance(error, RuntimeError):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            if wrong := unknown_interface(os.environ, variable, names):
                return TrainingError(wrong)
    return CollectiveError(
        f"rank {rank} on {socket.gethostname()} did not meet all other ranks within dist.timeout_s="
        f"{timeout_s:g}: {first_sentence(error)}"
    )
