"""The committed profiles: they are read as written, and cover every choice of the heuristic."""

from pathlib import Path

import pytest

from benchmarks.kernels.suites import SUITES
from kernels.convolution.algorithms import choices
from kernels.device.device import Instantiation
from kernels.tuning import profile_table
from kernels.tuning.profile_table import (
    UnprofiledKernelError,
    profile_in,
    profile_of,
    read,
    row_of,
    write,
)
from kernels.tuning.static_profile import PROFILED, StaticProfile, Stretch


def test_a_profile_is_that_of_its_row() -> None:
    profile = StaticProfile(
        registers=96,
        blocks=2,
        warps=5,
        code_bytes=1600,
        start=Stretch(200, 400, 10),
        vector=Stretch(50, 200, 4),
        loop={"FFMA": 512, "LDS.128": 32},
        data_loop={"float": 64, "STS": 32},
        data_warps=1,
        load_wavefronts=2.25,
    )
    row = row_of(profile)
    assert profile_in(row) == profile
    assert row["finish"] == "-"
    assert row["share"] == "94.1"


def test_the_table_is_written_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = profile_table.TABLE.read_text()
    compiler, table = read()
    monkeypatch.setattr(profile_table, "TABLE", tmp_path / "profile.tsv")
    write(compiler, table)
    assert (tmp_path / "profile.tsv").read_text() == committed


def test_a_kernel_without_a_row_is_named_with_the_command_that_makes_one() -> None:
    unknown = Instantiation("implicit_gemm.cu", "conv_direct", (("bm", 3),))
    with pytest.raises(
        UnprofiledKernelError, match="conv_direct<3> for sm_90a; to add it, run python"
    ):
        profile_of(unknown)


@pytest.mark.parametrize("suite", SUITES)
def test_every_choice_has_a_profile_that_fits_a_multiprocessor(suite: str) -> None:
    for layer in SUITES[suite]:
        for algorithm, config, _ in choices(layer.problem):
            for work in algorithm.work(layer.problem, config):
                for arch in PROFILED:
                    assert profile_of(work.kernel, arch).registers <= 255
                assert profile_of(work.kernel).blocks > 0
