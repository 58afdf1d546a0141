"""Runs the role of this rank, by its number, which torchrun sets.

{{ picture }}
"""

import importlib
import os

ROLES = {{ roles }}

rank = int(os.environ["RANK"])
importlib.import_module(next(role for role, ranks in ROLES.items() if rank in ranks))
