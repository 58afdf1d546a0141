"""A process that steps some of a rank's environments: what pool.py starts, in a fork.

Its line to the rank comes as standard input, which is empty for the environments. It ends with the line.
"""

import atexit
import os
import socket
from contextlib import suppress

from ddppo.envs.backends.pool_memory import (
    CALL,
    DONE,
    FAILED,
    RESET,
    Memory,
    ToMeasure,
    framed,
    hear,
    leave_signals_to_the_rank,
    receive_byte,
)
from ddppo.envs.backends.pool_process import measure
from ddppo.envs.backends.sync import InTurn, make_row_envs
from ddppo.envs.guard import leave_alone
from ddppo.errors import EnvError


def main() -> None:
    """Make environments and step them until the line ends."""
    leave_signals_to_the_rank()
    leave_alone()
    atexit._clear()  # what the process that this one forked from had registered is not its to do
    with _take_line() as line, suppress(EOFError, ConnectionError):  # the rank is gone, or has no more to ask
        _serve(line)


def _take_line() -> socket.socket:
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    return line


def _serve(line: socket.socket) -> None:
    task, _ = hear(line)
    if isinstance(task, ToMeasure):
        with suppress(EnvError):  # the environment to be trained in meets the same, and can say so
            line.sendall(DONE + framed(measure(task.env, task.spec)))
        return
    try:
        envs = make_row_envs(task.env, task.spec, task.names)
    except EnvError as e:
        line.sendall(FAILED + framed(e))
        return
    try:
        line.sendall(DONE + framed(envs[0].action_space))
        (shape, worker, part), (file,) = hear(line)
        memory = Memory(file, shape)
        os.close(file)
        stepper = InTurn(envs, memory.answers.part(part), memory.at[worker])
        if task.options is not None:
            stepper.take_options(task.options)
        seeds, actions = memory.seeds[part], memory.actions[part]
        while what := receive_byte(line, shape.num_yields):
            answer = b""
            try:
                if what == CALL:
                    (method, arguments), _ = hear(line)
                    answer = framed(stepper.call(method, arguments))
                elif what == RESET:
                    stepper.reset(seeds)
                else:
                    stepper.step(actions.copy())  # a task may keep what it was given
            except EnvError as e:
                line.sendall(FAILED + framed(e))
            else:
                line.sendall(DONE + answer)
    finally:
        for env in envs:
            env.close()


if __name__ == "__main__":
    main()
