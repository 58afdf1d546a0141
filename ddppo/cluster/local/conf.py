"""slurm.conf of a cluster whose nodes are all this machine, and free ports for its daemons."""

import os
import pwd
import secrets
import socket
from pathlib import Path

from ddppo.errors import ClusterError

# Below what Linux gives to outgoing connections (32768), above what drivers take for rendezvous (15000 to 29999).
_PORTS = range(30000, 32700)
MARK = "# written by ddppo.cluster.local"
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


def is_free(port: int) -> bool:
    """Return whether this machine's `port` can be listened on."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind(("", port))
        except OSError:
            return False
    return True
