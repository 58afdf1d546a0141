"""The machines that a run's ranks are on, as rank 0 writes them down."""

import json
import math
from typing import Any

import torch

from ddppo.collectives import Group
from ddppo.collectives.meeting import machine_number
from ddppo.collectives.peers import OwnPace
from ddppo.processes.machine import allowed_cores, at_most, cpu_quota
from ddppo.run.records.summary import machine

_LONGEST = 1 << 12  # bytes of what a rank says, which may have thousands of cores


def gather_machines(group: Group, *, with_gpu: bool) -> list[dict[str, Any]]:
    """Return hostname, cpu, gpu, cores and ranks of every machine of the run, in the order of their first ranks.

    Every rank calls it. cores: those that all ranks there together may keep busy, which a scheduler may have bound to
    different ones. Two machines may have one name, and two nodes of a cluster be one machine.
    """
    about = machine(with_gpu=with_gpu)
    quota = cpu_quota()
    word = {
        "number": machine_number(),
        **{key: about[key] for key in ("hostname", "cpu", "gpu")},
        "cores": hex(sum(1 << core for core in allowed_cores())),
        "quota": None if math.isinf(quota) else quota,
    }
    text = json.dumps(word)
    if isinstance(group, OwnPace):
        return merged([json.loads(said) for said in group.words("machine", text)])
    row = text.encode().ljust(_LONGEST)
    assert len(row) == _LONGEST, text
    rows = group.gather(torch.frombuffer(bytearray(row), dtype=torch.uint8))
    return merged([json.loads(bytes(row.tolist())) for row in rows])


def merged(words: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the machines of what ranks say of theirs, one word for each rank."""
    ranks_of: dict[int, list[int]] = {}
    for rank, word in enumerate(words):
        ranks_of.setdefault(word["number"], []).append(rank)
    found = []
    for ranks in ranks_of.values():
        cores, quota, first = 0, 0.0, words[ranks[0]]
        for word in (words[rank] for rank in ranks):
            cores |= int(word["cores"], 16)
            quota = max(quota, word["quota"] or math.inf)
        about = {key: first[key] for key in ("hostname", "cpu", "gpu")}
        found.append({**about, "cores": at_most(cores.bit_count(), quota), "ranks": ranks})
    return found
