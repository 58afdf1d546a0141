"""Runs as jobs of a SLURM cluster."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    schemas={"hydra/launcher/slurm_schema": f"{__name__}.resources:SlurmLauncherConfig"},
)
