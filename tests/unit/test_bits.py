"""The C++ library computes the same bits whatever compiler, tuning, vector width or processor it is compiled for.

bits.cpp prints hashes of rows in batches of many sizes and places; each build must print the same.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from ddppo import native
from ddppo.native.compiling import CPP

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
MAIN = Path(__file__).with_name("bits.cpp")
NAMES = ("learn.cpp", "rollout.cpp", "recurrence.cpp", "returns.cpp", "tasks.cpp")
SOURCES = [source for source in CPP.sources if source.name in NAMES]
WITH_AVX512 = "-march=skylake-avx512"
# Either compiler for either width of vectors; with g++ as it compiles for a Zen 3 and a Skylake, -march=native there.
X86 = [
    ("g++", "-march=haswell", "-mtune=znver3"),
    ("g++", WITH_AVX512, "-mtune=skylake-avx512"),
    ("clang++", "-march=haswell", "-mtune=generic"),
    ("clang++", WITH_AVX512, "-mtune=znver3"),
]


def has(flag):
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and f" {flag} " in cpuinfo.read_text()


def built(folder, compiler, *flags, runner=()):
    """Compile and run bits.cpp; return {what: the one hash of all its shapes}. Skips without the compiler."""
    for program in (compiler, *runner):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    program = folder / "bits"
    command = [compiler, *CPP.flags, *flags, str(MAIN), *map(str, SOURCES), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    lines = subprocess.run([*runner, program], check=True, capture_output=True, text=True, timeout=600).stdout
    of_each = {}
    for line in lines.splitlines():
        what, shape, found = line.split()
        of_each.setdefault(what, {})[shape] = found
    for what, hashes in of_each.items():
        assert len(set(hashes.values())) == 1, f"{what} depends on the shape: {hashes}"
    assert len(of_each) == 134
    return {what: next(iter(hashes.values())) for what, hashes in of_each.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What the plainest build with fused multiply-adds computes: g++, AVX2."""
    if platform.machine() != "x86_64" or not has("fma"):
        pytest.skip("needs an x86-64 processor with FMA")
    return built(tmp_path_factory.mktemp("plain"), "g++", "-march=haswell", "-mtune=haswell")


@pytest.mark.slow  # each build takes 15 s of a core
@pytest.mark.parametrize("build", X86, ids=lambda build: " ".join(part.rpartition("=")[2] for part in build))
def test_no_compiler_tuning_or_vector_width_changes_a_bit(build, plain, tmp_path):
    if WITH_AVX512 in build and not has("avx512f"):
        pytest.skip("this processor has no AVX-512")
    assert built(tmp_path, *build) == plain


@pytest.mark.slow
def test_arm64_computes_the_same_bits(plain, tmp_path):
    found = built(tmp_path, "aarch64-linux-gnu-g++", "-static", runner=("qemu-aarch64",))
    assert found == plain


@pytest.mark.slow
def test_a_processor_without_fused_multiply_adds_has_bits_of_its_own_which_no_shape_changes(plain, tmp_path):
    assert built(tmp_path, "g++", "-march=x86-64") != plain
