"""The door under another's launcher: torchrun's rank 0 composes the configuration and the others follow it.

Launchers whose processes cannot join are refused, and so are variables that one of them left in a shell.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ddppo.errors import ConfigError, TrainingError
from ddppo.processes.signals import stop_signals_kill

# What torchrun tells its ranks. Without any of _TOLD a process is none, whatever else is left of one.
_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_ALSO_TOLD = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE")
# Who else starts copies of a command: how many there are and which this one is.
_OF_OTHERS = {
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "mpiexec (MPICH, Intel MPI)": ("PMI_SIZE", "PMI_RANK"),
    "mpirun (MVAPICH)": ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),  # of a step, which a job's own script is not
}
_has_told = False  # whether this process, as rank 0, has told the others of their run, or cannot reach them


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def forget_torchrun() -> None:
    """Take what torchrun says to its ranks out of the environment: left in a shell, it would be believed."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        os.environ.pop(name, None)


def check_launcher() -> None:
    """Raise ConfigError where a launcher started this process as one of several that cannot become ranks of a run.

    Copies but the first end silently, with the same exit code. So where variables of a launcher contradict each other.
    """
    copies = copies_of(os.environ)
    if copies is not None and copies[1] > 0:
        _end(2)
    if wrong := (copies[0] if copies is not None else contradiction(os.environ)):
        forget_torchrun()  # there is no rank to speak to
        raise ConfigError(wrong)


def copies_of(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return what is wrong where another launcher started copies of this command, and which copy this one is."""
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:  # srun torchrun ..., of course
        return None
    for launcher, (size, number) in _OF_OTHERS.items():
        is_shell = launcher == "srun" and "SLURM_PTY_PORT" in environ  # srun -n 4 --pty bash
        if environ.get(size, "1") == "1" or is_shell:
            continue
        said = f"{launcher} started {environ[size]} copies of this command ({size}={environ[size]}), each of which"
        return _refused(said, environ[size]), _number(environ.get(number))
    if "PMIX_RANK" in environ and not any(size in environ for size, _ in _OF_OTHERS.values()):
        number = environ["PMIX_RANK"]
        said = f"a launcher that speaks PMIx started this command as one of several (PMIX_RANK={number}), and each"
        return _refused(said, "N"), _number(number)
    return None


def _refused(said: str, size: str) -> str:
    return (
        f"{said} would train a run by itself: start it once, with dist.world_size={size}, or by torchrun "
        f"--nproc-per-node={size} -m ddppo.train ..., or as a SLURM job by -m hydra/launcher=slurm"
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def contradiction(environ: Mapping[str, str]) -> str | None:
    """Return what variables of torchrun contradict each other or are missing, and how to clear them; None if none."""
    wrong = _of_a_rank(environ) if "TORCHELASTIC_RUN_ID" in environ else _of_nobody(environ)
    if wrong is None:
        return None
    names = [name for name in (*_TOLD, *_ALSO_TOLD) if name in environ]
    names += sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return f"{wrong}; if they are left of another command, clear them: unset {' '.join(names)}"


def _of_nobody(environ: Mapping[str, str]) -> str | None:
    """Without torchrun, RANK and WORLD_SIZE may be another launcher's, whose processes would train side by side."""
    if "RANK" not in environ or (environ["RANK"], environ.get("WORLD_SIZE")) == ("0", "1"):
        return None
    said = [f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ]
    return (
        f"{_listed(said)} {'say' if len(said) > 1 else 'says'} that this process is one of several, but torchrun did "
        "not start it (TORCHELASTIC_RUN_ID is not set): start ranks by dist.world_size or by torchrun"
    )


def _of_a_rank(environ: Mapping[str, str]) -> str | None:
    missing = [name for name in _TOLD if not environ.get(name)]
    if len(missing) == len(_TOLD):
        return None
    if missing:
        there = _listed([name for name in ("TORCHELASTIC_RUN_ID", *_TOLD) if environ.get(name)])
        return f"{there} are set, as by torchrun, but {_listed(missing)} {'are' if len(missing) > 1 else 'is'} not"
    for name in _COUNTS:
        if not environ[name].isdecimal():
            return f"{name}={environ[name]} is no number"
    rank, world_size, local_rank, local_world_size, port = (int(environ[name]) for name in _COUNTS)
    for is_wrong, names, how in (
        (rank >= world_size, ("RANK", "WORLD_SIZE"), "ranks are numbered from 0 to WORLD_SIZE - 1"),
        (
            local_rank >= local_world_size,
            ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
            "LOCAL_RANK is below LOCAL_WORLD_SIZE",
        ),
        (
            local_world_size > world_size,
            ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
            "one host has no more ranks than all have",
        ),
        (local_rank > rank, ("LOCAL_RANK", "RANK"), "a rank's number on its host is at most that among all"),
        (not 0 < port < 2**16, ("MASTER_PORT",), "ports are numbered from 1 to 65535"),
    ):
        if is_wrong:
            said = _listed([f"{name}={environ[name]}" for name in names])
            return f"{said} {'contradict each other' if len(names) > 1 else 'cannot be'}: {how}"
    return None


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def lead(run_dir: Path, timeout_s: float) -> int | None:
    global _has_told
    from ddppo.distributed.network import rendezvous_store
    from ddppo.launch import formation
    from ddppo.loop.rank import train_rank

    # Until the loop can stop in good order. Not SIGINT, of which rank 0 speaks: its own waits are none inside torch.
    stop_signals_kill()
    world_size = int(os.environ["WORLD_SIZE"])
    try:
        store = formation.lead(rendezvous_store(timeout_s), world_size, run_dir.resolve(), timeout_s)
    except TrainingError:
        _has_told = True
        raise
    _has_told = True
    return train_rank(run_dir, lambda _: store)


def follow(arguments: Sequence[str]) -> NoReturn:
    """Be a rank other than rank 0, silently: rank 0 speaks, also of what ends all of them."""
    stop_signals_kill(
        signal.SIGINT
    )  # before what takes long: inside an import a handler's exception breaks torch
    from ddppo.config.settings import DistSettings
    from ddppo.distributed.network import rendezvous_store
    from ddppo.launch import formation
    from ddppo.loop.rank import run_rank

    timeout_s = _timeout_s(arguments, DistSettings().timeout_s)
    try:
        store, run_dir = formation.follow(rendezvous_store(timeout_s), int(os.environ["RANK"]), timeout_s)
    except SystemExit as e:
        _end(int(e.code or 0))
    # Not 0, which torchrun takes for the run's end: it may have stopped the ranks to start them with another host's.
    run_rank(run_dir, lambda _: store, if_cut_short=os.EX_TEMPFAIL)


def _timeout_s(arguments: Sequence[str], default: float) -> float:
    """Return the dist.timeout_s that was typed; rank 0 knows better what an experiment sets, and has not spoken yet."""
    for argument in reversed(arguments):
        name, _, value = argument.partition("=")
        if name.lstrip("+") == "dist.timeout_s":
            with suppress(ValueError):
                return min(max(float(value), 1.0), 2e6)
    return default


def _end(code: int) -> NoReturn:
    """End at once: torchrun ends ranks that still live when another has ended, and would count this one as killed."""
    os._exit(code)


def dismiss(exit_code: int) -> None:
    """Tell ranks that wait, or are about to, that rank 0 ends without a run: they end with its code, and silently.

    On one host not after Ctrl-C, which came to all.
    """
    is_one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if _has_told or os.environ["RANK"] != "0" or (exit_code >= 128 and is_one_host):
        return
    stop_signals_kill(signal.SIGINT)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # of torchrun, which may see the end of another before this one's
    from ddppo.distributed.network import rendezvous_store
    from ddppo.launch import formation

    with suppress(Exception):  # what comes on top of a fault would hide it
        formation.dismiss(rendezvous_store(30.0), int(os.environ["WORLD_SIZE"]), exit_code)
