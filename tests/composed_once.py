"""Have doors compose their configuration once: those called in a test's process, and those that its forks are.

Hydra does it twice, at first only to see whether hydra.mode is set, which but a command line does here. It is most of
what hundreds of wrong command lines take, and much of what a short run does. It holds in whoever imports this; a door
whose interpreter is started anew does as Hydra does.
"""

from hydra._internal.hydra import Hydra

_get_mode = Hydra.get_mode


def mode_of(self, config_name, overrides):
    return _get_mode(self, config_name, overrides) if "hydra.mode" in " ".join(overrides) else None


Hydra.get_mode = mode_of
