"""What the fork server of environment processes imports, for what the import does to it and to all that it forks.

It ends with its rank. And it survives a signal to its process group: what such a signal means the rank decides. A
handler that does nothing, unlike ignoring, is not handed on to programs that a task starts and may want to terminate.
"""

import signal

from ddppo.signals import die_with_parent


def _leave_to_the_rank(number: int, frame: object) -> None:
    pass


die_with_parent()
for _number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _leave_to_the_rank)
