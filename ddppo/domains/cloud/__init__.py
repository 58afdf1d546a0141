"""`ddppo/Cloud-v0`: tasks in a simulated cloud, one command line a step (docs/cloud_tasks.md)."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    extra="cloud",
    tasks={
        "ddppo/Cloud-v0": {
            "entry_point": f"{__name__}.env:CloudEnv",
            "order_enforce": False,
            "disable_env_checker": True,
        }
    },
)
