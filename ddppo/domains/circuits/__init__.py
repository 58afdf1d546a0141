"""Quantum circuits: a task of rewriting them, two policies for it, and a command that makes circuits smaller.

Read in this order: quantum/ (circuits, rules, rewriting), task/ (the environment), pairs.py (the policy over pairs),
model.py and graph_layers.py (the graph network), walk.py and env_walk.py (walks by rewrites), workers.py, optimise.py,
page.py and commands.py (`ddppo-circuit`).
"""

from ddppo.plugins import Plugin

PLUGIN = Plugin(
    package=__name__,
    models={"gnn": f"{__name__}.model:GNN", "pairs": f"{__name__}.pairs:PairPolicy"},
    settings={
        "model/gnn": f"{__name__}.settings:GnnSettings",
        "model/pairs": f"{__name__}.settings:PairSettings",
    },
    evaluators={f"{__name__}.task.journal:CircuitJournal": f"{__name__}.pairs:SearchEvaluator"},
    tasks={
        "ddppo/Circuit-v0": {
            "entry_point": f"{__name__}.task.env:CircuitEnv",
            "order_enforce": False,
            "disable_env_checker": True,
        }
    },
    excerpts={"best": f"{__name__}.page:excerpts"},
)
