"""A circuit as arrays of fixed size: its DAG, and what can be done to it.

All that a model of any kind needs: a choice is the index of a row of `pairs`, so a node, and a rule at that node,
can be chosen in two stages from the observation alone.
"""

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary

from ddppo.domains.circuits.quantum import KINDS

PADDING = -1  # of whole numbers; 0 of others
_LONGEST = 127  # gates that a rule may add or take away


def observation_space(max_nodes: int, max_pairs: int, num_rules: int, *, has_mask: bool = True) -> Dict:
    """Return the space. Nodes are gates in canonical order; edges and pairs ascend.

    kinds [max_nodes]: 0 h, 1 x, 2 cx, 3 rz. angles [max_nodes, 2]: sin and cos of an rz, 0 of others.
    edges [2 max_nodes, 4]: source, its port, destination, its port; port 1 is a cx's target. pairs [max_pairs, 2]:
    node and rule, the last rule changes nothing and has node -1 where it is offered once; without a mask, num_rules
    stands for what does not match. num_nodes, num_edges and num_pairs [1]: how many are real. num_rules [1]: always the
    same, for models that have an output for each. growth [max_pairs]: gates that the rule of each pair adds, rotations
    by 0 among them. fresh [max_nodes]: inserted by the last rewrite or just before its place. action_mask [max_pairs]:
    the first num_pairs.
    """
    most = {"nodes": max_nodes, "edges": 2 * max_nodes, "pairs": max_pairs, "rules": num_rules}
    ends = np.array([max_nodes - 1, 1, max_nodes - 1, 1], np.int32)
    choice = np.array([max_nodes - 1, num_rules - has_mask], np.int32)
    return Dict(
        {
            "kinds": Box(PADDING, len(KINDS) - 1, (max_nodes,), np.int8),
            "angles": Box(-1, 1, (max_nodes, 2), np.float32),
            "edges": _rows(2 * max_nodes, ends),
            "pairs": _rows(max_pairs, choice),
            **{f"num_{what}": Box(0, number, (1,), np.int32) for what, number in most.items()},
            "growth": Box(-_LONGEST, _LONGEST, (max_pairs,), np.int8),
            "fresh": MultiBinary(max_nodes),
            "action_mask": MultiBinary(max_pairs),
        }
    )


def _rows(number: int, high: np.ndarray) -> Box:
    high = np.broadcast_to(high, (number, len(high)))
    return Box(np.full_like(high, PADDING), high, dtype=np.int32)
