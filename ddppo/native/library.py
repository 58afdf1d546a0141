"""The C++ library: compiled for this machine's processor at first use, in seconds, and kept. Imports no torch."""

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from ddppo.collectives.compiled import NotCompiled, cache_folder

_SOURCES = Path(__file__).with_name("src")
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fPIC",
    "-Wno-psabi",
    "-Wno-ignored-attributes",
)
# Of one source file each. Tasks keep Gymnasium's bits, where a product that is added to is rounded before.
_FLAGS_OF = {"tasks.cpp": ("-ffp-contract=off",)}


_loaded: list[ctypes.CDLL] = []


def loaded() -> ctypes.CDLL | None:
    """Return the library if this process has loaded it: for what only is faster by it, to the same bits."""
    return _loaded[0] if _loaded else None


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, compiled now unless it was before. Raises NotCompiled."""
    try:
        folder = cache_folder()
        path = folder / _file_name()
        if not path.is_file():
            with open(folder / "native.lock", "w") as lock:  # the ranks of a machine come here at once
                with suppress(
                    OSError
                ):  # a network's folder that knows no locks: all compile, and the last one stays
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.is_file():
                    _build(path)
        _loaded[:] = [ctypes.CDLL(str(path))]
        return _loaded[0]
    except OSError as e:
        raise NotCompiled(f"the C++ library cannot be kept or loaded: {e}") from e


@functools.cache
def why_not() -> str | None:
    """Return why there is no library here, in half a sentence, or None; compiles it."""
    try:
        library()
    except NotCompiled as e:
        return str(e)
    return None


def _file_name() -> str:
    """Return the library's name, which is another whenever it would be."""
    texts = [f"{path.name}\n{path.read_text()}" for path in sorted(_SOURCES.iterdir())]
    key = "\0".join([*texts, *_FLAGS, repr(_FLAGS_OF), _processor(), *platform.libc_ver()])
    return f"native_{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


def _processor() -> str:
    """Return what machine code for this processor depends on: a home folder may serve machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(known)) or [platform.machine(), platform.processor()])


def _build(path: Path) -> None:
    """Compile every source file, side by side, and link them to `path`, which appears whole. Raises NotCompiled."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NotCompiled("there is no C++ compiler (g++, or what CXX names)")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="native_") as folder:
        sources = sorted(_SOURCES.glob("*.cpp"))
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        compiling = [
            _start(compiler, *_FLAGS, *_FLAGS_OF.get(source.name, ()), "-c", str(source), "-o", target)
            for source, target in zip(sources, objects, strict=True)
        ]
        for process in compiling:
            _finish(process)
        linked = str(Path(folder) / "linked.so")
        _finish(_start(compiler, "-shared", *objects, "-o", linked))
        os.replace(linked, path)


def _start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate()
    if process.returncode != 0:
        raise NotCompiled(f"the C++ compiler failed: {' '.join(said.split())[:300]}")
