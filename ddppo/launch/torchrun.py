"""Which launcher started this process, by its environment variables: none, torchrun, or one that is refused.

torchrun's processes become ranks of one run (launch/rank.py). Copies that mpirun or srun started would each train a run
of their own, and variables of torchrun that were left in a shell would make a process wait for ranks that do not exist:
both are errors that name the variables.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ddppo.errors import ConfigError

# Variables that torchrun sets for each rank. A process without any of _REQUIRED is no rank, even if others are set.
_REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COUNTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_OPTIONAL = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE")
# Other launchers that start copies of a command: the variables with the number of copies and the number of this one.
_OTHER_LAUNCHERS = {
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "mpiexec (MPICH, Intel MPI)": ("PMI_SIZE", "PMI_RANK"),
    "mpirun (MVAPICH)": ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),  # set in a step of srun's, not in the script of a job
}


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def forget_torchrun() -> None:
    """Remove torchrun's variables from the environment, so that none that was left in a shell takes effect."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        os.environ.pop(name, None)


def check_launcher() -> None:
    """Raise ConfigError if another launcher started copies of this command, or torchrun's variables are contradictory.

    All copies but the first end silently, with the same exit code.
    """
    copies = copies_of(os.environ)
    if copies is not None and copies[1] > 0:
        end_at_once(2)
    if wrong := (copies[0] if copies is not None else contradiction(os.environ)):
        forget_torchrun()  # there is no other rank to tell about the end
        raise ConfigError(wrong)


def copies_of(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return a message and the number of this copy if another launcher started copies of the command, else None."""
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:  # srun torchrun ... is fine
        return None
    for launcher, (size, number) in _OTHER_LAUNCHERS.items():
        is_shell = launcher == "srun" and "SLURM_PTY_PORT" in environ  # srun -n 4 --pty bash
        if environ.get(size, "1") == "1" or is_shell:
            continue
        subject = (
            f"{launcher} started {environ[size]} copies of this command ({size}={environ[size]}), and each"
        )
        return _refusal(subject, environ[size]), _number(environ.get(number))
    if "PMIX_RANK" in environ and not any(size in environ for size, _ in _OTHER_LAUNCHERS.values()):
        number = environ["PMIX_RANK"]
        subject = f"a launcher that speaks PMIx started this command as one of several (PMIX_RANK={number}), and each"
        return _refusal(subject, "N"), _number(number)
    return None


def _refusal(subject: str, size: str) -> str:
    return (
        f"{subject} would train a run of its own: start it once, with dist.world_size={size}, or by torchrun "
        f"--nproc-per-node={size} -m ddppo.train ..., or as a SLURM job by -m hydra/launcher=slurm"
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


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
    """End without Python's cleanup: torchrun kills ranks that still run when one has ended, and reports them killed."""
    os._exit(code)
