"""Exceptions that users meet. Each message names the cause and the remedy."""

import difflib
import re
import signal
import sys
import traceback
from pathlib import Path

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


# -- Tracebacks in a sentence, with the frames of a user's own code only.

_OURS = Path(__file__).resolve().parent
_OF_OTHERS = ("gymnasium", "torch", "hydra", "omegaconf", "numpy", "multiprocessing", "importlib")
# Tasks and spaces in the midst of machinery: what fails there is the task's own.
_TASKS = (_OURS / "envs" / "tasks" / "synthetic.py",)
_TASKS_OF_GYMNASIUM = ("envs", "spaces")


def own_traceback(error: BaseException) -> str:
    """Return the traceback of `error` and of its causes, with a user's own frames alone; ends without newline."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        own = [frame for frame in part.stack if _is_own(frame.filename)]
        part.stack = traceback.StackSummary.from_list(own)
        if not own:
            part.stack = None  # type: ignore[assignment]  # else a heading with nothing under it
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(told.format()).rstrip()


def in_one_line(error: BaseException) -> str:
    """Return class, message and place of `error` for a sentence: `KeyError: 'x', in step (/my/envs.py:12)`."""
    said = " ".join(str(error).split())
    return (f"{type(error).__name__}: {said}" if said else type(error).__name__) + place_of(error)


def place_of(error: BaseException) -> str:
    """Return where in a user's own code an error was raised, as `, in step (/my/envs.py:12)`, "" if it was not there.

    Callers follow the innermost place, up to three frames.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    places = [f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames)][:3]
    return f", in {', called by '.join(places)}" if places else ""


# What C++ puts around a sentence: its place in torch's sources before, its stack behind.
_PLACE = re.compile(r"^\[(enforce fail at )?[^\]\s]*:\d+\] ")
_CONDITION = re.compile(r"^.*?\. (?=\S)")


def first_sentence(error: BaseException) -> str:
    """Return what an error of torch's C++ says in one line, without conditions, places and frames of its sources."""
    text = str(error)
    for begin in ("Exception raised from", "frame #", "C++ CapturedTraceback"):
        text = text.partition(begin)[0]
    said = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if found := _PLACE.match(said):
        said = said[found.end() :]
        if found[1]:  # the condition that did not hold comes before what it means
            said = _CONDITION.sub("", said, count=1)
    return said.strip().rstrip(".")


def is_of_torch_distributed(error: BaseException) -> bool:
    """Return whether torch.distributed raised an error: the network's fault, whose frames tell a user nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    is_inside = bool(frames) and "/torch/distributed/" in Path(frames[-1].filename).as_posix()
    is_known = type(error).__module__ == "torch.distributed" or "gloo" in str(error).partition("\n")[0]
    return isinstance(error, RuntimeError) and (is_inside or is_known)


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):  # frozen importlib, generated code
        return False
    path = Path(filename)
    if path.is_relative_to(_OURS):
        return path in _TASKS
    for name in _OF_OTHERS:
        module = sys.modules.get(name)
        if module is None or not module.__file__ or not path.is_relative_to(Path(module.__file__).parent):
            continue
        inner = path.relative_to(Path(module.__file__).parent)
        return (
            name == "gymnasium" and inner.parts[0] in _TASKS_OF_GYMNASIUM and inner.name != "registration.py"
        )
    return True
