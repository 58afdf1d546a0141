"""Hosts of a cluster on one machine: network namespaces joined by a cable, each with processes of its own (root's)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support import CHECKOUT

NETWORK = "10.213.77.{}"
INTERFACE = "eth0"


def why_not() -> str | None:
    """Return why there can be no hosts here, None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if not all(map(shutil.which, ("ip", "unshare"))):
        return "network namespaces need ip (iproute2) and unshare (util-linux)"
    name = f"ddppo-try-{os.getpid()}"
    tried = _ip("netns", "add", name)
    if tried.returncode:
        return f"this machine lets nobody make network namespaces: {tried.stderr.strip()}"
    isolated = ["ip", "netns", "exec", name, *_OWN_PROCESSES, "true"]
    tried = subprocess.run(isolated, capture_output=True, text=True)
    _ip("netns", "del", name)
    return (
        f"this machine lets nobody have processes of his own: {tried.stderr.strip()}"
        if tried.returncode
        else None
    )


# The first process of a host is the one that ends all others with it, as a power cut does.
_OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class Hosts:
    """`with Hosts(2) as hosts`: hosts.start(0, command); what they run and the namespaces end with the block."""

    def __init__(self, number: int) -> None:
        self.names = [f"ddppo{os.getpid()}-{host}" for host in range(number)]
        self.addresses = [NETWORK.format(host + 1) for host in range(number)]
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Hosts":
        bridge = f"{self.names[0]}-net"
        try:
            for name in (*self.names, bridge):
                _do("netns", "add", name)
                _do("-n", name, "link", "set", "lo", "up")
            _do("-n", bridge, "link", "add", "switch", "type", "bridge")
            _do("-n", bridge, "link", "set", "switch", "up")
            for host, name in enumerate(self.names):
                ends = (
                    INTERFACE,
                    "netns",
                    name,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    f"port{host}",
                    "netns",
                    bridge,
                )
                _do("link", "add", *ends)
                _do("-n", bridge, "link", "set", f"port{host}", "master", "switch", "up")
                _do("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", INTERFACE)
                _do("-n", name, "link", "set", INTERFACE, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, host: int, command: Sequence[str], log: Path, **environ: str) -> subprocess.Popen:
        """Start a command as the first process of the host; what it says goes to `log`."""
        own = {
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "DDPPO_MACHINE": self.names[host],
            "PYTHONPATH": str(CHECKOUT),
        }
        with log.open("a") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *_OWN_PROCESSES, *command],
                cwd=CHECKOUT, env=os.environ | own | environ, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def cut_off(self, host: int) -> None:
        """Pull the cable: from now on nothing the host sends arrives, the ends of its connections least of all."""
        _do("-n", self.names[host], "link", "set", INTERFACE, "down")

    def plug_in(self, host: int) -> None:
        _do("-n", self.names[host], "link", "set", INTERFACE, "up")

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            kill(process)
        for name in (*self.names, f"{self.names[0]}-net"):
            _ip("netns", "del", name)


def kill(process: subprocess.Popen) -> None:
    """Kill what `Hosts.start` started and all that came of it."""
    if process.poll() is None:  # else another group may have its number by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # unshare takes its child, and that its namespace, with it
    process.wait()


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def _do(*arguments: str) -> None:
    done = _ip(*arguments)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
