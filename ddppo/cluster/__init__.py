"""Runs as SLURM jobs: what a job does (driver, rank), what SLURM says of it, and a SLURM of one's own to try it on."""
