"""A real SLURM on this machine, of as many nodes as one likes: `make slurm-up`, `make slurm-down`.

python -m tests.slurm.local_cluster up [nodes=8] [cpus=8] [dir=~/.cache/ddppo/slurm]
python -m tests.slurm.local_cluster down [dir=...]
python -m tests.slurm.local_cluster status [dir=...]

The nodes share the machine, and claim more cores than there are. The rest is what a cluster has: slurmctld, a slurmd
for every node, sbatch, srun, requeueing, preemption. Everything listens on the loopback interface alone. Munge with a
key of the cluster's own proves who submits: without it every user of the machine could run jobs as its owner.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ddppo import package
from ddppo.cluster.driver import is_free
from ddppo.cluster.slurm import LOCAL, is_up
from ddppo.errors import ClusterError, ConfigError

PACKAGES = "slurmctld slurmd slurm-client munge"
_PROGRAMS = (
    "munged",
    "mungekey",
    "slurmctld",
    "slurmd",
    "scontrol",
    "sinfo",
    "squeue",
    "scancel",
    "srun",
    "sbatch",
)
# Below what Linux gives to outgoing connections (32768), above what drivers take for rendezvous (15000 to 29999).
_PORTS = range(30000, 32700)
MARK = "# written by ddppo"
_LONGEST_FOLDER = 50  # a step's socket is <folder>/spool/127.0.1.N/127.0.1.N_<job>.<step>, 107 bytes at most
_MOST_NODES = 200  # the last number of a node's address
_START_S = 60.0
_STOP_S = 15.0

# debug is for work. A job in low is requeued, after GraceTime, when one in high wants its nodes.
_CONF = """\
{mark}
ClusterName=ddppo
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.socket
PlugStackConfig={folder}/plugstack.conf
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SrunPortRange=61000-62999
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait=5
MessageTimeout=30
SlurmctldTimeout=60
SlurmdTimeout=120
InactiveLimit=0
MinJobAge=300
MaxArraySize=1001
EnforcePartLimits=ALL
MailProg=/bin/true
FirstJobId={first_job_id}
TreeWidth=65000
NodeName=127.0.1.[1-{num_nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first_node_port}-{last_node_port} \
CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=20000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF State=UP
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 State=UP
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""


class LocalCluster:
    """SLURM daemons and their files in `folder`. `start` and `stop`, or use it as a context manager.

    `conf` is what SLURM_CONF must be for sbatch, squeue and the others to mean this cluster.
    """

    def __init__(self, folder: Path = LOCAL, num_nodes: int = 8, cpus_per_node: int = 8) -> None:
        try:
            self.folder = Path(folder).expanduser().absolute()
        except RuntimeError:
            raise ConfigError(
                f"{folder}: this user has no home folder: set HOME, or add dir=<folder>"
            ) from None
        self.num_nodes = num_nodes
        self.cpus_per_node = cpus_per_node
        self.conf = self.folder / "slurm.conf"
        if not 1 <= num_nodes <= _MOST_NODES:
            raise ConfigError(f"nodes={num_nodes}: must be from 1 to {_MOST_NODES}")
        if cpus_per_node < 1:
            raise ConfigError(f"cpus={cpus_per_node}: must be at least 1")
        if len(str(self.folder)) > _LONGEST_FOLDER:
            raise ConfigError(
                f"dir={self.folder}: SLURM's sockets in it would have names that are too long: choose a folder of at "
                f"most {_LONGEST_FOLDER} characters"
            )

    def __enter__(self) -> "LocalCluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemons and wait until every node is idle.

        Raises ClusterError if SLURM is not installed, if the cluster is up already, or if a daemon fails; nothing
        runs then that did not before.
        """
        if missing := missing_programs():
            raise ClusterError(
                f"SLURM is not installed here, there is no {', '.join(missing)}: on Debian or Ubuntu, "
                f"apt-get install --no-install-recommends {PACKAGES}"
            )
        if self.is_up():
            raise ClusterError(f"the cluster in {self.folder} is up already, with SLURM_CONF={self.conf}")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not _is_ours(self.conf):
            raise ConfigError(
                f"dir={self.folder} holds other files: choose a folder that is empty or not there yet"
            )
        self._kill(self.processes())  # what an earlier one left when its daemons were killed
        self._write_files()
        try:
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all jobs and daemons of the cluster and wait until they are gone; the logs stay."""
        if self.is_up():
            with suppress(ClusterError):  # a slurmctld that does not answer gets its signals below
                self.ask("scancel", "--me", "--quiet")
                _wait(lambda: not self.ask("squeue", "--noheader", "--states=running,completing"), _STOP_S)
        processes = self.processes()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        _wait(lambda: not self.processes(), _STOP_S)
        self._kill(self.processes())

    def is_up(self) -> bool:
        """Return whether the cluster's slurmctld is running."""
        return is_up(self.conf)

    # -- files and daemons ---------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for name in ("run", "log", "state", "spool"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o700)
        (self.folder / "munge.key").unlink(missing_ok=True)
        text = slurm_conf(self.folder, self.num_nodes, self.cpus_per_node)
        self.conf.write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "plugstack.conf").write_text("")

    def _start_daemons(self) -> None:
        folder = self.folder
        self._daemon("mungekey", "--create", f"--keyfile={folder}/munge.key")
        files = {
            "key-file": "munge.key",
            "socket": "run/munge.socket",
            "pid-file": "run/munged.pid",
            "log-file": "log/munged.log",
            "seed-file": "run/munged.seed",
        }
        # --force: a folder that others cannot enter is what we want, munged would refuse it
        self._daemon("munged", "--force", *(f"--{option}={folder / name}" for option, name in files.items()))
        self._daemon("slurmctld", "-c", "-i")
        for number in range(1, self.num_nodes + 1):
            self._daemon("slurmd", "-N", f"127.0.1.{number}")

        def is_ready() -> bool:
            with suppress(ClusterError):  # it may not answer yet
                return set(self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"}
            return False

        if not _wait(is_ready, _START_S):
            raise ClusterError(f"the nodes are not idle after {_START_S:g} s\n{self._logs()}")

    def _daemon(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None, name
        output = self.folder / "log" / f"{name}.out"
        with output.open("a") as file:
            try:
                code = subprocess.run(
                    [program, *arguments],
                    env=self._environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=_START_S,
                ).returncode
            except subprocess.TimeoutExpired as e:
                raise ClusterError(f"{name} did not start within {_START_S:g} s\n{self._logs()}") from e
        if code != 0:
            raise ClusterError(f"{name} ended with exit code {code}\n{self._logs()}")

    def ask(self, name: str, *arguments: str) -> str:
        """Return what a client command prints. Raises ClusterError if it fails or takes too long."""
        try:
            done = subprocess.run(
                [name, *arguments], env=self._environ(), capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ClusterError(f"{name}: {e}") from e
        if done.returncode != 0:
            raise ClusterError(f"{name}: {done.stderr.strip()}")
        return done.stdout

    def _environ(self) -> dict[str, str]:
        # A daemon that is started inside a job of another cluster must not take that job for its own, and what a user
        # has set for the terminal, a filter say, would hide nodes and jobs from us.
        foreign = ("SLURM", "SBATCH_", "SCANCEL_", "SINFO_", "SQUEUE_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**environ, "SLURM_CONF": str(self.conf)}

    def _logs(self) -> str:
        """Return the last lines of what the daemons have written."""
        texts = {
            path: path.read_text(errors="replace").splitlines() for path in (self.folder / "log").iterdir()
        }
        # What was written last is nearest to the fault, and stands last.
        paths = sorted((path for path in texts if texts[path]), key=lambda path: path.stat().st_mtime)[-4:]
        return "\n".join("\n".join([f"-- {path}", *texts[path][-8:]]) for path in paths)

    def processes(self) -> list[int]:
        """Return the cluster's processes: its daemons, and what runs on its nodes.

        Not what a user runs beside it with SLURM_CONF set, be it inside a job of another cluster.
        """
        setting = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                name = (entry / "comm").read_text().strip()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # another user's, or it ended meanwhile
                continue
            is_daemon = name in ("munged", "slurmctld", "slurmd", "slurmstepd")
            on_node = any(variable.startswith(b"SLURMD_NODENAME=127.0.1.") for variable in environ)
            if (
                state != "Z"
                and setting in environ
                and (is_daemon or on_node)
                and int(entry.name) != os.getpid()
            ):
                found.append(int(entry.name))
        return found

    def _kill(self, processes: Iterable[int]) -> None:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def missing_programs() -> list[str]:
    """Return which of SLURM's programs are not installed here."""
    return [name for name in _PROGRAMS if _program(name) is None]


def _is_ours(conf: Path) -> bool:
    return conf.is_file() and conf.read_text().startswith(MARK)


def _program(name: str) -> str | None:
    # Debian keeps daemons where only root looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return shutil.which(name, path=path)


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the condition holds, and return whether it does in the end."""
    end = time.monotonic() + timeout_s
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds


# -- its slurm.conf --------------------------------------------------------------------------------------------------


def slurm_conf(folder: Path, num_nodes: int, cpus_per_node: int) -> str:
    """Return the text of slurm.conf for a cluster in `folder`, with ports that are free now."""
    first_port = _free_ports(1 + num_nodes)
    return _CONF.format(
        mark=MARK,
        host=socket.gethostname().split(".")[0],
        port=first_port,
        first_node_port=first_port + 1,
        last_node_port=first_port + num_nodes,
        user=_user(),
        folder=folder,
        # submitit looks for results by job id, so that an id that comes again would find another job's
        first_job_id=1 + secrets.randbelow(60_000_000),
        num_nodes=num_nodes,
        cpus=cpus_per_node,
    )


def _user() -> str:
    """Return the name that SLURM knows this user by. Raises ClusterError where there is none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ClusterError(
            f"SLURM runs for users with a name, and user {os.geteuid()} has no entry in /etc/passwd: add one"
        ) from None


def _free_ports(count: int) -> int:
    """Return the first of `count` ports in a row that nobody listens on; where to begin depends on the process."""
    blocks = list(range(_PORTS.start, _PORTS.stop - count, count))
    begin = os.getpid() % len(blocks)
    for first in blocks[begin:] + blocks[:begin]:
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise ClusterError(f"no {count} ports in a row are free from {_PORTS.start} to {_PORTS.stop}")


# -- the command -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line; exit code 0, 1 (SLURM is not there or not up), 2 (a mistake in the command)."""
    try:
        command, options = _parsed(sys.argv[1:])
        folder = Path(options.get("dir") or LOCAL)
        cluster = LocalCluster(folder, int(options.get("nodes", "8")), int(options.get("cpus", "8")))
        if command == "up":
            cluster.start()
            print(_how_to_use(cluster))
        elif command == "down":
            cluster.stop()
            print(f"the cluster in {cluster.folder} is down; its logs are in {cluster.folder / 'log'}")
        elif not cluster.is_up():
            print(f"no cluster is up in {cluster.folder}")
            sys.exit(1)
        else:
            print(
                f"export SLURM_CONF={cluster.conf}\n\n{cluster.ask('sinfo')}\n{cluster.ask('squeue')}", end=""
            )
    except (ConfigError, ClusterError) as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ConfigError) else 1)


def _parsed(arguments: list[str]) -> tuple[str, dict[str, str]]:
    if any(a in ("-h", "--help") for a in arguments):
        print(_usage())
        sys.exit(0)
    command, *settings = arguments or [""]
    options = dict(setting.partition("=")[::2] for setting in settings)
    allowed = {"up": {"nodes", "cpus", "dir"}, "down": {"dir"}, "status": {"dir"}}
    if command not in allowed or not set(options) <= allowed[command]:
        raise ConfigError(f"{' '.join(arguments) or 'nothing'} is not a command of this door:\n{_usage()}")
    for name in {"nodes", "cpus"} & set(options):
        if not options[name].isdecimal():
            raise ConfigError(f"{name}={options[name]}: must be a whole number")
    return command, options


def _usage() -> str:
    return "\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("python -m"))


def _how_to_use(cluster: LocalCluster) -> str:
    return f"""\
a SLURM of {cluster.num_nodes} nodes with {cluster.cpus_per_node} cores each is up; for sbatch, squeue and the others:

  export SLURM_CONF={cluster.conf}

partitions: debug (the default); low, whose jobs are requeued when one in high wants their nodes
to end it and its jobs: {package.command("tests.slurm.local_cluster", "down", *_dir_option(cluster))}"""


def _dir_option(cluster: LocalCluster) -> list[str]:
    return [] if str(cluster.folder) == os.path.expanduser(LOCAL) else [f"dir={cluster.folder}"]


if __name__ == "__main__":
    main()
