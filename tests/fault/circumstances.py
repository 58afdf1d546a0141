"""Run the trainer under an odd circumstance: `python -m tests.fault.circumstances files=64 <arguments of ddppo.train>`.

What the process does to itself here, ranks inherit by the fork. Several circumstances stand side by side.
"""

import errno
import fcntl
import os
import resource
import sys
import time

from ddppo import train
from ddppo.processes import fork_server
from ddppo.records import checkpoint


def files(most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), int(most)))


def soft_files(most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def inherited(number):
    """A file that whoever started this had open, under this number."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), int(number), inheritable=True)


def processes(most):
    """A user of its own who may have so many processes and threads."""
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (int(most), int(most)))


def file_size(kilobytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(kilobytes) << 10, int(kilobytes) << 10))


def addresses(megabytes):
    resource.setrlimit(resource.RLIMIT_AS, (int(megabytes) << 20, int(megabytes) << 20))


def closed(number):
    os.close(int(number))


def wall_clock(hours):
    """A clock that is set forth and back by so many hours each time somebody looks at it."""
    looks, true = [0], time.time

    def odd():
        looks[0] += 1
        return true() + (-1) ** looks[0] * 3600 * float(hours)

    time.time = odd


def clock_set(hours):
    """A clock that is set by so many hours once, when the command has begun."""
    looks, true = [0], time.time

    def odd():
        looks[0] += 1
        return true() + (3600 * float(hours) if looks[0] > 1 else 0)

    time.time = odd


def refused(call, number=errno.ENOTSUP):
    """A system that refuses `call`, such as fcntl.flock, with an error of this name."""
    call, _, name = call.partition(":")
    module, _, function = call.partition(".")
    number = getattr(errno, name)

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    setattr({"os": os, "fcntl": fcntl}[module], function, refuse)


def made_by(torch_version):
    """Checkpoints as another version of torch writes them."""
    checkpoint._makers = lambda: {"torch": torch_version, "Python": "3.11.0"}


def server_fault(where):
    """A fault in the process that ranks fork from."""

    def fail(*args):
        raise ZeroDivisionError("a fault of the test's")

    setattr(fork_server, where, fail)


def main():
    arguments = sys.argv[1:]
    while arguments and arguments[0].partition("=")[0] in globals():
        name, _, value = arguments.pop(0).partition("=")
        globals()[name](value)
    sys.argv[1:] = arguments
    train.main()


if __name__ == "__main__":
    main()
