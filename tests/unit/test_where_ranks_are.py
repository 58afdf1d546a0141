"""What ranks say of their machines, put together."""

from ddppo.collectives.group import Group
from ddppo.processes.machine import available_cores
from ddppo.records.provenance import gather_machines, machine, merge_machines


def word(number, cores, hostname="a", quota=None):
    bits = hex(sum(1 << core for core in cores))
    return {"number": number, "hostname": hostname, "cpu": "Xeon", "gpu": None, "cores": bits, "quota": quota}


def test_ranks_that_are_bound_to_cores_of_their_own_have_all_of_them_together():
    (found,) = merge_machines([word(1, [0]), word(1, [1]), word(1, [1, 900])])
    assert found == {"hostname": "a", "cpu": "Xeon", "gpu": None, "cores": 3, "ranks": [0, 1, 2]}


def test_machines_are_told_apart_by_number_not_by_name():
    found = merge_machines([word(1, [0, 1]), word(2, [0]), word(1, [0, 1])])
    assert [(each["hostname"], each["cores"], each["ranks"]) for each in found] == [
        ("a", 2, [0, 2]),
        ("a", 1, [1]),
    ]


def test_a_machines_cores_are_within_its_quota():
    assert merge_machines([word(1, range(64), quota=4.5)] * 8)[0]["cores"] == 4


def test_a_rank_alone_tells_of_this_machine():
    (found,) = gather_machines(Group())
    here = machine()
    assert found == {key: here[key] for key in ("hostname", "cpu", "gpu", "cores")} | {"ranks": [0]}
    assert found["cores"] == available_cores()
