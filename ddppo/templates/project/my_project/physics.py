"""The movement of a point within a step, in C++ (src/physics.cpp), or in Python if there is no compiler.

Both give the same bits. A project without C++ needs only `moved_in_python`, under the name `moved`, and no src/.
"""

import ctypes
import functools

from ddppo.native import NotCompiled
from my_project import PLUGIN

PARTS = 100  # parts of a step
DRAG = 0.1  # part of the velocity that is lost in a step


def moved_in_python(position, velocity, push):
    """Return position and velocity after a step, in which a push accelerates the point and drag slows it down."""
    for _ in range(PARTS):
        velocity += (push - DRAG * velocity) / PARTS
        position += velocity / PARTS
    return position, velocity


def moved(position, velocity, push):
    """Return the same, computed in C++ if possible."""
    move = in_cpp()
    if move is None:
        return moved_in_python(position, velocity, push)
    state = (ctypes.c_double * 2)(position, velocity)
    move(state, push, PARTS, DRAG)
    return state[0], state[1]


@functools.cache
def in_cpp():
    """Return the function of src/physics.cpp, compiled at first use and kept in ~/.cache/ddppo, or None."""
    try:
        move = PLUGIN.cpp.load().move
    except NotCompiled:  # ddppo.train prints the reason before a run starts
        return None
    move.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_int64, ctypes.c_double]
    move.restype = None
    return move
