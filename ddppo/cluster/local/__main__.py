"""The door `python -m ddppo.cluster.local`."""

import os
import sys
from pathlib import Path

from ddppo import package
from ddppo.cluster.local.cluster import DEFAULT_FOLDER, LocalCluster
from ddppo.errors import ClusterError, ConfigError

_USAGE = """\
python -m ddppo.cluster.local up [nodes=8] [cpus=8] [dir=~/.cache/ddppo/slurm]
python -m ddppo.cluster.local down [dir=...]
python -m ddppo.cluster.local status [dir=...]"""


def main() -> None:
    """Run the command line; exit code 0, 1 (SLURM is not there or not up), 2 (a mistake in the command)."""
    try:
        command, options = _parsed(sys.argv[1:])
        folder = Path(options.get("dir") or DEFAULT_FOLDER)
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
        print(_USAGE)
        sys.exit(0)
    command, *settings = arguments or [""]
    options = dict(setting.partition("=")[::2] for setting in settings)
    allowed = {"up": {"nodes", "cpus", "dir"}, "down": {"dir"}, "status": {"dir"}}
    if command not in allowed or not set(options) <= allowed[command]:
        raise ConfigError(f"{' '.join(arguments) or 'nothing'} is not a command of this door:\n{_USAGE}")
    for name in {"nodes", "cpus"} & set(options):
        if not options[name].isdecimal():
            raise ConfigError(f"{name}={options[name]}: must be a whole number")
    return command, options


def _how_to_use(cluster: LocalCluster) -> str:
    return f"""\
a SLURM of {cluster.num_nodes} nodes with {cluster.cpus_per_node} cores each is up; for sbatch, squeue and the others:

  export SLURM_CONF={cluster.conf}

partitions: debug (the default); low, whose jobs are requeued when one in high wants their nodes
to end it and its jobs: {package.command("ddppo.cluster.local", "down", *_dir_option(cluster))}"""


def _dir_option(cluster: LocalCluster) -> list[str]:
    return [] if str(cluster.folder) == os.path.expanduser(DEFAULT_FOLDER) else [f"dir={cluster.folder}"]


if __name__ == "__main__":
    main()
