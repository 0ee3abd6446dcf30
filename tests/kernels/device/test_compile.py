"""The compilation of CUDA C++ to cubins, and its cache. Needs NVRTC, but no GPU and no driver."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.device import compile as compiler
from kernels.device import nvrtc
from kernels.device.compile import Cubin, architecture, compile_all, compile_kernel
from kernels.device.device import SOURCE_ROOT, CompileError, Instantiation
from kernels.problems.architectures import Architectures
from tests.support.kernels.kernel_case import COPY

SCALE = """
#include "factor.cuh"
template <int TIMES>
__global__ void scale(float* x) {
  __shared__ float staged[64];
  staged[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = staged[63 - threadIdx.x] * FACTOR * TIMES;
}
"""
TWICE = Instantiation("scale.cu", "scale", (("times", 2),))


@dataclass(frozen=True)
class Workplace:
    """A folder of sources and a cache of its own."""

    root: Path
    cache: Path

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def compile(self, instantiation: Instantiation = TWICE, arch: str = "80") -> Cubin:
        return compile_kernel(instantiation, arch, self.cache, self.root)

    def entries(self) -> list[Path]:
        return sorted(self.cache.iterdir())


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """Return a workplace with the kernel `scale`, whose factor is in a header that another header
    includes."""
    made = Workplace(tmp_path / "src", tmp_path / "cache")
    made.root.mkdir()
    made.write("scale.cu", SCALE)
    made.write("factor.cuh", '#pragma once\n#include "number.cuh"\n')
    made.write("number.cuh", "#define FACTOR 3.0f\n")
    return made


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of expressions that reached the compiler, in order."""
    seen: list[str] = []
    compile_program = nvrtc.compile_program

    def counted(
        source: str, filename: str, expression: str, headers: dict[str, str], options: list[str]
    ) -> nvrtc.CompilerOutput:
        seen.append(expression)
        return compile_program(source, filename, expression, headers, options)

    monkeypatch.setattr(nvrtc, "compile_program", counted)
    return seen


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), "75"), ((8, 0), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((12, 0), "120")],
)
def test_the_architecture_is_exactly_the_chips(capability: tuple[int, int], expected: str) -> None:
    assert architecture(capability) == expected


def test_a_kernel_becomes_machine_code_under_its_mangled_name(workplace: Workplace) -> None:
    cubin = workplace.compile()
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.name.encode() + b"\0" in cubin.code
    assert "scale" in cubin.name
    assert cubin.resources.static_shared == 64 * 4
    assert 0 < cubin.resources.registers <= 32
    assert (cubin.resources.spill_stores, cubin.resources.spill_loads) == (0, 0)


def test_a_cubin_is_whole_to_its_last_byte(workplace: Workplace) -> None:
    code = workplace.compile().code
    # An ELF file ends with a table that its header places; CuPy's binding cuts it short by a byte.
    section_table = int.from_bytes(code[40:48], "little")
    section_size, sections = (int.from_bytes(code[at : at + 2], "little") for at in (58, 60))
    program_table = int.from_bytes(code[32:40], "little")
    program_size, programs = (int.from_bytes(code[at : at + 2], "little") for at in (54, 56))
    end = max(section_table + section_size * sections, program_table + program_size * programs)
    assert len(code) >= end


def test_registers_that_spill_are_counted(workplace: Workplace) -> None:
    workplace.write(
        "greedy.cu",
        """
__global__ void __launch_bounds__(1024, 2) greedy(float* x) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = kept[i] * kept[95 - i];
}
""",
    )
    resources = workplace.compile(Instantiation("greedy.cu", "greedy")).resources
    assert resources.registers == 32
    assert resources.spill_stores > 0
    assert resources.spill_loads > 0
    assert resources.stack > 0


def test_hoppers_own_instructions_compile_for_90a(workplace: Workplace) -> None:
    fence = Instantiation("fence.cu", "fence")
    workplace.write(
        "fence.cu", '__global__ void fence() { asm volatile("wgmma.fence.sync.aligned;"); }'
    )
    workplace.compile(fence, "90a")
    with pytest.raises(CompileError, match=r"wgmma.*sm_90"):
        workplace.compile(fence, "90")


def test_what_does_not_compile_says_where_and_is_not_cached(workplace: Workplace) -> None:
    workplace.write("number.cuh", "#define FACTOR not_a_number\n")
    with pytest.raises(CompileError, match=r"scale\.cu\(8\).*not_a_number") as caught:
        workplace.compile()
    assert caught.value.instantiation == TWICE
    assert not workplace.cache.exists()


def test_an_unknown_architecture_is_a_compile_error(workplace: Workplace) -> None:
    with pytest.raises(CompileError, match="gpu-architecture"):
        workplace.compile(arch="12345")


# The cache


def test_a_second_request_does_not_compile(workplace: Workplace, compilations: list[str]) -> None:
    first, second = workplace.compile(), workplace.compile()
    assert second == first
    assert compilations == ["scale<2>"]


CHANGES: dict[str, Callable[[Workplace, pytest.MonkeyPatch], object]] = {
    "the source": lambda place, _: place.write("scale.cu", SCALE + "\n"),
    "a header's header": lambda place, _: place.write("number.cuh", "#define FACTOR 4.0f\n"),
    "the flags": lambda _, patch: patch.setattr(
        compiler, "FLAGS", (*compiler.FLAGS, "--use_fast_math")
    ),
    "the compiler": lambda _, patch: patch.setattr(nvrtc, "version", lambda: (99, 0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_compiled_again_when_what_it_depends_on_changes(
    change: str, workplace: Workplace, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.compile()
    CHANGES[change](workplace, monkeypatch)
    workplace.compile()
    assert len(compilations) == 2
    assert len(workplace.entries()) == 2


def test_instantiations_and_architectures_do_not_share_an_entry(workplace: Workplace) -> None:
    thrice = Instantiation("scale.cu", "scale", (("times", 3),))
    cubins = {workplace.compile(), workplace.compile(thrice), workplace.compile(TWICE, "86")}
    assert len(cubins) == len(workplace.entries()) == 3


def test_a_file_that_is_not_included_does_not_matter(
    workplace: Workplace, compilations: list[str]
) -> None:
    workplace.compile()
    workplace.write("other.cuh", "#define OTHER 1\n")
    workplace.compile()
    assert len(compilations) == 1


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[:-1],
    "cut in its first line": lambda content: content[:40],
    "a bit flipped in the code": lambda content: (
        content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    ),
    "a bit flipped in the header": lambda content: (
        content[:80] + bytes([content[80] ^ 4]) + content[81:]
    ),
    "of another program": lambda content: b"not a cubin\n\xff\xfe",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_noticed_and_compiled_again(
    damage: str,
    workplace: Workplace,
    compilations: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = workplace.compile()
    (entry,) = workplace.entries()
    sound = entry.read_bytes()
    damaged = DAMAGE[damage](sound)
    entry.write_bytes(damaged)
    with entry.open("rb") as reader, caplog.at_level(logging.WARNING):
        assert workplace.compile() == first
        assert reader.read() == damaged, "a file was changed that another process may be reading"
    assert "damaged" in caplog.text
    assert len(compilations) == 2
    assert entry.read_bytes() == sound


def test_a_cache_that_cannot_be_written_is_done_without(
    workplace: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    workplace.cache.write_text("a file stands where the folder should")
    with caplog.at_level(logging.WARNING):
        assert workplace.compile().code
    assert "cannot keep" in caplog.text


def test_other_users_may_read_what_one_compiled(workplace: Workplace) -> None:
    workplace.compile()
    (entry,) = workplace.entries()
    beside = workplace.cache / "beside"
    beside.touch()
    assert entry.stat().st_mode == beside.stat().st_mode


_IN_A_PROCESS = """
import sys, hashlib
from pathlib import Path
from kernels.problems.architectures import Architectures
from kernels.device.compile import compile_kernel
from kernels.device.device import Instantiation
root, cache = map(Path, sys.argv[1:])
sys.stdin.read()  # until all have started
times = [Instantiation("scale.cu", "scale", (("times", n),)) for n in (2, 3)]
print([hashlib.sha256(compile_kernel(each, "80", cache, root).code).hexdigest() for each in times])
"""


def test_processes_that_start_at_once_agree_and_leave_nothing_behind(
    workplace: Workplace,
) -> None:
    command = [sys.executable, "-c", _IN_A_PROCESS, str(workplace.root), str(workplace.cache)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    answers = set()
    for process in processes:
        assert process.stdout is not None
        with process.stdout:
            answers.add(process.stdout.read())
        assert process.wait(60) == 0
    assert len(answers) == 1
    assert [entry.suffix for entry in workplace.entries()] == [".cubin", ".cubin"]


def test_another_checkout_compiles_nothing_again_not_even_the_tests_own_kernel(
    tmp_path: Path, compilations: list[str]
) -> None:
    copies = Instantiation(COPY, "copy")
    for checkout in ("one", "other"):
        root = tmp_path / checkout / "kernels/src"
        shutil.copytree(SOURCE_ROOT, root)
        (root / COPY).parent.mkdir(parents=True, exist_ok=True)
        (root / COPY).write_bytes((SOURCE_ROOT / COPY).read_bytes())
        compile_kernel(copies, "80", tmp_path / "cache", root)
    assert compilations == ["copy"]
    assert not Path(COPY).is_absolute()


# Many at once


def test_compile_all_compiles_each_for_each_and_tells_how_far_it_is(workplace: Workplace) -> None:
    thrice = Instantiation("scale.cu", "scale", (("times", 3),))
    told: list[tuple[int, int]] = []
    cubins = compile_all(
        [TWICE, thrice, TWICE],
        ["80", "90a"],
        workplace.cache,
        lambda done, total: told.append((done, total)),
        root=workplace.root,
    )
    assert list(cubins) == [(TWICE, "80"), (TWICE, "90a"), (thrice, "80"), (thrice, "90a")]
    assert cubins[thrice, "90a"] == workplace.compile(thrice, "90a")
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_compile_all_leaves_out_gpus_without_a_kernels_tensor_cores(workplace: Workplace) -> None:
    workplace.write(
        "precise.cu",
        "enum class Precision { TF32 };\n"
        "template <Precision PRECISION> __global__ void precise(float* x) { *x = 1; }",
    )
    tf32 = Instantiation(
        "precise.cu",
        "precise",
        (("precision", "Precision::TF32"),),
        architectures=Architectures(80),
    )
    cubins = compile_all([TWICE, tf32], ["75", "80"], workplace.cache, root=workplace.root)
    assert set(cubins) == {(TWICE, "75"), (TWICE, "80"), (tf32, "80")}


def test_compile_all_stops_at_what_does_not_compile(
    workplace: Workplace, compilations: list[str]
) -> None:
    workplace.write("bad.cu", "__global__ void bad() { return 1; }")
    wanted = [Instantiation("bad.cu", "bad")]
    wanted += [Instantiation("scale.cu", "scale", (("times", n),)) for n in range(50)]
    with pytest.raises(CompileError, match="bad"):
        compile_all(wanted, ["80"], workplace.cache, threads=1, root=workplace.root)
    assert len(compilations) < 5


def test_without_a_compiler_the_error_says_what_to_install(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(nvrtc, "_library", nvrtc._load.__wrapped__)
    monkeypatch.setattr(nvrtc, "version", nvrtc.version.__wrapped__)
    with pytest.raises(nvrtc.CompilerNotFoundError, match="pip install"):
        workplace.compile()
