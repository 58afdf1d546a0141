"""Messages per second of a server with an empty environment, and where the processor's time goes.

python experiments/served/messages.py [num_clients=8] [seconds=5] [num_processes=1]
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ddppo.serve.client.connection import Connection

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def processes(name: str, parent_of: int) -> list[int]:
    """Return the processes of this server whose title holds `name`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes().decode(errors="replace")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if name in title and parent == parent_of:
                found.append(int(entry.name))
    return found


async def asked(url: str, num: int, seconds: float) -> None:
    """Step `num` environments, each as fast as it answers; say how long each step took, and stay until stdin ends."""
    connections = [await Connection.opened(url, None, 20.0) for _ in range(num)]
    for each in connections:
        await each.ask(20.0, op="reset", seed=1)
    end = time.perf_counter() + seconds
    took: list[float] = []

    async def run(connection: Connection) -> None:
        while (begun := time.perf_counter()) < end:
            await connection.ask(20.0, op="step", action=1)
            took.append(time.perf_counter() - begun)

    began = time.process_time()
    await asyncio.gather(*map(run, connections))
    print(json.dumps({"took_s": took, "cpu_s": time.process_time() - began}), flush=True)
    sys.stdin.read()
    for each in connections:
        await each.close()


def main(num_clients: int = 8, seconds: int = 5, num_processes: int = 1) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "ddppo.serve", "env.id=empty:Empty-v0", f"pool={num_clients}", "port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as server:
        try:
            url = next(line for line in server.stderr if "serving" in line).split()[-1]
            (forker,) = processes("ddppo.processes.forking", server.pid)
            worlds = processes("ddppo slot", forker)
            before = cpu_s(server.pid), sum(map(cpu_s, worlds))
            share = str(num_clients // num_processes)
            clients = [
                subprocess.Popen(
                    [sys.executable, __file__, url, share, str(seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environ,
                )
                for _ in range(num_processes)
            ]
            told = [json.loads(each.stdout.readline()) for each in clients]
            after = cpu_s(server.pid), sum(map(cpu_s, worlds))
            for each in clients:
                each.communicate()
        finally:
            server.terminate()
    count = sum(len(each["took_s"]) for each in told)
    took = sorted(took_s for each in told for took_s in each["took_s"])
    print(f"{num_clients} clients in {num_processes} processes: {count / seconds:,.0f} messages/s;", end=" ")
    print(
        f"median {took[len(took) // 2] * 1e3:.2f} ms, 99% {took[len(took) * 99 // 100] * 1e3:.2f} ms;",
        end=" ",
    )
    server_us, worlds_us = [(b - a) / count * 1e6 for a, b in zip(before, after, strict=True)]
    client_us = sum(each["cpu_s"] for each in told) / count * 1e6
    print(f"CPU a message: server {server_us:.0f} us, worlds {worlds_us:.0f} us, clients {client_us:.0f} us")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("ws://"):
        asyncio.run(asked(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
    else:
        main(*(int(each) for each in sys.argv[1:]))
