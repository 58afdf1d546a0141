"""The process that a call of `train` is: the door, and a file that says what came of it.

`python -m ddppo.api.child <file>`: a JSON object with `overrides` and `path`, Python's; the answer takes its place.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from ddppo.files import write_json
from ddppo.processes.signals import ends_without_waiting, stop_signals_raise
from ddppo.terminal import unbroken_streams


@ends_without_waiting("ddppo.api.child")
def main() -> None:
    """Run the command line that the file holds; the exit code is the door's."""
    file = Path(sys.argv[1])
    request = json.loads(file.read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    sys.argv = ["ddppo.train", *request["overrides"]]
    # The server that this process is forked from may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ddppo.train import CommandResult, command

    result = CommandResult(1)  # if the command raises: its traceback is printed
    try:
        with unbroken_streams(), stop_signals_raise():
            result = command()
        if isinstance(result.error, KeyboardInterrupt):
            print(result.message, file=sys.stderr)
    finally:
        write_json(file, _answer(result.run_dir, result.error))
    sys.exit(result.exit_code)


def _answer(run_dir: Path | None, error: BaseException | None) -> dict[str, Any]:
    said = None if error is None else {"kind": type(error).__name__, "message": str(error)}
    return {"run_dir": None if run_dir is None else str(run_dir.resolve()), "error": said}


if __name__ == "__main__":
    main()
