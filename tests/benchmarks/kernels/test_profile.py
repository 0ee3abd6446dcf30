"""What `--profile` shows: a row a kernel, without a GPU."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.kernels import profile
from kernels.device.machine_code import DisassemblerNotFoundError
from tests.support.kernels.windows import conv_problem, window


def test_each_kernel_of_the_problems_has_one_row(tmp_path: Path) -> None:
    layer = conv_problem(1, 64, 64, window((56, 56), (1, 1)))
    shown = io.StringIO()
    try:
        profile.run([layer, layer.with_batch(1)], Console(file=shown, width=200), tmp_path)
    except DisassemblerNotFoundError as missing:
        pytest.skip(str(missing))
    (row,) = (line for line in shown.getvalue().splitlines() if "<" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "2"  # both problems
    assert "%" in cells[5]
    assert "nothing here was measured" in shown.getvalue()
