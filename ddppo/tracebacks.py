"""What of a traceback is a user's own: the frames of a task or model, without those of the machinery around it."""

import re
import sys
import traceback
from pathlib import Path

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
