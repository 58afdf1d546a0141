"""The process that a call of `train` is: the door, and a file that says what came of it.

`python -m ddppo.api.child <file>`: a JSON object with `overrides` and `path`, Python's; the answer takes its place.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from ddppo.files import write_json
from ddppo.processes.signals import ends_without_waiting


@ends_without_waiting("ddppo.api.child")
def main() -> None:
    """Run the command line that the file holds; the exit code is the door's."""
    file = Path(sys.argv[1])
    request = json.loads(file.read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    sys.argv = ["ddppo.train", *request["overrides"]]
    # The server that this process is forked from may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ddppo.train import CommandResult
    from ddppo.train import main as door

    CommandResult.is_asked_for = True
    try:
        door()
    finally:
        write_json(file, _answer(CommandResult.run_dir, CommandResult.error))


def _answer(run_dir: Path | None, error: BaseException | None) -> dict[str, Any]:
    said = None if error is None else {"kind": type(error).__name__, "message": str(error)}
    return {"run_dir": None if run_dir is None else str(run_dir.resolve()), "error": said}


if __name__ == "__main__":
    main()
