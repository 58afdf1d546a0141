#!/usr/bin/env bash
# The slept task as SLURM jobs on a cluster of 8 fake nodes: starts the cluster, runs what outputs/sweeps/scaling_slurm
# lacks, ends the cluster, and writes report/ beside this file.
set -euo pipefail
cd "$(dirname "$0")/../.."
python -m tests.slurm.local_cluster up
trap 'python -m tests.slurm.local_cluster down' EXIT
python -m ddppo.train -m experiment=scaling/slurm
python -m ddppo.jobs outputs/sweeps/scaling_slurm | tee experiments/scaling_slurm/jobs.txt
python -m ddppo.report outputs/sweeps/scaling_slurm out=experiments/scaling_slurm/report
