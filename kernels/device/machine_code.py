"""Extracts the machine code of a kernel: its bytes in a cubin, and its instructions.

    Cubin ─ ELF ─ section .text.<kernel> ─┬─ digest
                                          ├─ bits of each word: stalls, waits ─┐
    nvdisasm ─ JSON ───────────────────────── opcodes, operands ───────────────┴─ Instruction

To disassemble, this module runs NVIDIA's nvdisasm, from the wheel nvidia-cuda-nvdisasm or the CUDA
toolkit. nvdisasm needs no driver, and must not be older than the compiler.
"""

import json
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.device.compile import Cubin
from kernels.device.device import DeviceError

WORD = 16
"""The bytes of an instruction on every architecture since sm_70."""


class DisassemblerNotFoundError(DeviceError):
    """Raised when nvdisasm is not installed."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction. If it is a branch, `target` is the index of the instruction to which
    it branches."""

    opcode: str  # "LDS.128"
    operands: str
    predicate: str  # "@!P0"; empty where it is always executed
    target: int | None
    stall: int  # cycles until the scheduler may issue the warp's next
    waits: bool  # for results of earlier instructions whose time is not fixed

    @property
    def base(self) -> str:
        """Return the opcode without its modifiers."""
        return self.opcode.partition(".")[0]


def machine_code(cubin: Cubin) -> bytes:
    """Return the bytes of the kernel's instructions in the cubin."""
    # Elf64_Ehdr and Elf64_Shdr: System V ABI, "Object files".
    begin, size, count, names = struct.unpack_from("<40xQ10xHHH", cubin.code)
    headers = [struct.unpack_from("<I20xQQ", cubin.code, begin + i * size) for i in range(count)]
    strings = headers[names][1]
    wanted = f".text.{cubin.name}\0".encode()
    for name, offset, length in headers:
        if cubin.code.startswith(wanted, strings + name):
            return cubin.code[offset : offset + length]
    raise ValueError(f"the cubin has no machine code of {cubin.name}")


def disassemble(cubin: Cubin) -> tuple[Instruction, ...]:
    """Return the kernel's instructions in order. Raises DisassemblerNotFoundError."""
    code = machine_code(cubin)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin.code)
        file.flush()
        printed = subprocess.run(  # noqa: S603
            [_nvdisasm(), "-json", file.name], capture_output=True, text=True, check=False
        )
    if printed.returncode != 0:
        raise DeviceError(f"nvdisasm failed: {printed.stderr.strip()}")
    _, functions = json.loads(printed.stdout)
    (listed,) = (f["sass-instructions"] for f in functions if f["function-name"] == cubin.name)
    # Functions that it calls may follow: a division's slow path.
    return tuple(
        _instruction(line, int.from_bytes(code[i * WORD : (i + 1) * WORD], "little"))
        for i, line in enumerate(listed)
    )


_TARGET = re.compile(r"0x([0-9a-f]+)$")


def _instruction(listed: dict[str, str], word: int) -> Instruction:
    # Where the control fields lie: Jia et al. 2018, "Dissecting the NVIDIA Volta GPU architecture
    # via microbenchmarking", section 2.1; the same up to Hopper.
    opcode, operands = listed["opcode"], listed.get("operands", "")
    # Code for sm_80 leaves loops by calls that never return; they have a predicate.
    jumps = opcode.startswith("BRA") or (opcode.startswith("CALL") and "predicate" in listed)
    target = _TARGET.search(operands) if jumps else None
    return Instruction(
        opcode,
        operands,
        listed.get("predicate", ""),
        int(target[1], 16) // WORD if target else None,
        stall=word >> 105 & 0xF,
        waits=word >> 116 & 0x3F != 0,
    )


@cache
def _nvdisasm() -> Path:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility  # noqa: PLC0415
    except ImportError as missing:
        raise DisassemblerNotFoundError(_HOW_TO_INSTALL) from missing
    found = find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise DisassemblerNotFoundError(_HOW_TO_INSTALL)
    return Path(found)


_HOW_TO_INSTALL = "nvdisasm was not found: pip install -c constraints.txt nvidia-cuda-nvdisasm"
