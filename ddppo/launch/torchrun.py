"""Which launcher started this process, by its environment variables: none, torchrun, mpirun, mpiexec or srun.

Processes that one of them started become ranks of one run (launch/rank.py); launch/mpi.py translates the variables of
all but torchrun. Variables of torchrun that were left in a shell would make a process wait for ranks that do not exist:
an error that names them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ddppo.errors import ConfigError
from ddppo.launch.mpi import LAUNCHER, copy_of, refusal, variables_of_rank

# Variables that torchrun sets for each rank. A process without any of _REQUIRED is no rank, even if others are set.
_REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_OPTIONAL = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE")


def launcher() -> str:
    """Return the launcher that started this process as a rank: torchrun, mpirun, mpiexec or srun; "" if none did."""
    if "RANK" not in os.environ:
        return ""
    return "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else os.environ.get(LAUNCHER, "")


def forget_torchrun() -> None:
    """Remove torchrun's variables from the environment, so that none that was left in a shell takes effect."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        os.environ.pop(name, None)


def check_launcher(*, joins: bool) -> None:
    """Make this process a rank, in torchrun's variables, if mpirun, mpiexec or srun started it as one of several.

    joins: whether all copies are this command, and not a program that calls it. Raises ConfigError if copies cannot
    join, or if torchrun's variables are contradictory. Copies that cannot join end silently, except the first.
    """
    # srun torchrun ... is fine: torchrun's variables are the last ones set.
    copy = None if launcher() == "torchrun" else copy_of(os.environ)
    try:
        if copy is None:
            os.environ.pop(LAUNCHER, None)
            if wrong := contradiction(os.environ):
                raise ConfigError(wrong)
        elif joins:
            os.environ.update(variables_of_rank(copy, os.environ))
        else:
            raise ConfigError(refusal(copy))
    except ConfigError:
        # mpirun kills all copies once one has ended with another code than 0: the first would not get to say why.
        if joins and copy is not None and copy.number > 0:
            end_at_once(0)
        forget_torchrun()  # there is no other rank to tell about the end
        raise


def contradiction(environ: Mapping[str, str]) -> str | None:
    """Return which of torchrun's variables contradict each other or are missing, and how to clear them; else None."""
    wrong = _wrong_of_rank(environ) if "TORCHELASTIC_RUN_ID" in environ else _wrong_without_torchrun(environ)
    if wrong is None:
        return None
    names = [name for name in (*_REQUIRED, *_OPTIONAL) if name in environ]
    names += sorted(name for name in environ if name.startswith("TORCHELASTIC_"))
    return f"{wrong}; if another command left them in this shell, clear them: unset {' '.join(names)}"


def _wrong_without_torchrun(environ: Mapping[str, str]) -> str | None:
    """Return what RANK and WORLD_SIZE of another launcher say: its processes would train runs side by side."""
    if "RANK" not in environ or (environ["RANK"], environ.get("WORLD_SIZE")) == ("0", "1"):
        return None
    given = [f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ]
    return (
        f"{_listed(given)} {'say' if len(given) > 1 else 'says'} that this process is one of several, but torchrun did "
        "not start it (TORCHELASTIC_RUN_ID is not set): start ranks by dist.world_size or by torchrun"
    )


def _wrong_of_rank(environ: Mapping[str, str]) -> str | None:
    """Return which of torchrun's variables is missing, is no number, or contradicts another."""
    missing = [name for name in _REQUIRED if not environ.get(name)]
    if len(missing) == len(_REQUIRED):
        return None
    if missing:
        there = _listed([name for name in ("TORCHELASTIC_RUN_ID", *_REQUIRED) if environ.get(name)])
        return f"{there} are set, as by torchrun, but {_listed(missing)} {'are' if len(missing) > 1 else 'is'} not"
    for name in _COUNTS:
        if not environ[name].isdecimal():
            return f"{name}={environ[name]} is no number"
    rank, world_size, local_rank, local_world_size, port = (int(environ[name]) for name in _COUNTS)
    # Each rule with the variables that it relates.
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
            given = _listed([f"{name}={environ[name]}" for name in names])
            return f"{given} {'contradict each other' if len(names) > 1 else 'cannot be'}: {how}"
    return None


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def end_at_once(code: int) -> NoReturn:
    """End without Python's cleanup: launchers kill ranks that still run when one has failed, and report them."""
    os._exit(code)
