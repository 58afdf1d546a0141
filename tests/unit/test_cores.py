"""Cores are those that affinity and control groups leave a process."""

import math
import os

import pytest

from ddppo.processes.machine import at_most, available_cores, cpu_quota


def machine(folder, groups, **files):
    """A root with /proc/self/cgroup and files below /sys/fs/cgroup, whose names have __ for /."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text("".join(f"{group}\n" for group in groups))
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"job__step__cpu_max": "max 100000"}, math.inf),
        ({"job__step__cpu_max": "150000 100000"}, 1.5),
        ({"job__cpu_max": "400000 100000", "job__step__cpu_max": "max 100000"}, 4.0),  # of the group around
        ({"job__cpu_max": "200000 100000", "job__step__cpu_max": "300000 100000"}, 2.0),
        ({"cpu_max": "50000 200000"}, 0.25),  # a container's own group, mounted at the root
        ({"other__cpu_max": "100000 100000"}, math.inf),
        ({"job__cpu_max": "rubbish"}, math.inf),
    ],
)
def test_the_quota_is_the_least_of_its_own_group_and_those_around_it(tmp_path, files, quota):
    assert cpu_quota(machine(tmp_path, ["0::/job/step"], **files)) == quota


def test_a_group_under_a_name_of_another_name_space_is_the_mount(tmp_path):
    assert cpu_quota(machine(tmp_path, ["0::/../../docker/abc"], cpu_max="200000 100000")) == 2.0


def test_version_1_has_quota_and_period_in_files_of_the_cpu_controller(tmp_path):
    root = machine(tmp_path, ["5:memory:/a", "4:cpu,cpuacct:/a/b", "0::/"])
    for controller, quota in (("cpu,cpuacct", 300000), ("memory", 100000)):
        group = root / "sys/fs/cgroup" / controller / "a"
        group.mkdir(parents=True)
        (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(root) == 3.0
    (root / "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(root) == math.inf


@pytest.mark.parametrize(
    ("cores", "quota", "usable"), [(8, math.inf, 8), (8, 2.9, 2), (8, 0.5, 1), (2, 16.0, 2)]
)
def test_a_quota_keeps_whole_cores_busy_and_at_least_one(cores, quota, usable):
    assert at_most(cores, quota) == usable


def test_a_system_without_control_groups_has_the_cores_of_the_affinity(tmp_path):
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_container_of_one_core_is_oversubscribed_by_two_ranks(tmp_path):
    assert available_cores(machine(tmp_path, ["0::/"], cpu_max="100000 100000")) == 1
