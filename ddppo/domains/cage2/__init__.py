"""CAGE challenge 2: Blue defends a network of 13 hosts against Red. Rules and choices: docs/cage2.md.

Read in this order: rules.py (the game as data), games.py (a step of n games), env.py (the task), orders.py (orders of
priority), search/ (the search over orders while a run trains); search_*.py make its report.
"""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    tasks={
        f"ddppo/{name}-v0": {
            "entry_point": f"{__name__}.{path}",
            "order_enforce": False,
            "disable_env_checker": True,
        }
        for name, path in (("CAGE2", "env:CageEnv"), ("CybORG", "cyborg:CyborgEnv"))
    },
    dynamics={f"{__name__}.env:CageEnv": f"{__name__}.env:Cage2"},
    sections={"search": f"{__name__}.search.settings:SearchSettings"},
    samplers={"search": f"{__name__}.search.sampler:make_sampler"},
    metrics={"search/": f"{__name__}.search.settings:METRICS"},
    searches={"search.json": f"{__name__}.search_report:show"},
    reports=dict.fromkeys(
        ("search.json", "training_log.csv", "gp_sampling_log.csv"), f"{__name__}.search_report:report"
    ),
)
