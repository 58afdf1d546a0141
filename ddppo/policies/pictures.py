"""A film of a task: pictures from its render() become frames, uint8 `[height, width, 3]`, and a gif or mp4.

    film = Film("Jobs-v0", "video=true")
    film.add(task.render())     # after every reset and step
    film.write(Path("jobs.mp4"), fps=30)

Gymnasium asks for uint8 `[height, width, 3]`. Tasks return other things too: floats, one channel or four, channels
first, several frames at once, arrays that they reuse, frames of several sizes. A value that can be read as a picture
becomes a frame; for any other the first `add` raises an error, before an episode is played.
"""

import importlib.util
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.errors import ConfigError, TrainingError
from ddppo.files import stored, write_text
from ddppo.package import install_command

PAGE = ".html"
FORMATS = (".gif", ".mp4", PAGE)
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_RULE = "return an array [height, width, 3] of uint8"


def check_pictures(path: Path, asked: str) -> None:
    """Raise ConfigError if `path`, which the option `asked` names, cannot become a file of pictures."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"{asked}: a file of pictures ends in {' or '.join(FORMATS)}")
    if path.suffix == PAGE:  # text, written without packages
        return
    if importlib.util.find_spec("imageio") is None:
        raise ConfigError(f"{asked} needs packages that are not installed: {install_command('video')}")


class Film:
    """Frames of the task `env_id`, in order. asked: the option that asks for the film, for messages."""

    def __init__(self, env_id: str, asked: str) -> None:
        self.frames: list[np.ndarray] = []
        self._prefix = f"{asked}: {env_id} draws no pictures: render(), with render_mode=rgb_array, returned"
        # Floats may count from 0 to 1 or from 0 to 255. A frame with no float above 1 is taken for the former, until
        # a frame shows otherwise: then `write` corrects it. One entry per frame; None for a frame of integers.
        self._are_fractions: list[bool | None] = []

    def add(self, rendered: Any) -> None:
        """Add the value of render(): a picture, or a list of pictures since the last call. Raises ConfigError."""
        # render() may return the frames since its last call as a list.
        is_several = isinstance(rendered, list) and all(map(_is_array, rendered))
        for each in rendered if is_several else [rendered]:
            frame, are_fractions = self._frame(each)
            self.frames.append(frame)
            self._are_fractions.append(are_fractions)

    def _frame(self, rendered: Any) -> tuple[np.ndarray, bool | None]:
        """Return a picture as a frame, and whether its numbers were taken to count from 0 to 1."""
        # 1. It must be an array.
        if rendered is None:
            raise ConfigError(f"{self._prefix} None: {_RULE}")
        if not _is_array(rendered):
            raise ConfigError(f"{self._prefix} a {type(rendered).__name__}: {_RULE}")
        array = np.asarray(rendered)
        if array.ndim == 4 and len(array) == 1:  # a batch of one
            array = array[0]
        # 2. Its shape: [height, width, channels], then 3 channels.
        what = f"{array.dtype} {list(array.shape)}"
        if array.ndim == 2:
            array = array[..., None]
        elif array.ndim == 3 and array.shape[-1] not in _CHANNELS and array.shape[0] in _CHANNELS:
            array = np.moveaxis(array, 0, -1)
        if array.ndim != 3 or array.shape[-1] not in _CHANNELS or array.size == 0:
            raise ConfigError(f"{self._prefix} {what}: {_RULE}")
        # Drop alpha; repeat grey.
        array = array[..., :3] if array.shape[-1] > 1 else np.repeat(array, 3, axis=-1)
        # 3. Its numbers: 0 to 255.
        if array.dtype == np.uint8:
            return np.array(array), None  # a copy: the task may draw into the same array again
        if array.dtype == np.bool_:
            return array * np.uint8(255), None
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{self._prefix} {what}: {_RULE}")
        # Integers and floats must lie between 0 and 255.
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 255):  # NaN too
            raise ConfigError(
                f"{self._prefix} {what} from {low:g} to {high:g}: {_RULE}, or of floats from 0 to 1 or 0 to 255"
            )
        if array.dtype.kind != "f":
            return array.astype(np.uint8), None
        are_fractions = high <= 1
        return np.rint(array * 255 if are_fractions else array).astype(np.uint8), are_fractions

    def write(self, path: Path, fps: float) -> None:
        """Write all frames as a gif or mp4, padded to the size of the largest. Raises TrainingError."""
        import imageio.v3 as imageio

        if not self.frames:
            raise ConfigError(f"{self._prefix} no frame: {_RULE}")
        frames = self.frames
        if False in self._are_fractions:  # floats of this task count from 0 to 255: undo the scaling
            frames = [
                (frame > 127).astype(np.uint8) if are_fractions else frame
                for frame, are_fractions in zip(frames, self._are_fractions, strict=True)
            ]
        # One size for all.
        size = [max(frame.shape[axis] for frame in frames) for axis in (0, 1)]
        if path.suffix == ".mp4":
            size = [length + length % 2 for length in size]  # H.264 stores one colour for 2 x 2 pixels
        frames = [_padded(frame, *size) for frame in frames]
        # Encode under a temporary name, so that the file appears whole.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp{path.suffix}")
        with stored(path):
            try:
                if path.suffix == ".gif":
                    imageio.imwrite(temporary, frames, duration=1000 / fps, loop=0)
                else:
                    imageio.imwrite(temporary, frames, fps=fps, codec="libx264", macro_block_size=2)
                temporary.replace(path)
            except OSError as e:
                if e.errno is not None:
                    raise
                # An error of imageio, with everything that ffmpeg printed: the first line says enough.
                raise TrainingError(f"{path} cannot be encoded: {_first_line(e)}") from e
            except (RuntimeError, ValueError, TypeError, ImportError) as e:
                raise TrainingError(f"{path} cannot be encoded: {_first_line(e)}") from e
            finally:
                temporary.unlink(missing_ok=True)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{title}</title><style>
body {{ font-family: system-ui, sans-serif; margin: 1em auto; max-width: 60em; padding: 0 .6em; color: #1f2933 }}
svg {{ width: 100%; height: auto }} p {{ display: flex; gap: .6em; align-items: center; flex-wrap: wrap }}
input {{ flex: 1; min-width: 8em }} button {{ font: inherit; min-width: 5em }}
.frame {{ display: none }} .frame.now {{ display: block }}
</style></head><body><h1>{title}</h1>
<p><button id="play">Play</button><input id="at" type="range" min="0" max="{last}" value="0" aria-label="state">
<output id="said">0 of {last}</output></p>
{frames}
<script>
const frames = document.querySelectorAll(".frame"), at = document.getElementById("at");
function show() {{
  frames.forEach((frame, i) => frame.classList.toggle("now", i === +at.value));
  document.getElementById("said").textContent = at.value + " of {last}";
}}
let timer = null;
document.getElementById("play").onclick = event => {{
  if (timer) {{ clearInterval(timer); timer = null; event.target.textContent = "Play"; return; }}
  if (+at.value === frames.length - 1) at.value = 0;
  event.target.textContent = "Stop";
  timer = setInterval(() => {{
    at.value = +at.value + 1; show();
    if (+at.value === frames.length - 1) {{ clearInterval(timer); timer = null; event.target.textContent = "Play"; }}
  }}, {pause_ms});
}};
at.oninput = show; at.value = Math.min(+location.hash.slice(1) || 0, {last}); show();
</script></body></html>
"""


class FilmPage:
    """A page with a state after another and a slider, of a task that draws itself as HTML (render_mode=html).

    `#12` behind the address shows state 12. asked: the option that asks for the page, for messages.
    """

    def __init__(self, env_id: str, asked: str) -> None:
        self.frames: list[str] = []
        self._env_id, self._asked = env_id, asked

    def add(self, rendered: Any) -> None:
        """Add the value of render(). Raises ConfigError if it is no text."""
        if not isinstance(rendered, str):
            raise ConfigError(
                f"{self._asked}: {self._env_id} draws no page: render(), with render_mode=html, returned "
                f"{type(rendered).__name__}: use a file that ends in .gif or .mp4"
            )
        self.frames.append(rendered)

    def write(self, path: Path, fps: float) -> None:
        """Write the page. Raises StorageError."""
        frames = "\n".join(f'<div class="frame">{frame}</div>' for frame in self.frames)
        text = _PAGE.format(
            title=escape(self._env_id), last=len(self.frames) - 1, frames=frames, pause_ms=round(1000 / fps)
        )
        write_text(path, text)


def film_for(path: Path, env_id: str, asked: str) -> "Film | FilmPage":
    """Return what collects the states of a task for this file."""
    return FilmPage(env_id, asked) if path.suffix == PAGE else Film(env_id, asked)


def _is_array(value: Any) -> bool:
    """Return whether NumPy can read the value as an array: NumPy's own, tensors, Pillow's images."""
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _padded(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the frame, padded below and on the right: with black, or by repeating the last line if one is missing."""
    # A single missing line comes from rounding up to even sizes: repeat the last one.
    below, right = height - frame.shape[0], width - frame.shape[1]
    if below == right == 0:
        return frame
    padding = ((0, below), (0, right), (0, 0))
    return np.pad(frame, padding, mode="edge") if max(below, right) == 1 else np.pad(frame, padding)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
