"""The program of a pool's process: makes its environments and steps them until its socket closes.

pool.py starts it by a fork. It inherits the socket to the rank as standard input; environments see an empty one.
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
    MeasureTask,
    SharedArrays,
    framed,
    receive_byte,
    receive_object,
)
from ddppo.envs.backends.pool_process import measure
from ddppo.envs.backends.sync import InTurn, make_row_envs
from ddppo.envs.guard import leave_alone
from ddppo.errors import EnvError
from ddppo.processes.signals import leave_signals_to_the_rank


def main() -> None:
    """Make environments and step them until the line ends."""
    leave_signals_to_the_rank()
    leave_alone()
    atexit._clear()  # functions that the parent registered must not run here
    # The rank is gone, or has closed the socket.
    with (
        _take_line() as line,
        suppress(EOFError, ConnectionError),
    ):
        _serve(line)


def _take_line() -> socket.socket:
    """Return the socket that was inherited as standard input, and put /dev/null in its place."""
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    return line


def _serve(line: socket.socket) -> None:
    # The first message says what to do: measure one environment, or make some and step them.
    task, _ = receive_object(line)
    if isinstance(task, MeasureTask):
        with suppress(EnvError):  # training meets the same error and reports it
            line.sendall(DONE + framed(measure(task.env, task.spec)))
        return
    try:
        envs = make_row_envs(task.env, task.spec, task.names)
    except EnvError as e:
        line.sendall(FAILED + framed(e))
        return
    try:
        # The rank needs the action space for the layout of the shared memory, which it sends in return.
        line.sendall(DONE + framed(envs[0].action_space))
        (shape, worker, part), (file,) = receive_object(line)
        arrays = SharedArrays(file, shape)
        os.close(file)
        stepper = InTurn(envs, arrays.answers.part(part), arrays.at[worker])
        if task.options is not None:
            stepper.take_options(task.options)
        seeds, actions = arrays.seeds[part], arrays.actions[part]
        while command := receive_byte(line, shape.spin_s):
            # One command at a time; an error is an answer, and the process goes on.
            answer = b""
            try:
                if command == CALL:
                    (method, arguments), _ = receive_object(line)
                    answer = framed(stepper.call(method, arguments))
                elif command == RESET:
                    stepper.reset(seeds)
                else:
                    stepper.step(actions.copy())  # a task may keep its action, and the array is overwritten
            except EnvError as e:
                line.sendall(FAILED + framed(e))
            else:
                line.sendall(DONE + answer)
    finally:
        for env in envs:
            env.close()


if __name__ == "__main__":
    main()
