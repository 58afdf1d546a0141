"""A real SLURM on this machine: `python -m ddppo.cluster.local up`."""

from ddppo.cluster.local.cluster import PACKAGES, LocalCluster, conf_path, missing_programs

__all__ = ["PACKAGES", "LocalCluster", "conf_path", "missing_programs"]
