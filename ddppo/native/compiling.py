"""C and C++ that is compiled for this machine at first use, and kept. Imports nothing of ddppo, and no torch.

    library = cpp(Path(__file__).parent / "src")  # all C++ in a folder: ddppo's, a domain's, or your own project's
    library.load()       # from the cache or compiled now; raises NotCompiled
    library.why_not()    # None, or the reason in half a sentence

One process of a machine compiles while the others wait. After a failure, no process of the same run tries again. The
build hook of the package (hatch_build.py) loads this file by its path.
"""

import ctypes
import fcntl
import functools
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ddppo.files import users_temporary_folder

_HERE = Path(__file__).resolve().parent
_COMPILE_S = 600.0  # limit for one source file, and for the wait while another process compiles
_POLL_S = 0.02
_NO_FOLDER = (
    "no folder can keep the compiled library: the cache folder (XDG_CACHE_HOME, or ~/.cache) or the temporary folder "
    "(TMPDIR) must be writable by this user alone, with space, and not mounted noexec"
)
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Read-only file system")

# When the first process of this run began on this machine, by the clock that all its processes share. A noted failure
# counts only if it is of this run, that is, later.
_SINCE = os.environ.get("DDPPO_COMPILES_SINCE", "")
if _SINCE.rpartition(" ")[0] != platform.node():
    _SINCE = os.environ["DDPPO_COMPILES_SINCE"] = f"{platform.node()} {time.monotonic()!r}"


class NotCompiled(Exception):
    """There is no library, and none can be compiled here. The message is the reason."""


class Language(NamedTuple):
    """A language, and how to find a compiler for it."""

    name: str
    variable: (
        str  # environment variable that names the compiler, with flags if it has any: CXX="g++ -march=znver3"
    )
    compilers: Sequence[str]  # programs to try without it, in this order


# A multiply-add is fused only where the source asks for it (-ffp-contract=off): else each compiler, tuning and tile
# would round differently.
CPP_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC"),
    *("-Wno-psabi", "-Wno-ignored-attributes"),
)
MACHINE_FLAGS = ("-march=native", "-mcpu=native")

C = Language("C", "CC", ("cc", "gcc", "clang"))
CXX = Language("C++", "CXX", ("g++", "clang++", "c++"))


class Library:
    """A shared library. It is looked for in the package, then in a cache folder, and else compiled into that.

    Args:
        name: the first part of its file name.
        sources: the files to compile.
        read: all files that the sources are made from, headers included. If one changes, the library is compiled anew.
        flags: compiler flags.
        language: of the sources.
        machine_flags: flags for this processor. The first that the compiler knows is used.
        shipped_in: the folder in which a wheel has the library.
        is_linux_only: whether the sources compile on Linux only.
    """

    def __init__(
        self, name: str, sources: Sequence[Path], read: Sequence[Path], flags: Sequence[str], language: Language, *,
        machine_flags: Sequence[str] = (), shipped_in: Path | None = None, is_linux_only: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.sources = sources
        self._read = read
        self.flags = flags
        self.language = language
        self._machine_flags = machine_flags
        self._shipped_in = shipped_in
        self._is_linux_only = is_linux_only
        self._loaded: ctypes.CDLL | None = None
        self._failure: NotCompiled | None = None

    @property
    def loaded(self) -> ctypes.CDLL | None:
        """The library if this process has loaded it."""
        return self._loaded

    def load(self) -> ctypes.CDLL:
        """Return the library, compiled now if need be. Raises NotCompiled, each time again after a failure."""
        if self._loaded is None and self._failure is None:
            try:
                self._loaded = self._found_or_built()
            except NotCompiled as e:
                self._failure = e
            except OSError as e:
                self._failure = NotCompiled(f"the compiled library cannot be kept: {e}")
        if self._failure is not None:
            raise self._failure
        assert self._loaded is not None
        return self._loaded

    def why_not(self) -> str | None:
        """Compile the library if need be. Return None, or in half a sentence the reason why there is none."""
        try:
            self.load()
        except NotCompiled as e:
            return str(e)
        return None

    @property
    def file_name(self) -> str:
        """The file's name, with a hash of everything that it depends on: sources, flags, processor and C library."""
        # Flags that the user adds in CXX count too.
        texts = [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in sorted(self._read)]
        machine = processor() if self._machine_flags else platform.machine()
        own = [each for each in os.environ.get(self.language.variable, "").split() if each.startswith("-")]
        key = "\0".join([*texts, *self.flags, *self._machine_flags, *own, machine, *platform.libc_ver()])
        return f"{self.name}_{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"

    def _found_or_built(self) -> ctypes.CDLL:
        """Return the library of the package, of a cache folder, or compiled into the first folder that can keep it."""
        if self._is_linux_only and sys.platform != "linux":
            raise NotCompiled(f"futexes are Linux's, and this is {sys.platform}")
        if self._shipped_in is not None and (shipped := self._shipped_in / self.file_name).is_file():
            with suppress(OSError):
                return ctypes.CDLL(str(shipped))
        # This user's cache folder, then the temporary folder.
        problem = ""
        for folder in _folders():
            try:
                return self._found_or_built_in(folder)
            except OSError as e:  # read-only, full, or nothing may be executed there: try the next folder
                problem = f" ({e})"
        raise NotCompiled(_NO_FOLDER + problem)

    def _found_or_built_in(self, folder: Path) -> ctypes.CDLL:
        # Look, then look again under the lock: another process may have compiled it meanwhile.
        path = folder / self.file_name
        if not _is_whole(path):
            with _locked(folder / f"{self.name}.lock") as is_alone:
                if not _is_whole(path):  # another process may have made it while this one waited
                    if is_alone:
                        # A process was killed while it compiled.
                        for left in folder.glob(f"{self.name}_building_*"):
                            shutil.rmtree(left, ignore_errors=True)
                    self._build_once(path)
        return ctypes.CDLL(str(path))

    def _build_once(self, path: Path) -> None:
        """Compile to `path`. A failure is noted in a file, and raised again by all processes of this run."""
        compiler = self.compiler()
        note = path.with_suffix(f".{hashlib.sha256(repr(compiler).encode()).hexdigest()[:8]}.failed")
        # A note of this compiler's failure, from this run.
        with suppress(OSError, ValueError, KeyError, TypeError):
            failed = json.loads(note.read_text(encoding="utf-8"))
            if float(_SINCE.rpartition(" ")[2]) <= failed["monotonic"] <= time.monotonic():
                raise NotCompiled(failed["reason"])
        try:
            self.build(path, compiler=compiler)
        except NotCompiled as e:
            with suppress(OSError):
                write_whole(note, json.dumps({"monotonic": time.monotonic(), "reason": str(e)}).encode())
            raise
        with suppress(OSError):
            note.unlink()

    def compiler(self) -> list[str]:
        """Return the command of the compiler: of CXX or CC, else of the first that exists. Raises NotCompiled."""
        name, variable, compilers = self.language
        if named := os.environ.get(variable, "").strip():
            command = shlex.split(named)
            if shutil.which(command[0]) is None:
                raise NotCompiled(f"{variable}={named} is no program here")
            return command
        for each in compilers:
            if shutil.which(each) is not None:
                return [each]
        raise NotCompiled(
            f"there is no {name} compiler ({', '.join(compilers)}, or the program that {variable} names)"
        )

    def build(
        self, path: Path, *, compiler: Sequence[str] = (), machine_flags: Sequence[str] | None = None
    ) -> None:
        """Compile the library to `path` by as many processes as there are cores. The file appears whole.

        Args:
            compiler: its command; () finds one.
            machine_flags: flags for another processor than this one; None finds those for this one.

        Raises NotCompiled, OSError.
        """
        compiler = list(compiler) or self.compiler()
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{self.name}_building_") as temporary:
            folder = Path(temporary)
            # 1. Flags for this processor, unless the user's compiler command has them: CXX="g++ -march=znver3".
            if machine_flags is None:
                has_own = any(each.startswith(("-march", "-mcpu")) for each in compiler)
                machine_flags = [] if has_own else self._known(compiler, folder)
            # 2. Compile and link in a folder beside the target.
            flags = [*self.flags, *machine_flags]
            objects = [folder / f"{source.stem}.o" for source in self.sources]
            linked = folder / "linked.so"
            _run_all(
                [
                    [*compiler, *flags, "-c", str(source), "-o", str(target)]
                    for source, target in zip(self.sources, objects, strict=True)
                ],
                folder,
            )
            _run_all([[*compiler, "-shared", *map(str, objects), "-o", str(linked)]], folder)
            # 3. The checksum first: without it the library does not count as whole.
            content = linked.read_bytes()
            write_whole(_checksum_of(path), hashlib.sha256(content).hexdigest().encode())
            write_whole(path, content, mode=0o755)

    def _known(self, compiler: Sequence[str], folder: Path) -> list[str]:
        """Return the first machine flag that the compiler knows: older clang of Apple has no -march=native."""
        source = folder / f"empty{self.sources[0].suffix}"
        source.touch()
        for flag in self._machine_flags:
            with suppress(NotCompiled):
                _run_all([[*compiler, flag, "-c", str(source), "-o", str(folder / "empty.o")]], folder)
                return [flag]
        return []


def cache_folder() -> Path:
    """Return a folder of this user in which compiled files can be kept. Raises NotCompiled."""
    for folder in _folders():
        return folder
    raise NotCompiled(_NO_FOLDER)


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file that appears whole or not at all, even if this process or machine ends. Raises OSError."""
    # Write beside the target, sync, then rename: a reader sees the old file or the new one.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}_", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            with suppress(OSError):  # a file system without fsync
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _folders() -> Iterator[Path]:
    """Yield the folders that can keep libraries: this user's cache, and this user's part of the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(OSError, RuntimeError):  # RuntimeError: this user has no home
        # The standard ignores a relative path: https://specifications.freedesktop.org/basedir-spec
        cache = (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "ddppo"
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.R_OK | os.W_OK | os.X_OK):
            yield cache
    with suppress(OSError):
        yield users_temporary_folder()  # other users cannot write to it, and so load no code into this process


def _checksum_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    """Return whether the file exists with the bytes that were compiled."""
    try:
        return _checksum_of(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Wait for a lock and hold it; yields False if the file system has no locks, or the holder keeps it too long."""
    with open(path, "w") as file:
        end, is_locked = time.monotonic() + _COMPILE_S, False
        while not is_locked and time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:
                break
        yield is_locked


def _run_all(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Run compilers, at most one a core at a time, with temporary files in `folder`; kill all if one fails.

    Raises NotCompiled; OSError if the folder is full.
    """
    # Messages in English, which the caller searches, and temporary files where they are removed.
    environ = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
    waiting, running = list(commands), list[subprocess.Popen[str]]()
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(
                    subprocess.Popen(
                        waiting.pop(0), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE, text=True, errors="replace", env=environ,
                    )
                )  # fmt: skip
            process = running[0]
            _, stderr = process.communicate(timeout=_COMPILE_S)
            del running[0]
            if process.returncode != 0:
                if any(problem in stderr for problem in _NO_SPACE):
                    raise OSError(stderr.strip().splitlines()[-1][:300])
                raise NotCompiled(_in_one_line(process, stderr))
    except subprocess.TimeoutExpired as e:
        raise NotCompiled(f"the compiler {e.cmd[0]} took longer than {_COMPILE_S:g} s") from e
    except (OSError, ValueError) as e:
        if isinstance(e, FileNotFoundError | PermissionError) and running == []:
            raise NotCompiled(f"the compiler cannot be started: {e}") from e
        raise
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _in_one_line(process: subprocess.Popen[str], stderr: str) -> str:
    """Return how a compiler failed, with the first line of its output that has "error" in it."""
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[0] if lines else "without a message")
    program = str(process.args[0]) if isinstance(process.args, list) else str(process.args)
    how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
    return f"the compiler {program} failed with {how}: {first[:300]}"


def processor() -> str:
    """Return a text that differs between processors with different machine code: several may share a home folder."""
    # Model and features of the cores, each once.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(known)) or [platform.machine(), platform.processor()])


@functools.cache
def cpp(folder: Path) -> Library:
    """Return the library of all *.cpp in a folder, which may include the *.hpp beside them; one object a folder.

    Its name is that of the folder's parent: my_project for my_project/src. Functions for Python are `extern "C"`.
    """
    sources = sorted(folder.glob("*.cpp"))
    assert sources, f"{folder} has no *.cpp"
    return Library(
        folder.parent.name,
        sources,
        sorted([*sources, *folder.glob("*.hpp")]),
        CPP_FLAGS,
        CXX,
        machine_flags=MACHINE_FLAGS,
    )


CPP = cpp(_HERE / "src")  # networks, the learner's step, classic tasks and rollouts

_SHM = _HERE.parent / "collectives" / "shared_memory.c"

# Collectives through shared memory. A wheel has it if there was a compiler, for all processors of one architecture.
SHARED_MEMORY = Library(
    "shared_memory",
    [_SHM],
    [_SHM],
    ("-std=c11", "-O3", "-fPIC", "-Wall", "-Wextra"),
    C,
    shipped_in=_SHM.parent,
    is_linux_only=True,
)
