"""What a run shows on the terminal: sizes first, progress while it lasts, a summary at the end."""

from ddppo.run.records.display.displays import (
    Display,
    FrameDisplay,
    NullDisplay,
    PlainDisplay,
    RichDisplay,
    make_display,
)
from ddppo.run.records.display.progress import Throttle
from ddppo.run.records.display.words import closing, header

__all__ = [
    "Display",
    "FrameDisplay",
    "NullDisplay",
    "PlainDisplay",
    "RichDisplay",
    "Throttle",
    "closing",
    "header",
    "make_display",
]
