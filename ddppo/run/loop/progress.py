"""How far a run is."""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Iterations and env_steps done, the same on all ranks, and wall_s, this rank's seconds in them; a resumed run
    counts on.

    compiled_from: the first iteration whose steps were in machine code, None where they are eager.
    """

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    compiled_from: int | None = None
