"""What a step is worth."""

from dataclasses import dataclass

EXISTS = (  # codes of services that refuse to make what is there
    "BucketAlreadyExists",
    "BucketAlreadyOwnedByYou",
    "EntityAlreadyExists",
    "ParameterAlreadyExists",
    "QueueAlreadyExists",
    "QueueNameExists",
    "ResourceExistsException",
    "ResourceInUseException",
)
MOST_HINTS = 3


@dataclass(frozen=True)
class Step:
    """What became of a step. `progress`: the share of the goals that hold, 0 to 1."""

    progress: float
    achieved: bool = False
    rose: bool = False  # progress is more than ever in this episode
    failed: bool = False  # the command did
    undone: bool = False  # progress fell, or what was to be kept is not
    retried: bool = False  # the command would make what is there already, the first time in this episode
    survived: bool = False  # chaos struck, in this episode, before this
    num_hints: int = 0


def score(step: Step) -> float:
    """Return the worth of where a step has led.

    Achieved: 1, or 1.05 where chaos was survived. Else, held between 0 and .99:
        (.8 progress + .1 [rose]) * (.5 if failed) - .1 [undone] + .02 [retried]
    Either is multiplied by .85 for every hint taken.
    """
    kept = 0.85 ** min(step.num_hints, MOST_HINTS)
    if step.achieved:
        return (1.05 if step.survived else 1.0) * kept
    worth = 0.8 * step.progress + 0.1 * step.rose
    if step.failed:
        worth *= 0.5
    worth += -0.1 * step.undone + 0.02 * step.retried
    return min(max(worth, 0.0), 0.99) * kept


def gain(after: float, before: float) -> float:
    """Return the reward of a step between two scores: an episode's rewards sum to its last score.

    The scores themselves as rewards would pay for every step that a task is left unfinished: 14 steps at .8 of the
    goals are worth more than its end.
    """
    return after - before


def is_retry(code: str, *, had_before: bool) -> bool:
    """Whether a command that failed with `code` counts as an idempotent retry; once an episode."""
    return code in EXISTS and not had_before
