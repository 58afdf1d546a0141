"""What observations and actions are: all that environments and models need to know of one another."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What an action is. `sizes` holds the number of choices per component, bits or dimensions:

    discrete: (n,); multi_discrete: (n_1, ..., n_k); multi_binary: (num_bits,); box: (num_dims,), flattened.
    """

    kind: str
    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action as the model produces it: () for discrete, (k,) otherwise."""
        if self.kind == "discrete":
            return ()
        return (len(self.sizes),) if self.kind == "multi_discrete" else self.sizes


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Shapes of a task. Observations are flat float vectors `[obs_size]`.

    mask_size is the length of an action mask (sum of choices over components), or None where the task has none.
    """

    obs_size: int
    action: ActionSpec
    mask_size: int | None = None
