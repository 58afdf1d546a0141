#!/usr/bin/env bash
# The task that sleeps as SLURM jobs in three topologies, two ranks on each of several fake nodes: starts the cluster,
# runs what outputs/sweeps/topologies_slurm lacks, ends the cluster, and writes slurm/ beside this file. Collectives go
# by Gloo, as they would between nodes that are not one machine in truth; async_actors has sockets of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
python -m tests.slurm.local_cluster up
trap 'python -m tests.slurm.local_cluster down' EXIT
jobs=(python -m ddppo.train -m experiment=topologies/slow sweep=outputs/sweeps/topologies_slurm dist.world_size=3,5
  seed=0,1 hydra/launcher=slurm_local hydra.launcher.ranks_per_node=2 hydra.launcher.one_at_a_time=true)
"${jobs[@]}" distributed=sync_actors,env_workers dist.collective=gloo
"${jobs[@]}" distributed=async_actors
python -m ddppo.jobs outputs/sweeps/topologies_slurm
python -m ddppo.report outputs/sweeps/topologies_slurm out=experiments/topologies/slurm
