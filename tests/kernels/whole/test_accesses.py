"""The wavefronts and sectors of every source line equal those of the committed table."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from cusim import profile
from cusim.build import PROFILE
from cusim.device import CusimDevice
from kernels.problems.precision import Precision
from kernels.tuning.profile_table import LOADS, profile_of
from tests.support.kernels.mutations import replaced

FP32 = [
    name for name, (problem, _) in profile.profiled().items() if problem.precision is Precision.FP32
]

MAIN = (
    "direct 64x64x16",
    "gemm 32x64x32",
    "winograd F(2x2,3x3) integer points, 16x32x8",
    "winograd F(4x4,3x3) mixed points, 16x32x4",
    "tensor 64x64x64",
)
"""The choices whose rows are compared in every run; longer sweeps compare the others."""


def _compare(names: Iterable[str]) -> None:
    committed = profile.read()
    made = profile.accesses_of(names)
    assert made == {name: committed[name] for name in made}, (
        "if this is meant: python -m cusim.profile --write"
    )


def test_the_main_kernels_access_memory_as_the_committed_table_says() -> None:
    _compare(MAIN)


@pytest.mark.slow
def test_every_kernel_accesses_memory_as_the_committed_table_says() -> None:
    names = profile.profiled()
    assert profile.read().keys() == names.keys()
    _compare(names)


def test_profiles_have_the_loads_of_the_committed_table() -> None:
    made = profile.load_wavefronts(profile.read())
    assert LOADS.read_text(encoding="utf-8") == made


@pytest.mark.parametrize("name", FP32)
def test_shared_memory_bounds_no_kernel_before_its_instructions_do(name: str) -> None:
    problem, choice = profile.profiled()[name]
    static = profile_of(profile.kernel_of(problem, choice))
    assert static.shared_ceiling is not None
    assert static.ceiling is not None
    # Both are counts of a usual turn; in gemm 32x32x32 they differ by 2%.
    assert static.shared_ceiling >= 0.98 * static.ceiling


def test_a_pitch_with_conflicts_is_noticed(tmp_path: Path) -> None:
    name = "gemm 32x32x32"
    root = replaced(tmp_path, "implicit_gemm.cu", "BK % 32 == 16 ? BK : BK + 4;", "BK;")
    conflicted = profile.lines_of(
        profile.profile(*profile.profiled()[name], lambda: CusimDevice(PROFILE, source_root=root))
    )
    committed = profile.read()[name]
    worse = {
        place
        for place, counts in conflicted.items()
        if float(counts.split()[1]) > float(committed[place].split()[1])
    }
    assert any(place.endswith("load 16 shared") for place in worse)
