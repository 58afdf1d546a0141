"""C and C++ are compiled once on a machine, whole, wherever that is possible; what fails says why, once."""

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from ddppo.config.settings import Config
from ddppo.distributed.join import check_collective
from ddppo.errors import ConfigError
from ddppo.native import compiling
from ddppo.native.compiling import CPP, SHARED_MEMORY, Language, Library, NotCompiled, cpp

needs_compiler = pytest.mark.skipif(SHARED_MEMORY.why_not() is not None, reason=str(SHARED_MEMORY.why_not()))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder, and an empty temporary one to fall back to."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache" / "ddppo"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that notes its calls in a file, and does before what a line of shell says: `compiler(...)`."""
    calls, script = tmp_path / "calls", tmp_path / "compiler"
    calls.touch()

    def make(first="true"):
        script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{first}\nexec cc "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return calls

    return make


def library(tmp_path, name="small", body="int answer(void) { return 42; }", machine_flags=()):
    source = tmp_path / f"{name}.c"
    if not source.exists():
        source.write_text(body)
    return Library(
        name, [source], [source], ["-fPIC"], Language("C", "CC", ["cc"]), machine_flags=machine_flags
    )


def in_another_process(tmp_path, **environ):
    """Start a process of the same run that loads `library`, and prints its answer or the reason why not."""
    code = f"""
        from pathlib import Path
        from ddppo.native.compiling import Language, Library
        source = Path({str(tmp_path / "small.c")!r})
        small = Library("small", [source], [source], ["-fPIC"], Language("C", "CC", ["cc"]))
        print(small.why_not() or small.load().answer())
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
        env=os.environ | environ,
    )  # fmt: skip


@needs_compiler
def test_a_library_is_compiled_into_the_cache_at_first_use_and_found_there_later(cache, compiler, tmp_path):
    calls = compiler()
    assert library(tmp_path).load().answer() == 42
    first = calls.read_text()
    assert library(tmp_path).load().answer() == 42
    assert calls.read_text() == first
    name = library(tmp_path).file_name
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        ["small.lock", name, name.replace(".so", ".sha256")]
    )


@needs_compiler
def test_many_processes_that_need_it_at_once_compile_it_once(cache, compiler, tmp_path):
    calls, _ = compiler(), library(tmp_path)
    started = [in_another_process(tmp_path) for _ in range(4)]
    assert [process.communicate(timeout=300)[0] for process in started] == ["42\n"] * 4
    assert sum("-shared" in line for line in calls.read_text().splitlines()) == 1


@needs_compiler
def test_a_compiler_that_fails_is_not_called_again_by_this_run_and_is_by_the_next(cache, compiler, tmp_path):
    calls = compiler("echo 'small.c:1: error: no space for jokes' >&2; exit 1")
    small = library(tmp_path)
    expected = "failed with exit code 1: small.c:1: error: no space for jokes"
    for _ in range(2):
        assert expected in small.why_not()
    others = [in_another_process(tmp_path) for _ in range(3)]
    assert all(expected in process.communicate(timeout=300)[0] for process in others)
    assert len(calls.read_text().splitlines()) == 1
    assert expected in in_another_process(tmp_path, DDPPO_COMPILES_SINCE="").communicate(timeout=300)[0]
    assert len(calls.read_text().splitlines()) == 2
    compiler()
    assert in_another_process(tmp_path, DDPPO_COMPILES_SINCE="").communicate(timeout=300)[0] == "42\n"
    assert not list(cache.glob("*.failed"))


@needs_compiler
def test_compilers_under_way_end_with_the_first_that_fails(cache, compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    pids = tmp_path / "pids"
    calls = compiler(
        f'case "$*" in *bad*) until [ -s {pids} ]; do :; done; exit 1;; *) echo $$ >> {pids}; exec sleep 600;; esac'
    )
    sources = [tmp_path / f"{name}.c" for name in ("bad", "slow")]
    for source in sources:
        source.touch()
    both = Library("both", sources, sources, ["-fPIC"], Language("C", "CC", ["cc"]))
    assert "failed with exit code 1" in both.why_not()
    assert len(calls.read_text().splitlines()) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"\x7fELF cut short"])
def test_what_lies_damaged_in_the_cache_is_compiled_anew(damage, cache, compiler, tmp_path):
    compiler()
    library(tmp_path).load()
    (cache / library(tmp_path).file_name).write_bytes(damage)
    assert in_another_process(tmp_path).communicate(timeout=300)[0] == "42\n"


@needs_compiler
def test_what_a_killed_process_left_half_compiled_is_removed(cache, compiler, tmp_path):
    (cache / "small_building_left").mkdir(parents=True)
    library(tmp_path).load()
    assert not (cache / "small_building_left").exists()


def fill(folder, monkeypatch):
    """Have nothing be written below `folder` any more, as on a full disk."""
    whole = compiling.write_whole

    def write_whole(path, content, **kwargs):
        if folder in path.parents:
            raise OSError(28, "No space left on device")
        whole(path, content, **kwargs)

    monkeypatch.setattr(compiling, "write_whole", write_whole)


def forbid_execution(folder, monkeypatch):
    load = ctypes.CDLL

    def cdll(path):
        if str(folder) in path:
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", cdll)


def put_a_file_in_its_place(folder, monkeypatch):
    folder.parent.mkdir(parents=True)
    folder.write_text("")


def forget_home(folder, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiling.Path, "home", home)


@needs_compiler
@pytest.mark.parametrize("spoil", [fill, forbid_execution, put_a_file_in_its_place, forget_home])
def test_where_the_cache_cannot_be_used_the_temporary_folder_is(spoil, cache, tmp_path, monkeypatch):
    spoil(cache, monkeypatch)
    assert library(tmp_path).load().answer() == 42
    [folder] = (tmp_path / "temporary").iterdir()
    assert folder.name == f"ddppo-{os.getuid()}"
    assert (folder / library(tmp_path).file_name).is_file()


@needs_compiler
def test_nothing_is_loaded_from_a_temporary_folder_that_others_can_write_to(cache, tmp_path, monkeypatch):
    put_a_file_in_its_place(cache, monkeypatch)
    folder = tmp_path / "temporary" / f"ddppo-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(NotCompiled, match="no folder can keep the compiled library: the cache folder"):
        library(tmp_path).load()


@needs_compiler
def test_a_compiler_that_does_not_know_the_first_flag_for_this_processor_is_asked_for_the_next(
    cache, compiler, tmp_path
):
    calls = compiler(
        'case "$*" in *-march=native*) echo "error: the clang compiler does not support it" >&2; exit 1;; esac'
    )
    flags = ("-march=native", "-DKNOWN")
    assert library(tmp_path, machine_flags=flags).load().answer() == 42
    compiled = next(line for line in calls.read_text().splitlines() if "small.c" in line)
    assert "-DKNOWN" in compiled


@needs_compiler
def test_a_processor_that_cxx_names_is_compiled_for_and_kept_under_another_name(cache, tmp_path, monkeypatch):
    plain = library(tmp_path).file_name
    monkeypatch.setenv("CC", "cc -march=x86-64 -DOTHER")
    other = library(tmp_path, machine_flags=("-march=native",))
    assert other.file_name != plain
    monkeypatch.setattr(other, "_known", lambda *_: pytest.fail("it asked for another processor"))
    with pytest.MonkeyPatch.context() as patch:
        commands = []
        run_all = compiling._run_all
        patch.setattr(
            compiling, "_run_all", lambda each, folder: (commands.extend(each), run_all(each, folder))
        )
        other.why_not()
    assert commands[0][:3] == ["cc", "-march=x86-64", "-DOTHER"]


@pytest.mark.skipif(CPP.why_not() is not None, reason=str(CPP.why_not()))
def test_the_cpp_of_each_folder_is_a_library_of_its_own_with_the_flags_of_ours(cache, tmp_path):
    for project, answer in (("first", 1), ("second", 2)):
        folder = tmp_path / project / "src"
        folder.mkdir(parents=True)
        (folder / "answer.hpp").write_text(f"constexpr int kAnswer = {answer};")
        (folder / "answer.cpp").write_text(
            '#include "answer.hpp"\nextern "C" int answer() { return kAnswer; }'
        )
        assert cpp(folder).load().answer() == answer
        assert cpp(folder) is cpp(folder)
        assert cpp(folder).flags == CPP.flags
    assert sorted(path.name.split("_")[0] for path in cache.glob("*.so")) == ["first", "second"]
    before = cpp(folder).file_name
    (folder / "answer.hpp").write_text("constexpr int kAnswer = 3;")
    assert cpp(folder).file_name != before


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("", "there is no C compiler (cc, or the program that CC names)"),
        ("gone -x", "CC=gone -x is no program here"),
    ],
)
def test_a_compiler_that_is_not_there_is_named(named, said, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", named)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert library(tmp_path).why_not() == said


def test_without_a_compiler_shm_is_refused_before_any_process_starts_and_auto_is_not(monkeypatch):
    monkeypatch.setattr(SHARED_MEMORY, "_loaded", None)
    monkeypatch.setattr(SHARED_MEMORY, "_failure", NotCompiled("there is no C compiler"))
    config, cpu = Config(), torch.device("cpu")
    config.dist.world_size = 2
    check_collective(config, cpu, 2)
    config.dist.collective = "shm"
    with pytest.raises(ConfigError, match=r"dist\.collective=shm .* no C compiler.* dist\.collective=gloo"):
        check_collective(config, cpu, 2)
