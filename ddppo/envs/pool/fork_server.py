"""What the fork server of a pool imports last, for what the import does to it: its rank decides what signals mean.

It ends with its rank, as do the processes that it forks.
"""

import signal


def leave_signals_to_the_rank() -> None:
    """Do nothing at a signal that asks to stop; a rank and its environments may get it together.

    A handler that does nothing, unlike ignoring, is not handed on to programs that a task starts and may want to
    terminate.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: object) -> None:
    pass


leave_signals_to_the_rank()
