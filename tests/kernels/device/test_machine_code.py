"""Machine code in a cubin, and in the listing of the disassembler."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.device import machine_code
from kernels.device.compile import Cubin, compile_kernel
from kernels.device.device import Instantiation
from kernels.device.machine_code import (
    WORD,
    DisassemblerNotFoundError,
    disassemble,
)

SUMS = """
template <int COUNT>
__global__ void sums(const float* x, float* y, int rounds) {
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < rounds; ++i) sum = fmaf(x[i * 32 + threadIdx.x], float(COUNT), sum);
  y[threadIdx.x] = sum;
}
"""


def _compiled(folder: Path, source: str = SUMS, count: int = 3) -> Cubin:
    (folder / "sums.cu").write_text(source, encoding="utf-8")
    kernel = Instantiation("sums.cu", "sums", (("count", count),))
    return compile_kernel(kernel, "90a", folder / "cache", folder)


def test_a_kernel_that_is_not_in_the_cubin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no machine code of other"):
        machine_code.machine_code(replace(_compiled(tmp_path), name="other"))


def test_instructions_are_listed_with_what_their_words_say(tmp_path: Path) -> None:
    cubin = _compiled(tmp_path)
    try:
        code = disassemble(cubin)
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    assert len(code) * WORD <= len(machine_code.machine_code(cubin))
    (multiply,) = (i for i, each in enumerate(code) if each.base == "FFMA")
    (load,) = (i for i, each in enumerate(code) if each.base == "LDG")
    back = next(i for i, each in enumerate(code) if each.target is not None and each.target <= load)
    assert load < multiply < back
    assert code[back].predicate
    assert code[multiply].waits  # for what was loaded
    assert all(0 <= each.stall < 16 for each in code)
    assert code[0].stall > 0


def test_a_missing_disassembler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_found() -> Path:
        raise DisassemblerNotFoundError(machine_code._HOW_TO_INSTALL)

    monkeypatch.setattr(machine_code, "_nvdisasm", not_found)
    with pytest.raises(DisassemblerNotFoundError, match=r"pip install .*nvidia-cuda-nvdisasm"):
        disassemble(_compiled(tmp_path))
