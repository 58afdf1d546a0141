"""Undoes changes that a task makes to the process that it shares with training, and warns of each change once.

    with guarded(env.id, "its import"):
        importlib.import_module(module)

A user's task may call os.chdir, np.seterr or torch.set_num_threads while it is imported, made, reset or stepped.
Training relies on this state of the process (`_Trait`s), so it is the same after a block of the task's code as before.
Blocks are a rollout or longer, no single step. The working directory and multiprocessing's start method
(`_Surroundings`) belong to the task while its code runs, and to training otherwise. In processes that hold nothing but
a task (of a pool, of a server), `leave_alone` turns all of this off.
"""

import functools
import gc
import importlib
import locale
import logging
import multiprocessing
import operator
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ddppo.terminal import is_first, warn

Call = TypeVar("Call", bound=Callable[..., Any])

# Environment variables that ddppo, torch and new ranks read. A task may set all others.
_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # fmt: skip
_PREFIXES = (
    "DDPPO_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "GLOO_",
    "HYDRA_",
    "SLURM_",
)
_MAY_BE_SET = ("PATH", "PYTHONPATH", "HOME", "TMPDIR")  # a task may change these, but not delete them
_WARNED = "DDPPO_WARNED"  # ours: it grows while a task's code runs
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE")
_LIMITS = ("NOFILE", "FSIZE", "AS", "DATA", "NPROC", "CPU")
_DENORMAL = 1e-310  # 1.0 * this is 0.0 if the CPU flushes denormal numbers
_LONGEST = 60  # characters of a value in a sentence
_left_alone = False
_depth = 0  # of nested blocks


@dataclass(frozen=True, slots=True)
class _Trait:
    """One setting of the process that a task may change."""

    name: str  # in warnings
    get: Callable[[], Any]
    put: Callable[[Any], object]
    harms: Callable[[Any, Any], bool] = operator.ne  # (before, now) -> whether to put it back
    which: Callable[[Any, Any], str] | None = None  # (before, now) -> the part that changed, for the warning
    is_quick: bool = True  # takes less than 1 us, so it is checked in every iteration

    def described(self, before: Any, now: Any) -> str:
        if self.which is not None:
            return f"{self.name} {self.which(before, now)}"
        return f"{self.name} from {_short(before)} to {_short(now)}"


def _short(value: Any) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _errors() -> list[Any]:
    return [each for each in warnings.filters if each[0] == "error"]


def _put_errors(before: list[Any]) -> None:
    others = [each for each in warnings.filters if each[0] != "error"]
    warnings.resetwarnings()  # also clears the cache of decisions by these filters
    cast(list[Any], warnings.filters).extend([*before, *others])


def _umask() -> int:
    os.umask(mask := os.umask(0o077))  # it can only be read by setting it
    return mask


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if (name in _OURS or name in _MAY_BE_SET or name.startswith(_PREFIXES)) and name != _WARNED
    }


def _changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    names = (name for name in before | now if before.get(name) != now.get(name))
    return [name for name in names if not (name in _MAY_BE_SET and name in now)]


def _put_environment(before: dict[str, str]) -> None:
    for name in _changed(before, _environment()):
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]


def _listed(before: dict[str, str], now: dict[str, str]) -> str:
    return ", ".join(sorted(_changed(before, now)))


def _lost(before: list[str], now: list[str]) -> list[str]:
    return [path for path in before if path not in now]


def _collects(state: tuple[bool, tuple[int, int, int]]) -> bool:
    return state[0] and state[1][0] > 0


def _put_collector(before: tuple[bool, tuple[int, int, int]]) -> None:
    gc.set_threshold(*before[1])
    gc.enable()


def _put_root(before: tuple[int, list[logging.Handler]]) -> None:
    logging.root.setLevel(before[0])
    logging.root.handlers[:] = before[1]


def _put_stream(name: str) -> Callable[[Any], None]:
    return functools.partial(setattr, sys, name)


def _of_limit(name: str) -> _Trait:
    what = getattr(resource, f"RLIMIT_{name}")

    def put(before: int) -> None:
        hard = resource.getrlimit(what)[1]
        highest = hard != resource.RLIM_INFINITY and (before == resource.RLIM_INFINITY or before > hard)
        resource.setrlimit(what, (hard if highest else before, hard))

    def is_lower(before: int, now: int) -> bool:
        return now != resource.RLIM_INFINITY and (before == resource.RLIM_INFINITY or now < before)

    return _Trait(
        f"the limit RLIMIT_{name}", lambda: resource.getrlimit(what)[0], put, is_lower, is_quick=False
    )


def _of_signal(name: str) -> _Trait:
    number = getattr(signal, name)
    return _Trait(
        f"the handler of {name}",
        lambda: signal.getsignal(number),
        # None: a handler in C, which Python cannot set
        lambda handler: handler is not None and signal.signal(number, handler),
        is_quick=False,
    )


def _put_mask(before: set[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


# All settings on which training relies, with how to read them and put them back.
_TRAITS = (
    _Trait("NumPy's errors (np.seterr)", np.geterr, lambda errors: np.seterr(**errors)),
    _Trait("warnings to errors (warnings.filters)", _errors, _put_errors, which=lambda before, now: ""),
    _Trait("the level below which nothing is logged (logging.disable)",
           lambda: logging.root.manager.disable, logging.disable),
    _Trait("the root logger (logging.basicConfig)",
           lambda: (logging.root.level, list(logging.root.handlers)), _put_root),
    _Trait("sys.stdout", lambda: sys.stdout, _put_stream("stdout"), operator.is_not),
    _Trait("sys.stderr", lambda: sys.stderr, _put_stream("stderr"), operator.is_not),
    _Trait("sys.excepthook", lambda: sys.excepthook, _put_stream("excepthook"), operator.is_not),
    _Trait("sys.settrace", sys.gettrace, sys.settrace, operator.is_not),
    _Trait("sys.setprofile", sys.getprofile, sys.setprofile, operator.is_not),
    _Trait("sys.setswitchinterval", sys.getswitchinterval, sys.setswitchinterval),
    _Trait("sys.setrecursionlimit", sys.getrecursionlimit, sys.setrecursionlimit, operator.gt),
    _Trait("sys.path", lambda: list(sys.path), lambda before: sys.path.extend(_lost(before, sys.path)),
           lambda before, now: bool(_lost(before, now)),
           lambda before, now: f"without {', '.join(_lost(before, now))}"),
    _Trait("the garbage collector (gc.disable)", lambda: (gc.isenabled(), gc.get_threshold()), _put_collector,
           lambda before, now: _collects(before) and not _collects(now), lambda before, now: ""),
    _Trait("the mask of new files (os.umask)", _umask, os.umask),
    _Trait("socket.setdefaulttimeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    _Trait("os.environ", _environment, _put_environment,
           lambda before, now: bool(_changed(before, now)), _listed, is_quick=False),
    _Trait("locale.setlocale", lambda: locale.setlocale(locale.LC_ALL),
           lambda name: locale.setlocale(locale.LC_ALL, name), is_quick=False),
    *map(_of_limit, _LIMITS),
)  # fmt: skip
if hasattr(os, "sched_getaffinity"):
    _TRAITS += (
        _Trait(
            "the cores that it may run on (os.sched_setaffinity)",
            lambda: os.sched_getaffinity(0),
            lambda cores: os.sched_setaffinity(0, cores),
            is_quick=False,
        ),
    )
# Python sets signal handlers in the main thread only.
_OF_MAIN_THREAD = (
    *map(_of_signal, _SIGNALS),
    _Trait("the signals that are blocked (signal.pthread_sigmask)",
           lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), _put_mask, is_quick=False),
    _Trait("an alarm without a handler (signal.alarm)",
           lambda: signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] > 0,
           lambda was_set: signal.setitimer(signal.ITIMER_REAL, 0), operator.lt, lambda before, now: "",
           is_quick=False),
)  # fmt: skip


@functools.cache
def _of_torch() -> tuple[_Trait, ...]:
    import torch  # imported already: see _State

    cudnn = torch.backends.cudnn
    return (
        _Trait("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype),
        _Trait("torch.set_default_device", lambda: torch.empty(0).device,
               lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
        _Trait("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads),
        _Trait("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled),
        _Trait("torch.use_deterministic_algorithms", torch.are_deterministic_algorithms_enabled,
               torch.use_deterministic_algorithms),
        _Trait("torch.autograd.set_detect_anomaly", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        _Trait("torch.set_float32_matmul_precision", torch.get_float32_matmul_precision,
               torch.set_float32_matmul_precision),
        _Trait("torch.backends.cudnn.benchmark", lambda: cudnn.benchmark,
               lambda before: setattr(cudnn, "benchmark", before)),
        _Trait("torch.backends.cudnn.deterministic", lambda: cudnn.deterministic,
               lambda before: setattr(cudnn, "deterministic", before)),
        _Trait("torch.set_flush_denormal", lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    )  # fmt: skip


@functools.cache
def _traits(*, with_torch: bool, is_main: bool, is_quick: bool) -> tuple[_Trait, ...]:
    traits = _TRAITS + (_of_torch() if with_torch else ()) + (_OF_MAIN_THREAD if is_main else ())
    return tuple(each for each in traits if each.is_quick or not is_quick)


class _State:
    """The values of the traits when this object was made."""

    def __init__(self, *, is_quick: bool = False) -> None:
        self._traits = _traits(
            with_torch=hasattr(
                sys.modules.get("torch"), "set_flush_denormal"
            ),  # False while torch is being imported
            is_main=threading.current_thread() is threading.main_thread(),
            is_quick=is_quick,
        )
        self._before = [each.get() for each in self._traits]

    def put_back(self) -> list[tuple[str, str]]:
        """Undo harmful changes; return (name of the trait, description of the change) for each."""
        # The usual case, nothing changed, is one comparison of two lists.
        values = [each.get() for each in self._traits]
        if values == self._before:
            return []
        found = []
        for trait, before, now in zip(self._traits, self._before, values, strict=True):
            if trait.harms(before, now):
                text = trait.described(before, now).rstrip()
                with suppress(OSError, ValueError, locale.Error):
                    trait.put(before)
                if trait.harms(before, trait.get()):
                    text = f"{text}, which cannot be put back,"
                found.append((trait.name, text))
        return found


class _Surroundings(NamedTuple):
    """The settings of a process that belong to the task while its code runs."""

    folder: str | None  # working directory, None if it was deleted
    start_method: str | None  # of multiprocessing, None before one is chosen

    @classmethod
    def now(cls) -> "_Surroundings":
        with suppress(OSError):
            return cls(os.getcwd(), multiprocessing.get_start_method(allow_none=True))
        return cls(None, multiprocessing.get_start_method(allow_none=True))

    def enter(self, here: "_Surroundings") -> None:
        if self.folder is not None and here.folder != self.folder:
            with suppress(OSError):  # it was deleted
                os.chdir(self.folder)
        if here.start_method != self.start_method:
            multiprocessing.set_start_method(self.start_method, force=True)

    def described(self, now: "_Surroundings") -> list[str]:
        found = []
        if self.folder != now.folder:
            found.append(f"the working directory from {self.folder} to {now.folder}")
        default = multiprocessing.get_all_start_methods()[0]
        if (before := self.start_method or default) != (method := now.start_method or default):
            found.append(f"multiprocessing's start method from {before} to {method}")
        return found


class _Own(NamedTuple):
    """The surroundings that a task has set for itself."""

    imported: _Surroundings  # after its import: each of its environments is made in these
    now: _Surroundings


_own: dict[str, _Own] = {}  # by env.id, of tasks that have changed their surroundings

IMPORT, MADE, TRIED, STEPPED = "its import", "its making", "its first steps", "its reset or step"


@contextmanager
def watched(what: str) -> Iterator[list[str]]:
    """Undo the changes of a block of code to this process; after the block, the list holds a sentence for each."""
    place, before, changes = _Surroundings.now(), _State(), list[str]()
    try:
        yield changes
    finally:
        found = [*place.described(_Surroundings.now()), *(text for _, text in before.put_back())]
        changes += [f"{what} changed {text}" for text in found]
        place.enter(_Surroundings.now())


@contextmanager
def guarded(env_id: str, what: str, *, is_quick: bool = False) -> Iterator[None]:
    """Run a block of a task's code in the task's own surroundings, then undo its changes with one warning.

    what: IMPORT, MADE, TRIED or STEPPED, the subject of the warning. is_quick: check only the quick traits.
    """
    global _depth
    if _left_alone:
        if what == MADE:
            _begin_where_it_was_imported(env_id)
        yield
        return
    # Note the state of the process, then run the block.
    place, before = _Surroundings.now(), _State(is_quick=is_quick)
    known = _own.get(env_id)
    if known is not None:
        # Before: enter the task's surroundings, those after its import if an environment is made.
        (known.imported if what in (IMPORT, MADE) else known.now).enter(place)
    _depth += 1
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):  # the run ends, and its end may have changed handlers
        _depth -= 1
        place.enter(_Surroundings.now())
        raise
    except BaseException:
        _end(env_id, what, place, before)
        raise
    else:
        _end(env_id, what, place, before)


def _end(env_id: str, what: str, place: _Surroundings, before: _State) -> None:
    """After a block: undo changes, remember the task's surroundings, return to those of training, and warn."""
    global _depth
    _depth -= 1
    found, now, known = before.put_back(), _Surroundings.now(), _own.get(env_id)
    # A task that changed its surroundings once is known; it may do so again without a warning.
    moved = place.described(now) if known is None else []
    if now != place or known is not None:
        imported = place if known is None else known.imported
        _own[env_id] = _Own(now if what == IMPORT else imported, now)
    # An inner block leaves the surroundings to the outer one.
    if _depth == 0:
        place.enter(now)
    # Warn of each change once per task, not in every rollout.
    new = [(name, text) for name, text in found if is_first(f"{env_id} {name}")]
    if new:
        changed = new[0][1] if len(new) == 1 else ", ".join(name for name, _ in new)
        warn(
            f"env.id={env_id}: {what} changed {changed}: put back, because training relies on it; with "
            "env.backend=pool a task steps in processes of its own, which keep its changes"
        )
    for text in moved:
        if is_first(f"{env_id} {text}"):
            warn(f"env.id={env_id}: {what} changed {text}: it is in force only while the task's code runs")


def guarding(what: str) -> Callable[[Call], Call]:
    """Decorator: run a function with an EnvConfig as its first argument inside `guarded`."""

    def decorated(function: Call) -> Call:
        @functools.wraps(function)
        def call(env: Any, *args: Any, **kwargs: Any) -> Any:
            with guarded(env.id, what):
                return function(env, *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorated


def leave_alone() -> None:
    """Undo nothing in this process: it serves one task, which may change it."""
    global _left_alone
    _left_alone = True


def _begin_where_it_was_imported(env_id: str) -> None:
    """Enter the surroundings after a task's import, as other processes do, before an environment is made."""
    if env_id in _own:
        _own[env_id].imported.enter(_Surroundings.now())
        return
    # The import may change the folder; later imports of the module are no-ops.
    if module := env_id.rpartition(":")[0]:
        with suppress(Exception, SystemExit):  # making the environment raises it again
            importlib.import_module(module)
    _own[env_id] = _Own(_Surroundings.now(), _Surroundings.now())
