"""Where runs come from, and what differs between W besides W."""

from dataclasses import replace

import pytest

from ddppo.study.read.record import Machine, Origin
from ddppo.study.read.run_folders import read_run
from ddppo.study.read.selection import mixed, provenance, varying
from tests.study.scaling_folders import change_summary, make_run, write_run

HERE = Origin(
    started_at="2026-01-02T10:00:00+00:00",
    finished_at="2026-01-02T10:05:00+00:00",
    command="python -m ddppo.train -m dist.world_size=1,2",
    git_commit="a" * 40,
    python="3.11.7",
    torch="2.13.0",
    hostname="gpu-node-number-07",
    hosts=("gpu-node-number-07",),
    machines=(Machine("gpu-node-number-07", "Xeon", "", 8),),
)


def runs_of(*origins):
    return [make_run(2**i, fps=100.0, origin=origin) for i, origin in enumerate(origins)]


def test_it_tells_commands_commits_dates_machines_and_versions():
    later = replace(HERE, finished_at="2026-01-03T10:05:00+00:00", git_dirty=True)
    found = provenance(runs_of(later, HERE))
    assert found.commands == (HERE.command,)
    assert found.commits == ("a" * 12, "a" * 12 + " and changes")
    assert (found.first, found.last) == (HERE.started_at, later.finished_at)
    assert found.machines == HERE.machines
    assert (found.torch, found.python) == (("2.13.0",), ("3.11.7",))
    commits = {1: "aaaaaaaaaaaa and changes", 2: "aaaaaaaaaaaa"}
    assert found.varying == {"git_commit": commits}


def test_what_is_unknown_is_left_out():
    found = provenance(runs_of(Origin(), Origin()))
    assert (found.commands, found.commits, found.first, found.last) == ((), (), "", "")
    assert found.varying == {}


def test_names_that_differ_after_many_letters_are_two():
    gpus = [
        replace(HERE, device=f"NVIDIA H100 80GB {name}", machines=(Machine("h", "Xeon", name, 8),))
        for name in ("PCIe", "SXM5")
    ]
    assert varying(runs_of(*gpus))["derived.device"] == {
        1: "NVIDIA H100 80GB PCIe",
        2: "NVIDIA H100 80GB SXM5",
    }
    hosts = [replace(HERE, hosts=(f"gpu-node-number-{i}",)) for i in (7, 8)]
    assert varying(runs_of(*hosts)) == {"hosts": {1: "gpu-node-number-7", 2: "gpu-node-number-8"}}


def test_runs_of_one_w_on_two_machines_differ_too():
    on = [replace(HERE, hosts=(name,)) for name in "ab"]
    runs = [make_run(w, seed, fps=100.0, origin=on[seed]) for w in (1, 2) for seed in (0, 1)]
    assert varying(runs) == {"hosts": {1: "a or b", 2: "a or b"}}
    assert mixed(runs) == [
        "These runs differ in more than W and seed. hosts: a or b at W=1/2. A difference between W may be due to that."
    ]


def test_more_workers_may_have_more_hosts():
    assert varying(runs_of(replace(HERE, hosts=("a",)), replace(HERE, hosts=("a", "b")))) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("threads_per_rank", 2), ("env_backend", "pool"), ("step", "native")]
)
def test_what_a_run_settled_for_itself_is_among_what_varies(name, value):
    (what,) = varying(runs_of(replace(HERE, **{name: value}), HERE)).items()
    assert what[0] == f"derived.{name}"
    assert what[1][1] == str(value)


def test_a_worker_alone_has_no_collective_which_is_no_difference():
    alone = replace(HERE, collective="none", grad_sync="none")
    shm, gloo = (replace(HERE, collective=name, grad_sync="flat") for name in ("shm", "gloo"))
    assert varying(runs_of(alone, shm, shm)) == {}
    assert varying(runs_of(alone, shm, gloo)) == {"derived.collective": {2: "shm", 4: "gloo"}}


def test_settings_of_dist_that_differ_between_world_sizes_are_among_what_varies(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", world_size=2, dist__grad_sync="ddp", dist__timeout_s=60.0)
    found = varying([read_run(tmp_path / name) for name in "ab"])
    assert found == {"dist.grad_sync": {1: "auto", 2: "ddp"}}


def test_a_run_of_one_machine_had_all_its_ranks_there(tmp_path):
    folder = write_run(tmp_path / "a", world_size=2)
    assert read_run(folder).origin.hosts == ()  # an older run that does not tell its machines
    change_summary(folder, machine={"hostname": "here", "cpu": "Xeon", "cores": 64, "gpu": None})
    derived = {"N": 8, "T": 10, "K": 4, "M": 2, "num_parameters": 1000, "num_hosts": 1}
    change_summary(folder, derived=derived, versions={"python": "3.11.7", "torch": "2.13.0+cpu"})
    origin = read_run(folder).origin
    assert origin.hosts == ("here", "here")
    assert origin.machines == (Machine("here", "Xeon", "", 64),)
    assert (origin.python, origin.torch) == ("3.11.7", "2.13.0+cpu")


def test_a_command_of_many_lines_is_shown_in_one_and_makes_no_run_unusable(tmp_path):
    folder = write_run(tmp_path / "a")
    change_summary(folder, command="python -m ddppo.train 'a=1\n2' " + "x" * 9000)
    command = read_run(folder).origin.command
    assert command.startswith("python -m ddppo.train 'a=1 2' xxx")
    assert len(command) == 2000
