"""Whether Box2D is there; imported here, for its warnings, as errors, would end the process in the midst of that."""

import importlib
import warnings

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("Box2D")
except ImportError:
    BOX2D = False
else:
    BOX2D = True
