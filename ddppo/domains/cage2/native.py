"""Games stepped in C++ (src/cage2.cpp), which is told where the arrays and tables of NumPy are."""

import ctypes
import functools
import logging
from typing import Any

import numpy as np

from ddppo.domains.cage2 import PLUGIN, agents, tables
from ddppo.domains.cage2.rules import DETECTED, PREFERRED
from ddppo.domains.cage2.state import GAME
from ddppo.native import NotCompiled

_logger = logging.getLogger(__name__)

_REDS = ("sleep", "b_line", "meander")  # by their numbers there
TABLES = {  # by their names in cage2.hpp; int64, then uint16, then uint8
    "tenths": tables.TENTHS,
    "host_of": tables.HOST_OF,
    "num_exploits": tables.NUM_EXPLOITS,
    "green": tables.GREEN_HOST,
    "subnet": tables.SUBNET,
    "first": tables.FIRST,
    "reveals": tables.REVEALS,
    "open": tables.OPEN,
    "analysed": tables.ANALYSED,
    "removed": tables.REMOVED,
    "restored": tables.RESTORED,
    "freed": tables.FREED,
    "opened": tables.OPENED,
    "checked": tables.CHECKED,
    "exploit_port": tables.EXPLOIT_PORT,
    "outcome": tables.OUTCOME,
    "nth_exploit": tables.NTH_EXPLOIT,
    "operations": agents.OPERATIONS,
    "after_failure": agents.AFTER_FAILURE,
    "targets": agents.TARGETS,
}
_TYPES = [np.int64] * 4 + [np.uint16] * 11 + [np.uint8] * 5
assert [table.dtype for table in TABLES.values()] == _TYPES, {name: t.dtype for name, t in TABLES.items()}
assert all(table.flags.c_contiguous for table in TABLES.values())


class _Batch(ctypes.Structure):
    """`Cage2Batch` of cage2.hpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_games", "red", "has_green", "has_quirk")),
        *((name, ctypes.c_double) for name in ("preferred", "detected")),
        *((name, ctypes.c_void_p) for name in ("games", "obs", "rewards", "actions")),
        *((name, ctypes.c_void_p) for name in TABLES),
    ]


class NativeStep:
    """Steps the games whose records and observations it was given, `function` being that of the library."""

    def __init__(
        self, function: Any, records: np.ndarray, obs: np.ndarray, red: str, has_green: bool, has_quirk: bool
    ) -> None:
        self._function = function
        self._rewards = np.zeros(len(records))
        self._actions = np.zeros(len(records), np.int64)
        self._batch = _Batch(
            num_games=len(records),
            red=_REDS.index(red),
            has_green=has_green,
            has_quirk=has_quirk,
            preferred=PREFERRED,
            detected=DETECTED,
            games=records.ctypes.data,
            obs=obs.ctypes.data,
            rewards=self._rewards.ctypes.data,
            actions=self._actions.ctypes.data,
            **{name: table.ctypes.data for name, table in TABLES.items()},
        )
        self._address = ctypes.addressof(self._batch)

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Do actions `[n]`, each one of the game's; return rewards `[n]`."""
        self._actions[:] = actions
        self._function(self._address)
        return self._rewards.copy()


@functools.cache
def function() -> Any | None:
    """Return cage2_step, or None where it cannot be compiled."""
    try:
        compiled = PLUGIN.cpp.load()
    except NotCompiled as e:
        _logger.debug("CAGE 2 is stepped by NumPy: %s", e)
        return None
    compiled.cage2_step.argtypes, compiled.cage2_step.restype = [ctypes.c_void_p], None
    assert compiled.cage2_game_bytes() == GAME.itemsize, (compiled.cage2_game_bytes(), GAME.itemsize)
    return compiled.cage2_step
