"""Exceptions that users meet, and errors in a sentence. Each message names the cause and the remedy."""

import difflib
import re
import signal
import sys
import traceback
from pathlib import Path

from ddppo.processes import limits

# Exit codes.
LOST_PEERS = 3  # of a rank that ended only because it lost another one
MAY_PASS = 4  # of a rank that lacked memory, or of an environment that raised: a restart may help
AFTER_TRAINING = 5  # of a command that is complete except for a last step: an evaluation, a video, an upload


class ConfigError(ValueError):
    """A mistake in the settings; raised before any process starts."""

    exit_code = 2


class RunFolderError(ConfigError):
    """A folder or checkpoint that is missing, damaged, in use, or of another run."""


class TrainingError(RuntimeError):
    """A fault that ends a run after it started."""

    exit_code = 1


class AfterTrainingError(TrainingError):
    """A step after training failed. The run is complete; the message names the step and the command that repeats it."""

    exit_code = AFTER_TRAINING


class EvaluationFailed(TrainingError):
    """An evaluation has no scores. All ranks raise it.

    Args:
        said: the message.
        trace: the traceback in the user's own code, on the rank where the evaluation failed.
        signal: the number of the signal that interrupted it; None if there was none.
    """

    def __init__(self, said: str, trace: str = "", signal: int | None = None) -> None:
        super().__init__(said, trace, signal)
        self.said, self.trace, self.signal = said, trace, signal

    def __str__(self) -> str:
        return self.said


class StorageError(TrainingError):
    """A file or folder that cannot be written: the disk is full, read-only, or gone."""

    @classmethod
    def of(cls, path: object, error: OSError) -> "StorageError":
        """Return the error for an OSError at `path`."""
        return cls(f"{path} cannot be written: {limits.why(error)}")


class NonFiniteError(TrainingError):
    """A loss or gradient became NaN or infinite. No parameter was changed by it."""


class ReplicaMismatchError(TrainingError):
    """Parameters that must be identical on all ranks are not."""


class CollectiveError(TrainingError):
    """A rank was lost or late while other ranks waited for it in a collective."""


class RankLost(TrainingError):
    """A rank was killed by a signal, or does not answer.

    Args:
        lost: the rank, and how it was lost.
        remedy: what to do; part of the message only.
    """

    def __init__(self, lost: str, remedy: str = "") -> None:
        super().__init__(f"{lost}. {remedy}" if remedy else lost)
        self.lost = lost


class EnvError(TrainingError):
    """An environment failed. The message names the environment and the step."""


class EnvRaised(EnvError):
    """An environment raised an exception. The message is the sentence `said`, then the environment's traceback."""

    def __init__(self, said: str, trace: str) -> None:
        super().__init__(said, trace)
        self.said = said
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.said}\n{self.trace}"


class EnvOutputError(EnvError):
    """An environment returned a value outside its space, or a reward that is not a number."""


class EnvStateError(EnvError):
    """An environment cannot save or restore its state."""


class EnvWorkerLost(EnvError):
    """A process that steps environments ended or hangs."""


class ClusterError(TrainingError):
    """SLURM is not installed, does not run, does not answer, or refused."""


class Stopped(KeyboardInterrupt):
    """A signal or the end of run.max_minutes stopped the run. Like Ctrl-C, `except Exception` does not catch it.

    Args:
        number: the number of the signal; 0 for run.max_minutes.
        remedy: how to resume the run.
        requeue: the exit code that asks a scheduler to start the command again; None for 128 + number.
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


# -- Tracebacks in a sentence, with the frames of a user's own code only.

_OURS = Path(__file__).resolve().parent
_LIBRARIES = ("gymnasium", "torch", "hydra", "omegaconf", "numpy", "multiprocessing", "importlib")
# Tasks and spaces inside these packages: an error there is the task's own.
_TASKS = (_OURS / "envs" / "tasks" / "synthetic.py",)
_TASKS_OF_GYMNASIUM = ("envs", "spaces")


def own_traceback(error: BaseException) -> str:
    """Return the traceback of `error` and its causes, with the frames of the user's own code only."""
    whole = traceback.TracebackException.from_exception(error)
    # Walk from an error to its causes, and drop frames that are not the user's.
    part: traceback.TracebackException | None = whole
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        own = [frame for frame in part.stack if _is_own(frame.filename)]
        part.stack = traceback.StackSummary.from_list(own)
        if not own:
            part.stack = None  # type: ignore[assignment]  # else a heading with nothing under it
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(whole.format()).rstrip()


def in_one_line(error: BaseException) -> str:
    """Return class, message and place of an error for a sentence: `KeyError: 'x', in step (/my/envs.py:12)`."""
    message = " ".join(str(error).split())
    return (f"{type(error).__name__}: {message}" if message else type(error).__name__) + place_of(error)


def place_of(error: BaseException) -> str:
    """Return the place in the user's own code where an error was raised, as `, in step (/my/envs.py:12)`.

    Up to three frames, the innermost first; "" if the user's code is not in the traceback.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    places = [f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames)][:3]
    return f", in {', called by '.join(places)}" if places else ""


# In an error of C++: the place in torch's sources in front of the sentence, and the condition that did not hold.
_PLACE = re.compile(r"^\[(enforce fail at )?[^\]\s]*:\d+\] ")
_CONDITION = re.compile(r"^.*?\. (?=\S)")


def first_sentence(error: BaseException) -> str:
    """Return the sentence in an error of torch's C++, without conditions, places in its sources and stack."""
    text = str(error)
    for begin in ("Exception raised from", "frame #", "C++ CapturedTraceback"):
        text = text.partition(begin)[0]
    sentence = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if found := _PLACE.match(sentence):
        sentence = sentence[found.end() :]
        if found[1]:  # the condition stands in front of its meaning
            sentence = _CONDITION.sub("", sentence, count=1)
    return sentence.strip().rstrip(".")


def is_of_torch_distributed(error: BaseException) -> bool:
    """Return whether torch.distributed raised an error: a fault of the network, without frames that help a user."""
    frames = traceback.extract_tb(error.__traceback__)
    is_inside = bool(frames) and "/torch/distributed/" in Path(frames[-1].filename).as_posix()
    is_known = type(error).__module__ == "torch.distributed" or "gloo" in str(error).partition("\n")[0]
    return isinstance(error, RuntimeError) and (is_inside or is_known)


def _is_own(filename: str) -> bool:
    """Return whether a file is the user's: not ddppo's, nor of the libraries through which errors pass."""
    if filename.startswith("<"):  # frozen importlib, generated code
        return False
    path = Path(filename)
    if path.is_relative_to(_OURS):
        return path in _TASKS
    for name in _LIBRARIES:
        module = sys.modules.get(name)
        if module is None or not module.__file__ or not path.is_relative_to(Path(module.__file__).parent):
            continue
        inner = path.relative_to(Path(module.__file__).parent)
        return (
            name == "gymnasium" and inner.parts[0] in _TASKS_OF_GYMNASIUM and inner.name != "registration.py"
        )
    return True
