"""What is said of networks, of other launchers and of what one left in a shell, before anything starts."""

import socket

import pytest

from ddppo.distributed import network
from ddppo.errors import ConfigError, first_sentence
from ddppo.launch.rank import _timeout_s
from ddppo.launch.torchrun import contradiction, copies_of

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


STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environ", "launcher", "number"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"},
            "mpirun (Open MPI)",
            1,
        ),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpiexec (MPICH, Intel MPI)", 0),
        ({"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_RANK": "2"}, "mpirun (MVAPICH)", 2),
        (STEP | {"SLURM_PROCID": "0"}, "srun started 2 copies", 0),
        (STEP | {"SLURM_PROCID": "1"}, "srun started 2 copies", 1),
        ({"PMIX_RANK": "1"}, "a launcher that speaks PMIx", 1),
    ],
)
def test_copies_that_another_launcher_started_are_told_of_each_other(environ, launcher, number):
    said, copy = copies_of(environ)
    assert launcher in said
    assert all(
        way in said for way in ("dist.world_size=", "torchrun --nproc-per-node=", "hydra/launcher=slurm")
    )
    assert copy == number


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
        STEP | RANK_1_OF_4,  # srun -N 2 -n 2 torchrun ...
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"} | RANK_1_OF_4,
    ],
)
def test_a_command_that_was_started_once_or_by_torchrun_is_no_copy(environ):
    assert copies_of(environ) is None


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
