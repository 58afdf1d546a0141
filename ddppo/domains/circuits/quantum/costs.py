"""What is to become small: costs of a circuit, by name or by a user's import path."""

import importlib
import math
from collections.abc import Callable

import numpy as np

from ddppo.domains.circuits.quantum.circuit import CX, KINDS, Circuit
from ddppo.errors import ConfigError, near
from ddppo.tracebacks import in_one_line

Cost = Callable[[Circuit], float]


def gate_count(circuit: Circuit) -> float:
    """Gates of all kinds."""
    return len(circuit)


def cx_count(circuit: Circuit) -> float:
    """Gates of two qubits, the ones that fail most on hardware."""
    return int(np.count_nonzero(circuit.kinds == CX))


def cx_weighted(circuit: Circuit) -> float:
    """2 cx_count + gate_count."""
    return 2 * cx_count(circuit) + len(circuit)


def depth(circuit: Circuit) -> float:
    """Gates on the longest path."""
    return circuit.depth


def counts(circuit: Circuit) -> str:
    """Return in words how many gates of which kinds there are, on how many qubits, and the depth."""
    kinds = circuit.kinds.tolist()
    parts = ", ".join(f"{kinds.count(k)} {kind}" for k, kind in enumerate(KINDS))
    return f"{len(circuit)} gates ({parts}) on {circuit.num_qubits} qubits, depth {circuit.depth}"


def measures(circuit: Circuit) -> dict[str, float]:
    """Return what circuits are compared by, whatever their cost: gates, cx and depth."""
    return {"gates": len(circuit), "cx": cx_count(circuit), "depth": circuit.depth}


COSTS: dict[str, Cost] = {f.__name__: f for f in (gate_count, cx_count, cx_weighted, depth)}


def cost(name: str) -> Cost:
    """Return the cost of this name, or a user's function by its import path, my_pkg.costs:cost.

    A user's function takes a Circuit; each call checks that it returns a finite number. Raises ConfigError.
    """
    if name in COSTS:
        return COSTS[name]
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        known = ", ".join(COSTS)
        raise ConfigError(
            f"cost={name}{near(name, list(COSTS))}: neither one of {known} nor an import path like my_pkg:cost"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(f"cost={name}: cannot be imported: {in_one_line(e)}") from e
    if not callable(function):
        raise ConfigError(f"cost={name}: has to be a function of a ddppo.domains.circuits.quantum.Circuit")
    return _checked(function, name)


def _checked(function: Cost, name: str) -> Cost:
    def checked(circuit: Circuit) -> float:
        try:
            found = float(function(circuit))
        except Exception as e:  # a user's function may raise anything
            raise ConfigError(f"cost={name}: raised {in_one_line(e)}") from e
        if not math.isfinite(found):
            raise ConfigError(f"cost={name}: returned {found}; a cost is a finite number")
        return found

    return checked
