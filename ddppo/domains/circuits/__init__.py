"""Quantum circuits: rewriting them as a task, a graph network that chooses rewrites, and a search for smaller ones."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    models={"gnn": f"{__name__}.model:GNN"},
    settings={"model/gnn": f"{__name__}.settings:GnnSettings"},
    tasks={
        "ddppo/Circuit-v0": {
            "entry_point": f"{__name__}.task.env:CircuitEnv",
            "order_enforce": False,
            "disable_env_checker": True,
        }
    },
)
