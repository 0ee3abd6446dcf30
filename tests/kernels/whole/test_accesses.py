"""Wavefronts and sectors of every line are those of the committed table."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from kernels.problems.precision import Precision
from kernels.tuning.profile_table import LOADS, profile_of
from tests.cusim.build import PROFILE
from tests.cusim.device import CusimDevice
from tests.support.kernels import access_profiles
from tests.support.kernels.mutations import replaced

FP32 = [
    name
    for name, (problem, _) in access_profiles.profiled().items()
    if problem.precision is Precision.FP32
]


def _compare(names: Iterable[str]) -> None:
    committed = access_profiles.read()
    made = access_profiles.table_of(names)
    assert made == {name: committed[name] for name in made}, (
        "if this is meant: python -m tests.cusim.profile --write"
    )


def test_the_main_kernels_access_memory_as_the_committed_table_says() -> None:
    _compare(access_profiles.MAIN)


@pytest.mark.slow
def test_every_kernel_accesses_memory_as_the_committed_table_says() -> None:
    names = access_profiles.profiled()
    assert access_profiles.read().keys() == names.keys()
    _compare(names)


def test_profiles_have_the_loads_of_the_committed_table() -> None:
    made = access_profiles.load_wavefronts(access_profiles.read())
    assert LOADS.read_text(encoding="utf-8") == made


@pytest.mark.parametrize("name", FP32)
def test_shared_memory_bounds_no_kernel_before_its_instructions_do(name: str) -> None:
    problem, choice = access_profiles.profiled()[name]
    (launch,) = access_profiles.kernel_case(problem, choice).launches
    profile = profile_of(launch.instantiation)
    assert profile.shared_ceiling is not None
    assert profile.ceiling is not None
    # Both are counts of a usual turn; in gemm 32x32x32 they differ by 2%.
    assert profile.shared_ceiling >= 0.98 * profile.ceiling


def test_a_pitch_with_conflicts_is_noticed(tmp_path: Path) -> None:
    name = "gemm 32x32x32"
    root = replaced(tmp_path, "implicit_gemm.cu", "BK % 32 == 16 ? BK : BK + 4;", "BK;")
    conflicted = access_profiles.lines_of(
        access_profiles.profile(
            *access_profiles.profiled()[name], lambda: CusimDevice(PROFILE, source_root=root)
        )
    )
    committed = access_profiles.read()[name]
    worse = {
        place
        for place, counts in conflicted.items()
        if float(counts.split()[1]) > float(committed[place].split()[1])
    }
    assert any(place.endswith("load 16 shared") for place in worse)
