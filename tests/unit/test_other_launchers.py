"""Launchers other than ours: what they tell a rank, what one left in a shell, and what is said of networks."""

import os
import socket
import subprocess
import sys

import pytest

from ddppo.config.settings import Config, DistSettings
from ddppo.distributed import join, network
from ddppo.errors import CollectiveError, ConfigError, first_sentence
from ddppo.launch import checks
from ddppo.launch.mpi import copy_of, refusal, variables_of_rank
from ddppo.launch.rank import _timeout_s
from ddppo.launch.torchrun import check_launcher, contradiction, launcher
from ddppo.processes.machine import at_most, cpu_quota
from tests.support import CHECKOUT, PATIENCE_S

RANK_1_OF_4 = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0", "MASTER_PORT": "29500",
}  # fmt: skip


def without(*names):
    return {name: value for name, value in RANK_1_OF_4.items() if name not in names}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        RANK_1_OF_4,
        RANK_1_OF_4 | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        # no rank, whatever else is set: scripts of clusters export these for torchrun
        {"WORLD_SIZE": "4", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"},
        {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
        {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ],
)
def test_what_torchrun_tells_a_rank_or_nobody_is_no_contradiction(environ):
    assert contradiction(environ) is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK=0 and WORLD_SIZE=2 say that this process is one of several"),
        ({"RANK": "3"}, "RANK=3 says that this process is one of several, but torchrun did not start it"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK=1 and WORLD_SIZE=1 say"),
        (without("TORCHELASTIC_RUN_ID"), "(TORCHELASTIC_RUN_ID is not set)"),
        *(
            (without(name), f"are set, as by torchrun, but {name} is not")
            for name in RANK_1_OF_4
            if name != "TORCHELASTIC_RUN_ID"
        ),
        (without("MASTER_ADDR", "MASTER_PORT"), "but MASTER_ADDR and MASTER_PORT are not"),
        (RANK_1_OF_4 | {"MASTER_ADDR": ""}, "but MASTER_ADDR is not"),
        (RANK_1_OF_4 | {"RANK": "one"}, "RANK=one is no number"),
        (RANK_1_OF_4 | {"WORLD_SIZE": "-2"}, "WORLD_SIZE=-2 is no number"),
        (RANK_1_OF_4 | {"RANK": "4"}, "RANK=4 and WORLD_SIZE=4 contradict each other"),
        (RANK_1_OF_4 | {"WORLD_SIZE": "1"}, "RANK=1 and WORLD_SIZE=1 contradict each other"),
        (RANK_1_OF_4 | {"LOCAL_RANK": "2", "RANK": "2"}, "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2 contradict"),
        (RANK_1_OF_4 | {"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8 and WORLD_SIZE=4 contradict"),
        (RANK_1_OF_4 | {"RANK": "0"}, "LOCAL_RANK=1 and RANK=0 contradict"),
        (RANK_1_OF_4 | {"MASTER_PORT": "70000"}, "MASTER_PORT=70000 cannot be"),
        (RANK_1_OF_4 | {"MASTER_PORT": "0"}, "MASTER_PORT=0 cannot be"),
    ],
)
def test_variables_that_contradict_each_other_are_named_with_how_to_clear_them(environ, said):
    message = contradiction(environ | {"GROUP_RANK": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "HOME": "/root"})
    assert said in message
    cleared = message.partition("clear them: unset ")[2].split()
    assert set(environ) < set(cleared)
    assert "HOME" not in cleared


# -- Ranks of mpirun, mpiexec and srun ---------------------------------------------------------------------------------

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-host0-17@1",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NODELIST": "node03",
}  # fmt: skip
PLACE = {"MASTER_ADDR": "host0", "MASTER_PORT": "29500"}
LAUNCHERS = {"Open MPI": OPEN_MPI, "MVAPICH": MVAPICH, "Hydra": HYDRA, "srun": STEP}


def as_rank(environ):
    copy = copy_of(environ)
    assert copy is not None
    return variables_of_rank(copy, environ)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (OPEN_MPI, "mpirun"),
        (MVAPICH, "mpirun"),
        (HYDRA, "mpiexec"),
        (STEP, "srun"),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "4"}, "srun"),  # srun --mpi=pmi2
        (STEP | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.2"}, "srun"),  # srun --mpi=pmix
        # On other hosts srun starts the daemons of mpirun, one a node.
        (STEP | OPEN_MPI | {"SLURM_STEP_NUM_TASKS": "2"}, "mpirun"),
        (STEP | HYDRA | {"SLURM_PROCID": "0"}, "mpiexec"),
        # A launcher of one process is no launcher of ranks.
        (STEP | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, "srun"),
    ],
)
def test_a_process_of_each_launcher_is_the_rank_that_its_variables_say(environ, launcher):
    variables = as_rank(environ)
    assert variables["DDPPO_LAUNCHER"] == launcher
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [variables[name] for name in names] == ["1", "4", "1", "4", "1"]
    assert "MASTER_PORT" not in variables  # any free one
    assert as_rank(environ)["DDPPO_MEETING"] == variables["DDPPO_MEETING"]
    # An address that the user gave is used.
    assert "DDPPO_MEETING" not in as_rank(environ | PLACE)


@pytest.mark.parametrize("name", ["Open MPI", "MVAPICH", "Hydra"])
def test_ranks_on_several_hosts_need_the_address_of_rank_0(name):
    environ = LAUNCHERS[name]
    few = next(variable for variable in environ if variable.endswith(("LOCAL_SIZE", "LOCALNRANKS")))
    environ = environ | {few: "2"}
    variables = as_rank(environ | PLACE)
    assert (variables["LOCAL_WORLD_SIZE"], variables["GROUP_WORLD_SIZE"]) == ("2", "2")
    for given in ({}, {"MASTER_ADDR": "host0"}, {"MASTER_PORT": "29500"}):
        with pytest.raises(ConfigError) as refused:
            as_rank(environ | given)
        said = str(refused.value)
        assert "started 4 ranks, 2 of them on this host, and does not say where rank 0 is" in said
        assert ("-genv MASTER_ADDR host0" if name == "Hydra" else "-x MASTER_ADDR=host0") in said


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node03,node07", "node03"),
        ("node[03-05,9],other", "node03"),
        ("rack[1-2]node[04-09]", "rack1node04"),
        ("127.0.1.[1-2]", "127.0.1.1"),
    ],
)
def test_ranks_of_srun_on_several_nodes_meet_on_the_first_one(nodes, first):
    several = STEP | {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1"}
    several |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}
    variables = as_rank(several)
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("3", "0", "1")
    assert variables["GROUP_WORLD_SIZE"] == "2"
    assert variables["MASTER_ADDR"] == first
    ports = {as_rank(several | {"SLURM_STEP_ID": str(step)})["MASTER_PORT"] for step in range(64)}
    assert len(ports) == 64
    assert all(15000 <= int(port) < 30000 for port in ports)
    # One of the two that the user gave is used.
    for name, value in PLACE.items():
        assert as_rank(several | {name: value}) == variables | {name: value}


def test_the_cores_of_a_host_are_all_that_the_launcher_may_use(monkeypatch):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # as mpirun binds a rank
    try:
        assert int(as_rank(HYDRA)["DDPPO_HOST_CORES"]) == at_most(
            len(os.sched_getaffinity(os.getppid())), cpu_quota()
        )
    finally:
        os.sched_setaffinity(0, before)
    assert as_rank(STEP | {"SLURM_CPUS_ON_NODE": "12"})["DDPPO_HOST_CORES"] == "12"
    monkeypatch.setattr(join, "available_cores", lambda: 8)
    monkeypatch.setenv("DDPPO_HOST_CORES", "16")
    assert [join.cores_per_rank(ranks) for ranks in (1, 2, 4, 32)] == [8, 8, 4, 1]


# Starts a rank for each number, which prints where the ranks meet; one of them behind a script of its own.
LAUNCHER = """
import os, subprocess, sys
show = (
    "import os; from ddppo.launch.mpi import *;"
    "place = variables_of_rank(copy_of(os.environ), os.environ)[MEETING];"
    "os.write(1, f'{place} '.encode())"  # in one piece, for print may write the end of the line later
)
ranks = []
for rank in ("0", "1"):
    environ = os.environ | {"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"}
    command = [sys.executable, "-c", show]
    if rank == "1":
        command = ["sh", "-c", '"$@"; exit', "sh", *command]
    ranks.append(subprocess.Popen(command, env=environ))
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ranks_of_one_launcher_meet_at_one_place_and_those_of_another_at_another():
    launchers = [
        subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
        for _ in range(2)
    ]
    places = [launcher.communicate(timeout=PATIENCE_S)[0].split() for launcher in launchers]
    assert [len(each) for each in places] == [2, 2]
    assert len(set(places[0])) == len(set(places[1])) == 1
    assert set(places[0]) != set(places[1])


@pytest.fixture
def meeting(monkeypatch, tmp_path):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "DDPPO_MEETING": str(tmp_path / "meeting")}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "meeting"


def test_rank_0_writes_where_its_store_is_until_all_have_met(monkeypatch, meeting):
    with network.leaving_meeting():
        store = network.rendezvous_store(20.0)
        monkeypatch.setenv("RANK", "1")
        network.rendezvous_store(20.0).set("key", "value")
        assert store.get("key") == b"value"
        assert meeting.exists()
    assert not meeting.exists()


def test_a_file_that_a_killed_rank_0_left_is_none(monkeypatch, meeting):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert_not_read(monkeypatch, meeting, ended.pid)


def test_so_it_is_if_another_user_has_a_process_of_that_number_now(monkeypatch, meeting):
    def kill(number, signal):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", kill)
    assert_not_read(monkeypatch, meeting, 1)


def assert_not_read(monkeypatch, meeting, number):
    meeting.write_text(f'[{number}, "127.0.0.1", 1]')
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(CollectiveError, match=r"rank 1 on .* heard nothing from rank 0 within 0.2 s"):
        network.rendezvous_store(0.2)


TWO_NODES = STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "node[03-04]"}
UNNEEDED = (
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
)  # without the last two the step is none of several


def all_but(environ, name):
    return {each: value for each, value in environ.items() if each != name}


@pytest.mark.parametrize(
    ("environ", "launcher", "number"),
    [
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpiexec started 2 copies of this command (PMI_SIZE=2)", 0),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, "mpirun started 2 copies", 1),
        ({"PMIX_RANK": "1"}, "a launcher that speaks PMIx started this command as one of several", 1),
        (HYDRA | {"PMI_RANK": "x"}, "mpiexec started 4 copies", 0),
        (HYDRA | {"MPI_LOCALNRANKS": "x"}, "mpiexec started 4 copies", 1),
        (HYDRA | {"MPI_LOCALNRANKS": "0"}, "mpiexec started 4 copies", 1),
        (all_but(HYDRA, "MPI_LOCALNRANKS"), "mpiexec started 4 copies", 1),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2x3"}, "srun started 4 copies", 1),
        (STEP | {"SLURM_NODEID": "1"}, "srun started 4 copies", 1),
        *(
            (all_but(TWO_NODES, name), "srun started 4 copies", 1)
            for name in TWO_NODES
            if name not in UNNEEDED
        ),
    ],
)
def test_copies_that_cannot_know_each_other_are_told_how_to_start(environ, launcher, number):
    copy = copy_of(environ)
    assert copy.number == number
    with pytest.raises(ConfigError) as refused:
        variables_of_rank(copy, environ)
    said = str(refused.value)
    assert said == refusal(copy)
    assert launcher in said
    assert all(
        way in said for way in ("dist.world_size=", "torchrun --nproc-per-node=", "hydra/launcher=slurm")
    )


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        # a batch script, or a shell of salloc, in a job of many tasks
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "8"},
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMIX_RANK": "0"},
        STEP | {"SLURM_PROCID": "0", "SLURM_PTY_PORT": "40000"},  # srun -n 2 --pty bash
    ],
)
def test_a_command_that_was_started_once_is_no_copy(environ):
    assert copy_of(environ) is None


@pytest.mark.parametrize("others", LAUNCHERS.values(), ids=LAUNCHERS)
def test_torchrun_under_another_launcher_is_torchrun(monkeypatch, others):
    given = others | RANK_1_OF_4
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    check_launcher(joins=True)
    assert launcher() == "torchrun"
    assert "DDPPO_LAUNCHER" not in os.environ
    assert {name: os.environ[name] for name in given} == given


@pytest.mark.parametrize(
    ("started", "local_world_size", "named"),
    [
        ({}, 4, "dist.world_size=4"),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, 2, "nproc-per-node=2"),
        ({"RANK": "0", "DDPPO_LAUNCHER": "mpirun"}, 2, "LOCAL_WORLD_SIZE=2"),
        ({"RANK": "0", "DDPPO_LAUNCHER": "mpirun"}, 4, "dist.world_size=4"),
    ],
)
def test_too_many_ranks_on_a_host_are_named_as_their_launcher_does(
    monkeypatch, started, local_world_size, named
):
    for name, value in {"DDPPO_HOST_CORES": "1", **started}.items():
        monkeypatch.setenv(name, value)
    config = Config(device="cpu", dist=DistSettings(world_size=4))
    assert checks.check_machine(config, local_world_size).startswith(
        f"{named} exceeds this machine's 1 cores"
    )


def test_copies_of_a_program_that_calls_the_command_are_no_ranks(monkeypatch):
    for name, value in HYDRA.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="mpiexec started 4 copies"):
        check_launcher(joins=False)


@pytest.mark.parametrize(
    ("variable", "value", "is_known"),
    [
        ("GLOO_SOCKET_IFNAME", "", True),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", False),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "ib,eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker", True),
        ("NCCL_SOCKET_IFNAME", "ib", False),
    ],
)
def test_an_interface_that_is_not_there_is_told_with_those_that_are(variable, value, is_known):
    said = network.unknown_interface({variable: value}, variable, ["lo", "eth0"])
    assert (said is None) == is_known
    assert is_known or said.startswith(f"{variable}={value}: ")
    assert is_known or "it has lo, eth0" in said


def test_a_firewall_that_drops_what_loopback_carries_is_told(monkeypatch):
    def drop(*arguments, **more):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", drop)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1: no answer.*ip link set lo up"):
        network.loopback_address()


@pytest.mark.parametrize("found", [None, ["127.0.1.1"], ["::1", "127.0.0.1"]])
def test_a_host_whose_name_means_no_address_that_others_reach_warns(monkeypatch, found):
    def addresses(name, port):
        if found is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(None, None, None, "", (address, 0)) for address in found]

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    assert "set GLOO_SOCKET_IFNAME" in network.check_host_name()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert network.check_host_name() is None
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    found = ["127.0.1.1", "10.0.0.4"]
    assert network.check_host_name() is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "The client socket has timed out.\nException raised from run at socket.cpp:820 (most recent call first):\n"
            "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f2)\n",
            "The client socket has timed out",
        ),
        (
            "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to "
            "find address for: nope0",
            "Unable to find address for: nope0",
        ),
        ("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4", "Connection closed by peer "
         "[127.0.0.1]:4"),
        ("\n\nno word from rank 1\n", "no word from rank 1"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_of_an_error_of_torch_s_the_sentence_is_left(text, sentence):
    assert first_sentence(RuntimeError(text)) == sentence


@pytest.mark.parametrize(
    ("arguments", "timeout_s"),
    [
        (["env=cartpole"], 600.0),
        (["dist.timeout_s=30"], 30.0),
        (["dist.timeout_s=30", "++dist.timeout_s=4e1"], 40.0),
        (["dist.timeout_s=nan-sense"], 600.0),
        (["dist.timeout_s=1e300"], 2e6),
    ],
)
def test_a_rank_that_waits_for_rank_0_knows_the_limit_that_was_typed(arguments, timeout_s):
    assert _timeout_s(arguments, 600.0) == timeout_s
