"""C and C++, compiled for this machine at first use and kept. Imports nothing of ddppo, and no torch.

    library = cpp(Path(__file__).parent / "src")  # all C++ in a folder: ddppo's, a domain's, a project's of your own
    library.load()       # from the cache or compiled now; raises NotCompiled
    library.why_not()    # None, or the reason in half a sentence

One process of a machine compiles while the others wait for it. What failed is not tried again by processes of the same
run. The build hook of the package loads this file by its path.
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
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_COMPILE_S = 600.0  # of one source file, and of the wait for another process that compiles
_POLL_S = 0.02
_NO_FOLDER = (
    "no folder can keep what is compiled: the cache folder (XDG_CACHE_HOME, or ~/.cache) or the temporary folder "
    "(TMPDIR) must be writable by this user alone, with space, and not mounted noexec"
)
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Read-only file system")

# When the first process of this run began here, on the clock that all processes of a machine share. A failure that is
# noted later is a failure of this run.
_SINCE = os.environ.get("DDPPO_COMPILES_SINCE", "")
if _SINCE.rpartition(" ")[0] != platform.node():
    _SINCE = os.environ["DDPPO_COMPILES_SINCE"] = f"{platform.node()} {time.monotonic()!r}"


class NotCompiled(Exception):
    """There is no library and none can be made here; says why."""


class Library:
    """A shared library made of `sources`, found in the folder of the package, in a cache, or compiled into one.

    machine_flags: tried in this order, the first that the compiler knows is used. shipped_in: where a wheel has it.
    """

    def __init__(
        self, name: str, sources: Sequence[Path], read: Sequence[Path], flags: Sequence[str], *,
        machine_flags: Sequence[str] = (), compilers: Sequence[str], variable: str, shipped_in: Path | None = None,
        is_linux_only: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.sources = sources
        self._read = read  # all files that the sources are compiled from
        self.flags = flags
        self._machine_flags = machine_flags
        self._compilers = compilers
        self._variable = variable
        self._shipped_in = shipped_in
        self._is_linux_only = is_linux_only
        self._loaded: ctypes.CDLL | None = None
        self._failure: NotCompiled | None = None

    @property
    def loaded(self) -> ctypes.CDLL | None:
        """The library if this process has loaded it."""
        return self._loaded

    def load(self) -> ctypes.CDLL:
        """Return the library, compiled now unless it was before. Raises NotCompiled, the same again in this process."""
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
        """Return why there is no library here, in half a sentence, or None; compiles it."""
        try:
            self.load()
        except NotCompiled as e:
            return str(e)
        return None

    @property
    def file_name(self) -> str:
        """The library's name, which is another whenever its source, flags, processor or C library are."""
        texts = [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in sorted(self._read)]
        machine = processor() if self._machine_flags else platform.machine()
        own = [each for each in os.environ.get(self._variable, "").split() if each.startswith("-")]
        key = "\0".join([*texts, *self.flags, *self._machine_flags, *own, machine, *platform.libc_ver()])
        return f"{self.name}_{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"

    def _found_or_built(self) -> ctypes.CDLL:
        if self._is_linux_only and sys.platform != "linux":
            raise NotCompiled(f"futexes are Linux's, and this is {sys.platform}")
        if self._shipped_in is not None and (shipped := self._shipped_in / self.file_name).is_file():
            with suppress(OSError):
                return ctypes.CDLL(str(shipped))
        problem = ""
        for folder in _folders():
            try:
                return self._found_or_built_in(folder)
            except OSError as e:  # read-only, full, or nothing may be executed there: try the next folder
                problem = f" ({e})"
        raise NotCompiled(_NO_FOLDER + problem)

    def _found_or_built_in(self, folder: Path) -> ctypes.CDLL:
        path = folder / self.file_name
        if not _is_whole(path):
            with _locked(folder / f"{self.name}.lock") as is_alone:
                if not _is_whole(path):  # no other process made it meanwhile
                    if is_alone:
                        for left in folder.glob(f"{self.name}_building_*"):  # by a process that was killed
                            shutil.rmtree(left, ignore_errors=True)
                    self._build_once(path)
        return ctypes.CDLL(str(path))

    def _build_once(self, path: Path) -> None:
        """Compile to `path` unless that failed before in this run; note it if it fails."""
        compiler = self.compiler()
        note = path.with_suffix(f".{hashlib.sha256(repr(compiler).encode()).hexdigest()[:8]}.failed")
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
        """Return the command of the compiler: what CXX or CC names, or the first there is. Raises NotCompiled."""
        if named := os.environ.get(self._variable, "").strip():
            command = shlex.split(named)
            if shutil.which(command[0]) is None:
                raise NotCompiled(f"{self._variable}={named} is no program here")
            return command
        for each in self._compilers:
            if shutil.which(each) is not None:
                return [each]
        language = {"CXX": "C++", "CC": "C"}[self._variable]
        raise NotCompiled(
            f"there is no {language} compiler ({', '.join(self._compilers)}, or what {self._variable} names)"
        )

    def build(
        self, path: Path, *, compiler: Sequence[str] = (), machine_flags: Sequence[str] | None = None
    ) -> None:
        """Compile the library to `path`, which appears whole, by as many processes as there are cores.

        machine_flags: for a processor other than this one. Raises NotCompiled, OSError.
        """
        compiler = list(compiler) or self.compiler()
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{self.name}_building_") as temporary:
            folder = Path(temporary)
            if machine_flags is None:
                has_own = any(
                    each.startswith(("-march", "-mcpu")) for each in compiler
                )  # CXX="g++ -march=znver3"
                machine_flags = [] if has_own else self._known(compiler, folder)
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
            content = linked.read_bytes()
            write_whole(_checksum_of(path), hashlib.sha256(content).hexdigest().encode())
            write_whole(path, content, mode=0o755)

    def _known(self, compiler: Sequence[str], folder: Path) -> list[str]:
        """Return the first of the machine's flags that the compiler knows: older Apple clang has no -march=native."""
        source = folder / f"empty{self.sources[0].suffix}"
        source.touch()
        for flag in self._machine_flags:
            with suppress(NotCompiled):
                _run_all([[*compiler, flag, "-c", str(source), "-o", str(folder / "empty.o")]], folder)
                return [flag]
        return []


def cache_folder() -> Path:
    """Return a folder of this user for what was compiled, which can be written. Raises NotCompiled."""
    for folder in _folders():
        return folder
    raise NotCompiled(_NO_FOLDER)


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file that appears whole, whatever ends this process or machine. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}_", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            with suppress(OSError):  # a file system that knows no fsync
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _folders() -> Iterator[Path]:
    """Yield the folders that can keep libraries: this user's cache, and this user's part of the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(OSError, RuntimeError):  # RuntimeError: this user has no home
        # The standard has a relative path ignored: https://specifications.freedesktop.org/basedir-spec
        cache = (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "ddppo"
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.R_OK | os.W_OK | os.X_OK):
            yield cache
    with suppress(OSError):
        folder = Path(tempfile.gettempdir()) / f"ddppo-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        # What others could write there would be loaded into this process.
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            yield folder


def _checksum_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    """Whether the library is there with the bytes that were compiled."""
    try:
        return _checksum_of(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Wait for a lock and hold it; False where the file system knows no locks, or its holder does not answer."""
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
    """Run compilers, at most one a core at a time, with temporary files in `folder`; end all if one fails.

    Raises NotCompiled; OSError where the folder is full.
    """
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
            _, said = process.communicate(timeout=_COMPILE_S)
            del running[0]
            if process.returncode != 0:
                if any(problem in said for problem in _NO_SPACE):
                    raise OSError(said.strip().splitlines()[-1][:300])
                raise NotCompiled(_in_one_line(process, said))
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


def _in_one_line(process: subprocess.Popen[str], said: str) -> str:
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[0] if lines else "it said nothing")
    program = str(process.args[0]) if isinstance(process.args, list) else str(process.args)
    how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
    return f"the compiler {program} failed with {how}: {first[:300]}"


def processor() -> str:
    """Return what machine code for this processor depends on: a home folder may serve machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(known)) or [platform.machine(), platform.processor()])


@functools.cache
def cpp(folder: Path) -> Library:
    """Return the library of all *.cpp in a folder, which may include the *.hpp beside them; the same each time.

    It is named as the folder's parent is, my_project/src as my_project. Functions for Python are `extern "C"`.
    """
    sources = sorted(folder.glob("*.cpp"))
    assert sources, f"{folder} has no *.cpp"
    # A multiply-add is fused only where the source says so (-ffp-contract=off): else each compiler, tuning and tile
    # would round as it likes.
    return Library(
        folder.parent.name,
        sources,
        sorted([*sources, *folder.glob("*.hpp")]),
        (
            "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC",
            "-Wno-psabi", "-Wno-ignored-attributes",
        ),
        machine_flags=("-march=native", "-mcpu=native"),
        compilers=("g++", "clang++", "c++"),
        variable="CXX",
    )  # fmt: skip


CPP = cpp(_HERE / "src")  # networks, the learner's step, classic tasks and rollouts

_C = _HERE.parent / "collectives" / "shared_memory.c"

# Collectives through shared memory, in a wheel where there was a compiler. For every processor of a kind.
SHARED_MEMORY = Library(
    "shared_memory",
    [_C],
    [_C],
    ("-std=c11", "-O3", "-fPIC", "-Wall", "-Wextra"),
    compilers=("cc", "gcc", "clang"),
    variable="CC",
    shipped_in=_C.parent,
    is_linux_only=True,
)
