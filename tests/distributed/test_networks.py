"""Networks and launchers as they are elsewhere: what does not work is one sentence and soon over, the rest works."""

import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from ddppo.launch import rank as launched
from tests.support import CHECKOUT, TINY, door, free_port, run, started, summary, wait_until

SMALL = [
    *TINY, "env=cartpole", "env.num_envs=4", "ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_epochs=2",
]  # fmt: skip
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]


def why_no_namespaces():
    if sys.platform != "linux" or not all(map(shutil.which, ("ip", "unshare"))):
        return "network namespaces need Linux, ip (iproute2) and unshare (util-linux)"
    made = subprocess.run(["unshare", "-n", "-m", "-u", "true"], capture_output=True, text=True)
    return f"this machine lets nobody make namespaces: {made.stderr.strip()}" if made.returncode else None


WHY_NOT = why_no_namespaces()
in_a_namespace = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")


def elsewhere(prepare, *arguments, run_dir, **environ):
    """Run the door on two ranks in a network of its own, whose loopback is down until `prepare`, a shell's words."""
    settings = [*SMALL, "dist.world_size=2", *arguments, f"hydra.run.dir={run_dir}"]
    command = ["unshare", "-n", "-m", "-u", "sh", "-c", f'{prepare}; exec "$@"', "sh", sys.executable, "-m"]
    return run([*command, "ddppo.train", *settings], run_dir, **environ)


def assert_one_sentence(result, *said, code=2):
    assert result.code == code, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(part in result.stderr for part in said), result.stderr


@in_a_namespace
def test_a_loopback_that_is_down_is_one_sentence_before_anything_starts(tmp_path):
    result = elsewhere("true", run_dir=tmp_path / "run")
    assert_one_sentence(result, "127.0.0.1: ", "::1: ", "ip link set lo up", "dist.world_size=1")
    assert not (tmp_path / "run").exists()


@in_a_namespace
@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare",
    [
        "ip link set lo up; ip addr del 127.0.0.1/8 dev lo",
        "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up",
        "ip link set lo up; hostname nowhere; for f in hosts resolv.conf; do mount --bind /dev/null /etc/$f; done",
    ],
    ids=["IPv6 only", "IPv6 off", "host name that does not resolve"],
)
def test_one_machine_needs_one_address_of_its_own_and_no_name(tmp_path, prepare):
    result = elsewhere(prepare, "dist.collective=gloo", run_dir=tmp_path / "run")
    assert (result.code, result.stderr) == (0, "")
    assert summary(tmp_path / "run")["status"] == "completed"


def test_an_interface_that_does_not_exist_is_one_sentence_with_those_that_do(tmp_path):
    arguments = [*SMALL, "dist.world_size=2", "dist.collective=gloo"]
    result = door(*arguments, run_dir=tmp_path / "run", GLOO_SOCKET_IFNAME="nope0")
    names = ", ".join(name for _, name in socket.if_nameindex())
    assert_one_sentence(
        result, "GLOO_SOCKET_IFNAME=nope0", f"it has {names}: use one", "unset GLOO_SOCKET_IFNAME"
    )
    assert not (tmp_path / "run").exists()


def test_of_copies_that_cannot_meet_the_first_says_so_and_the_others_end_as_if_well(tmp_path):
    # With another code mpirun would kill the first before it can speak.
    first, second = (
        door(*SMALL, run_dir=tmp_path / "run", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK=str(number))
        for number in (0, 1)
    )
    assert_one_sentence(first, "mpirun started 2 copies", "dist.world_size=2")
    assert (second.code, second.stdout, second.stderr) == (0, "", "")
    assert not (tmp_path / "run").exists()


def test_what_torchrun_left_in_part_is_one_sentence(tmp_path):
    left = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2"}
    result = door(*SMALL, run_dir=tmp_path / "run", **left)
    assert_one_sentence(
        result, "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not", "unset RANK"
    )


# -- torchrun beside a mistake ---------------------------------------------------------------------------------------


def codes(result):
    return set(re.findall(r"^ +exitcode +: (-?\d+)", result.stderr, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["env=nonsense", "env.id=CartPol-v1"], ids=["in composing", "in checks"])
def test_beside_torchrun_only_rank_0_speaks_of_a_mistake_and_all_end_with_its_code(tmp_path, mistake):
    command = [*TORCHRUN, "-m", "ddppo.train", *SMALL, mistake, f"hydra.run.dir={tmp_path / 'run'}"]
    result = run(command, tmp_path / "run")
    assert result.code == 1
    assert len(re.findall("^error: ", result.stderr, re.MULTILINE)) == 1
    assert result.stderr.count("Traceback") == 1  # torchrun's own
    assert (
        "2" in codes(result) <= {"2", "-15"}
    )  # -15 where torchrun is quicker than a rank that was told the code
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_beside_torchrun_an_exception_in_rank_0_s_checks_has_one_traceback(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(
        "from ddppo.launch import run as one_run\n"
        "from ddppo.train import main\n"
        "one_run.check = lambda config: 1 / 0\n"
        "main()\n"
    )
    command = [*TORCHRUN, str(script), *SMALL, f"hydra.run.dir={tmp_path / 'run'}"]
    result = run(command, tmp_path / "run", PYTHONPATH=str(CHECKOUT))
    assert result.stderr.count("ZeroDivisionError") == 1
    assert result.stderr.count("Traceback") == 2  # and torchrun's own
    assert "1" in codes(result) <= {"1", "-15"}


# -- a rendezvous that goes wrong: torchrun's variables without torchrun -----------------------------------------------


@pytest.fixture
def port():
    return free_port()


def one_rank(rank, port, *arguments, run_dir, host="127.0.0.1", **more):
    """Return the command and the environment of a rank of 2 whose other rank is left to the test."""
    environ = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    environ |= {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": host} | more
    command = [sys.executable, "-m", "ddppo.train", *SMALL, *arguments, f"hydra.run.dir={run_dir}"]
    return command, {name: str(value) for name, value in environ.items()}


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command, environ = one_rank(0, port, run_dir=tmp_path / "run")
        assert_one_sentence(run(command, tmp_path, **environ), f"cannot listen at 127.0.0.1:{port}", code=1)


@pytest.mark.parametrize(
    ("rank", "how", "said"),
    [
        (1, {}, "found no rendezvous at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) within 1 s: connection refused"),
        (1, {"host": "nowhere.invalid"}, "within 1 s: the name does not resolve"),
        (0, {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "if a torchrun that has ended left these variables"),
        (0, {}, "rank 1 of 2 did not come within 1 s of rank 0 (dist.timeout_s)"),
    ],
)  # fmt: skip
def test_whom_a_rank_does_not_find_it_waits_for_as_long_as_dist_timeout_s(tmp_path, port, rank, how, said):
    command, environ = one_rank(rank, port, "dist.timeout_s=1", run_dir=tmp_path / "run", **how)
    assert_one_sentence(run(command, tmp_path, **environ), said.format(port=port), code=1)


def test_what_listens_on_the_port_and_is_no_store_is_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command, environ = one_rank(1, port, "dist.timeout_s=1", run_dir=tmp_path / "run")
        assert_one_sentence(run(command, tmp_path, **environ), "does not answer as a store", code=1)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("has_followed", [False, True], ids=["in the formation", "in the meeting"])
def test_ctrl_c_ends_rank_0_while_it_waits_for_the_others(tmp_path, port, has_followed):
    command, environ = one_rank(0, port, run_dir=tmp_path / "run")
    with started(command, **environ) as process:
        wait_until(lambda: listens(port), "store of rank 0")
        if has_followed:
            store, _ = launched.hear_run(dist.TCPStore("127.0.0.1", port, is_master=False), 1, 60)
            store.get("ddppo/hello/0")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "interrupted; there is no checkpoint\n")


def test_ctrl_c_ends_a_rank_that_waits_for_rank_0_and_it_says_nothing(tmp_path):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command, environ = one_rank(1, store.port, run_dir=tmp_path / "run")
    with started(command, **environ) as process:
        wait_until(lambda: store.check(["ddppo/here/1"]), "word of rank 1")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (-signal.SIGINT, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["dist.world_size", "torchrun"])
def test_two_runs_at_once_on_one_machine_do_not_meet(tmp_path, launcher):
    # The rendezvous outlives both: kept by the first torchrun, it would end with it, and the second would fail.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    commands = []
    for name in ("a", "b"):
        command = [sys.executable, "-m", "ddppo.train", "dist.world_size=2"]
        if launcher == "torchrun":
            at = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{store.port}", f"--rdzv-id={name}"]
            command = [*TORCHRUN, *at, "--rdzv-conf=is_host=0", "-m", "ddppo.train"]
        commands.append([*command, *SMALL, f"hydra.run.dir={tmp_path / name}"])
    with started(commands[0]) as first, started(commands[1]) as second:
        for process in (first, second):
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 0, stderr
    assert [summary(tmp_path / name)["status"] for name in ("a", "b")] == ["completed"] * 2


@pytest.mark.parametrize(("value", "said"), [("0.01", "at least 0.1"), ("1e300", "at most 2000000")])
def test_a_limit_that_is_none_is_refused(tmp_path, value, said):
    result = door(*SMALL, f"dist.timeout_s={value}", run_dir=tmp_path / "run")
    assert_one_sentence(result, "dist.timeout_s=", said)
