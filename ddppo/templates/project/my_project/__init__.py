"""A task, a network and an algorithm of my own, which ddppo finds by PLUGIN once this package is installed."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,  # its folder conf/ has presets, and src/ C++
    tasks={"my_project/Reach-v0": {"entry_point": f"{__name__}.envs:Reach", "max_episode_steps": 50}},
    models={"my_project": f"{__name__}.models:Network"},
    algorithms={"my_project": f"{__name__}.algorithms:A2C"},
    settings={
        "model/my_project": f"{__name__}.settings:NetworkSettings",
        "algorithm/my_project": f"{__name__}.settings:A2CSettings",
    },
)
