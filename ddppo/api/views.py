"""Where a run's output goes: to the streams of the program that called, its progress in place in a notebook."""

import codecs
import json
import sys
from typing import Any

from ddppo.run.records.display.displays import FRAME_BEGINS, FRAMES

_COLUMNS = 100  # of a notebook's output


class View:
    """Hands on what the run prints, to whatever sys.stdout and sys.stderr are. environ: what the run is told."""

    environ: dict[str, str]

    def __init__(self) -> None:
        self.environ = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._of_out, self._of_err = decoder("replace"), decoder("replace")

    def out(self, text: bytes) -> None:
        self._say(self._of_out.decode(text))

    def err(self, text: bytes) -> None:
        sys.stderr.write(self._of_err.decode(text))
        sys.stderr.flush()

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class NotebookView(View):
    """Shows the run's progress in place, by frames that it prints among its other output."""

    def __init__(self) -> None:
        super().__init__()
        self.environ = {FRAMES: str(_COLUMNS)}
        self._line = ""
        self._handle: Any = None

    def out(self, text: bytes) -> None:
        self._line += self._of_out.decode(text)
        *lines, self._line = self._line.split("\n")
        for line in lines:
            before, begins, frame = line.partition(FRAME_BEGINS)
            if before or not begins:  # the former is what a task printed without an end of line
                self._say(f"{before}\n")
            if begins:
                self._show("\n".join(json.loads(frame)))

    def close(self) -> None:
        if self._line:
            self._say(self._line)

    def _show(self, text: str) -> None:
        from IPython.display import display

        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def view() -> View:
    """Return the view for where this program shows its output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookView() if hasattr(shell, "kernel") else View()
