"""Exceptions that users meet. Each message names the cause and the remedy."""

import difflib
import signal

from ddppo.processes import limits

LOST_PEERS = 3  # exit code of a rank that ended only because another one had
MAY_PASS = 4  # of one whose environment raised, or that had no memory: started again it may have better luck
AFTER_TRAINING = (
    5  # of a command that has all that was asked but for a last step: an evaluation, a video, an upload
)


class ConfigError(ValueError):
    """A setting that cannot work; raised before any process starts."""

    exit_code = 2


class RunFolderError(ConfigError):
    """A folder or checkpoint that is not what it should be."""


class TrainingError(RuntimeError):
    """A fault that ends a run that had started."""

    exit_code = 1


class AfterTrainingError(TrainingError):
    """A step after training failed. The run is complete; the message names the step and the command that repeats it."""

    exit_code = AFTER_TRAINING


class EvaluationFailed(TrainingError):
    """An evaluation came to no scores; all ranks raise it alike.

    trace: of the user's own code, on the rank that met it. signal: the number of the one that cut it short, None where
    it failed by itself.
    """

    def __init__(self, said: str, trace: str = "", signal: int | None = None) -> None:
        super().__init__(said, trace, signal)
        self.said, self.trace, self.signal = said, trace, signal

    def __str__(self) -> str:
        return self.said


class StorageError(TrainingError):
    """A file or folder that cannot be written: a full disk, a read-only one, one that went away."""

    @classmethod
    def of(cls, path: object, error: OSError) -> "StorageError":
        """Return the error for what the operating system said of `path`."""
        return cls(f"{path} cannot be written: {limits.why(error)}")


class NonFiniteError(TrainingError):
    """A loss or gradient became NaN or infinite; no parameter was touched by it."""


class ReplicaMismatchError(TrainingError):
    """Parameters that must be identical on all ranks are not."""


class CollectiveError(TrainingError):
    """A rank was lost or late while others waited for it in a collective."""


class RankLost(TrainingError):
    """A rank was killed by a signal or does not answer. `who` says which and how, the message also what can be done."""

    def __init__(self, who: str, remedy: str = "") -> None:
        super().__init__(f"{who}. {remedy}" if remedy else who)
        self.who = who


class EnvError(TrainingError):
    """An environment failed; the message says which, and in which step."""


class EnvRaised(EnvError):
    """An environment raised an exception; its own traceback follows the sentence `said`."""

    def __init__(self, said: str, trace: str) -> None:
        super().__init__(said, trace)
        self.said = said
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.said}\n{self.trace}"


class EnvOutputError(EnvError):
    """An environment returned what its space does not describe, or what nothing can be learned from."""


class EnvStateError(EnvError):
    """An environment that cannot hand over its state."""


class EnvWorkerLost(EnvError):
    """A process that steps an environment died or hangs."""


class ClusterError(TrainingError):
    """SLURM is not installed, not running, does not answer, or refused."""


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop, or its time was over; `remedy` says how to go on.

    number: of the signal; 0 where run.max_minutes were over. requeue: the exit code that says to start the command
    again; None where it is to say which signal it was. Like Ctrl-C, no handler of errors catches it.
    """

    def __init__(self, number: int = signal.SIGINT, remedy: str = "", requeue: int | None = None) -> None:
        super().__init__(number, remedy, requeue)
        self.number = number
        self.remedy = remedy
        self.requeue = requeue

    @property
    def what(self) -> str:
        if self.number == signal.SIGINT:
            return "interrupted"
        return f"stopped by {signal.Signals(self.number).name}" if self.number else "run.max_minutes are over"

    @property
    def exit_code(self) -> int:
        return 128 + self.number if self.requeue is None else self.requeue


def near(word: str, words: "list[str] | tuple[str, ...]") -> str:
    """Return ' (did you mean a or b?)' for the near matches of `word`, or nothing."""
    matches = difflib.get_close_matches(word, words, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""
