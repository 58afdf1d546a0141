"""`ddppo/Cloud-v0`: tasks in a simulated cloud, one command line a step (docs/cloud_tasks.md).

Read in this order: cli.py and cli_parameters.py (a line becomes an API call), world.py (the simulated account),
tasks.py (tasks, grading and reward), env.py (the environment), tokenizer.py (a grammar for small policies).
"""

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
