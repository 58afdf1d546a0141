"""Compare transports between a learner and an actor of async_actors: our sockets, ZeroMQ, and Gloo's send and recv.

    python experiments/transports/measure.py [rounds=7] > experiments/transports/times.csv

Needs pyzmq, which is no dependency of ddppo: `pip install pyzmq==27.3.0`.

Two processes exchange messages of fixed sizes, which arrive in memory that the receiver has already, as parameters and
rollouts do. After that the actor is killed, and the learner waits for its next message.
"""

import csv
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
import torch.distributed as dist
import zmq
from zmq.utils.monitor import recv_monitor_message

from ddppo.distributed.topologies.async_actors.connections import Listener, as_bytes, connect

# What the actor sends and what the learner replies, in bytes, and the number of exchanges in a round.
EXCHANGES = {
    "round trip of 64 B": (64, 64, 1000),
    "64 B, reply of 70 kB": (64, 70_000, 300),
    "1 MB, reply of 64 B": (1_000_000, 64, 100),
    "1 MB, reply of 70 kB": (1_000_000, 70_000, 100),
}
PATIENCE_S = 20.0  # limit of every wait
NOTICE_S = 5.0  # how long the learner waits for word of a killed actor


class End(Protocol):
    """One end of a connection. `send` and `receive` handle one message, whose size both ends know."""

    def send(self, tensor: torch.Tensor) -> None: ...
    def receive(self, into: torch.Tensor) -> None: ...


class Ours:
    """A PeerConnection. The learner's is accepted by a Listener, which checks the token."""

    def __init__(self, store: dist.Store, *, is_learner: bool, machine: str | None) -> None:
        if is_learner:
            self._listener = Listener(store, machine, PATIENCE_S)
            accepted = self._listener.accept()
            assert accepted is not None
            self._connection = accepted[1]
        else:
            self._connection = connect(store, 1, PATIENCE_S)

    def send(self, tensor: torch.Tensor) -> None:
        self._connection.send(as_bytes(tensor))

    def receive(self, into: torch.Tensor) -> None:
        self._connection.receive(as_bytes(into))

    def notices_death(self) -> str:
        try:
            self._connection.receive(memoryview(bytearray(1)))
        except ConnectionError as e:
            return f"{type(e).__name__} in the wait"
        raise AssertionError("a killed actor sends nothing")


class ZeroMQ:
    """A ROUTER of the learner and a DEALER of the actor: the learner answers any of many actors, by name."""

    def __init__(self, store: dist.Store, *, is_learner: bool, address: str) -> None:
        self._context = zmq.Context()
        self._is_learner = is_learner
        self._socket = self._context.socket(zmq.ROUTER if is_learner else zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * PATIENCE_S))
        self._socket.setsockopt(zmq.SNDTIMEO, int(1000 * PATIENCE_S))
        self._peer = b""
        if is_learner:
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._socket.bind(address)
            store.set("zmq", self._socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0"))
        else:
            self._socket.setsockopt(zmq.IDENTITY, b"rank 1")
            self._socket.connect(store.get("zmq").decode())

    def send(self, tensor: torch.Tensor) -> None:
        # Without a copy from 64 kB on, which is pyzmq's own advice. The memory may change once the peer has answered.
        is_large = tensor.nbytes >= 1 << 16
        if self._is_learner:
            self._socket.send(self._peer, zmq.SNDMORE)
        self._socket.send(as_bytes(tensor), copy=not is_large)

    def receive(self, into: torch.Tensor) -> None:
        if self._is_learner:
            self._peer = self._socket.recv()
        # ZeroMQ allocates the memory that it receives into, so the message is copied.
        as_bytes(into)[:] = self._socket.recv(copy=False).buffer

    def notices_death(self) -> str:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        for found, _ in poller.poll(1000 * NOTICE_S):
            if found is self._monitor:
                event = recv_monitor_message(self._monitor)
                return f"only in a second socket, as file descriptor {event['value']}, not as rank 1"
        return f"nothing within {NOTICE_S:g} s"


class Gloo:
    """torch.distributed's send and recv in a group of two."""

    def __init__(self, store: dist.Store, *, is_learner: bool) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        limit = timedelta(seconds=PATIENCE_S)
        rank = 0 if is_learner else 1
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
        self._peer = 1 - rank

    def send(self, tensor: torch.Tensor) -> None:
        dist.send(tensor, self._peer)

    def receive(self, into: torch.Tensor) -> None:
        dist.recv(into, self._peer)

    def notices_death(self) -> str:
        try:
            dist.recv(torch.empty(1, dtype=torch.uint8), self._peer)
        except RuntimeError as e:
            return f"{type(e).__name__} in the wait; the group is of no use afterwards"
        raise AssertionError("a killed actor sends nothing")


def transports(folder: str) -> dict[str, Callable[..., Any]]:
    def ours(machine: str | None) -> Callable[..., Ours]:
        return lambda store, is_learner: Ours(store, is_learner=is_learner, machine=machine)

    def zeromq(address: str) -> Callable[..., ZeroMQ]:
        return lambda store, is_learner: ZeroMQ(store, is_learner=is_learner, address=address)

    return {
        "ours, AF_UNIX": ours(None),
        "ours, TCP": ours("127.0.0.1"),
        "pyzmq, ipc": zeromq(f"ipc://{folder}/socket"),
        "pyzmq, tcp": zeromq("tcp://127.0.0.1:*"),
        "Gloo, tcp": lambda store, is_learner: Gloo(store, is_learner=is_learner),
    }


def tensors(request: int, reply: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(request, dtype=torch.uint8), torch.ones(reply, dtype=torch.uint8)


def act(name: str, folder: str, port: int, results: Connection) -> None:
    """Be the actor: measure each exchange, report, and wait to be killed."""
    torch.set_num_threads(1)
    end: End = transports(folder)[name](dist.TCPStore("127.0.0.1", port, is_master=False), False)
    for request_bytes, reply_bytes, number in EXCHANGES.values():
        request, reply = tensors(request_bytes, reply_bytes)
        seconds = []
        for _ in range(number):
            start = time.perf_counter()
            end.send(request)
            end.receive(reply)
            seconds.append(time.perf_counter() - start)
        results.send(statistics.median(seconds[number // 10 :]))
    time.sleep(PATIENCE_S)


@contextmanager
def actor(name: str, folder: str, port: int) -> Iterator[tuple[int, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=act, args=(name, folder, port, theirs))
    process.start()
    assert process.pid is not None
    try:
        yield process.pid, ours
    finally:
        process.kill()
        process.join()


def learn(name: str, rows: Connection) -> None:
    """Be the learner of one round, in a process of its own: start an actor, answer it, and kill it."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder, actor(name, folder, store.port) as (pid, results):
        end = transports(folder)[name](store, True)
        found: dict[str, float | str] = {}
        for what, (request_bytes, reply_bytes, number) in EXCHANGES.items():
            request, reply = tensors(request_bytes, reply_bytes)
            for _ in range(number):
                end.receive(request)
                end.send(reply)
            found[what] = results.recv()
        os.kill(pid, signal.SIGKILL)
        start = time.perf_counter()
        found["how"] = end.notices_death()
        found["death of the actor noticed"] = time.perf_counter() - start
        rows.send(found)
    os._exit(0)  # a destructor of Gloo or ZeroMQ may wait for the actor


def main() -> None:
    rounds = int(dict(argument.split("=") for argument in sys.argv[1:]).get("rounds", 7))
    times: dict[tuple[str, str], list[float]] = {}
    how = {}
    context = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        for name in transports(""):
            ours, theirs = context.Pipe()
            process = context.Process(target=learn, args=(name, theirs))
            process.start()
            found = ours.recv()
            process.join()
            how[name] = found.pop("how")
            for what, seconds in found.items():
                times.setdefault((what, name), []).append(seconds)
    writer = csv.writer(sys.stdout)
    writer.writerow(["what", "transport", "median_us", "lowest_us", "highest_us", "how"])
    for what in [*EXCHANGES, "death of the actor noticed"]:
        for name in transports(""):
            values = [1e6 * each for each in times[what, name]]
            row = [f"{each:.0f}" for each in (statistics.median(values), min(values), max(values))]
            writer.writerow([what, name, *row, how[name] if what.startswith("death") else ""])
    print(f"{rounds} rounds on {socket.gethostname()}, {os.cpu_count()} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
