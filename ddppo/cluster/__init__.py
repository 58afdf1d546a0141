"""Runs as jobs of a SLURM cluster (hydra/launcher=slurm).

Read in this order: _plugins/hydra_plugins/ddppo_slurm.py (Hydra's launcher), submit.py (a sweep becomes jobs),
resources.py (resources of a job), driver.py (in the job), rank.py (one rank), jobs.py and command.py (`python -m
ddppo.jobs`).
"""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    schemas={"hydra/launcher/slurm_schema": f"{__name__}.resources:SlurmLauncherConfig"},
)
