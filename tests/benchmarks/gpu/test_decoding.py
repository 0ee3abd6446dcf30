"""Decoding is timed on the simulator: photographs of one sampling, up to some of the kernels."""

from pathlib import Path

import pytest

from benchmarks.gpu import decoding
from benchmarks.gpu.decoding import LAST, measure_decoding, photographs
from benchmarks.gpu.units import DECODING, SAMPLINGS, Unit, units
from benchmarks.gpu.worker import RefusedError
from benchmarks.kernels.contest import Effort
from cusim.device import CusimDevice
from kernels.image.decode import decode_launches
from tests.support.images.files import encode, noise, scene


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with photographs of two samplings, and one of a rare kind."""
    (tmp_path / "images").mkdir()
    picture = scene(50, 40)
    for name, options in {
        "a": {"subsampling": 0},
        "b": {"subsampling": 2, "quality": 95},
        "c": {"subsampling": 2},
        "d": {"subsampling": 2, "progressive": True},
    }.items():
        (tmp_path / "images" / f"{name}.JPEG").write_bytes(encode(picture, "JPEG", **options))
    return tmp_path


def test_photographs_are_taken_by_their_sampling_and_sorted(folder: Path) -> None:
    assert len(photographs("4:4:4", folder)) == 1
    small, large = photographs("4:2:0", folder)
    assert len(small.file.scan) < len(large.file.scan)
    (folder / "images" / "a.JPEG").unlink()
    with pytest.raises(RefusedError, match="no photograph has the chroma sampling 4:4:4"):
        photographs("4:4:4", folder)


def test_decoding_is_timed_up_to_some_kernels(
    folder: Path, device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "decode_launches", lambda n: decode_launches(n, blocks=2))
    monkeypatch.setattr(decoding, "LAST", LAST[:1] + LAST[-1:])
    effort = Effort(copies=1, replays=2)
    rows = measure_decoding(device, Unit(DECODING, "4:2:0", 2, "convoy"), effort, folder)
    assert [row["up_to"] for row in rows] == ["jpeg_unstuff", "jpeg_pixels"]
    assert all(row["p50_us"] > 0 for row in rows)
    assert {row["n"] for row in rows} == {2}


def test_a_photograph_that_is_flagged_is_not_timed(
    folder: Path, device: CusimDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (folder / "images").iterdir():
        file.write_bytes(encode(noise(90, 90), "JPEG", subsampling=0, quality=100))
    monkeypatch.setattr(decoding, "decode_launches", lambda n: decode_launches(n, blocks=2))
    monkeypatch.setattr(decoding, "LAST", LAST[-1:])
    with pytest.raises(RefusedError, match=r"their flags are \[8\]"):
        measure_decoding(
            device, Unit(DECODING, "4:4:4", 1, "convoy"), Effort(copies=1, replays=2), folder
        )


def test_the_plan_has_decoding_ahead_of_requests() -> None:
    kinds = list(dict.fromkeys(unit.kind for unit in units()))
    assert kinds.index(DECODING) < kinds.index("http")
    planned = {(unit.subject, unit.n) for unit in units() if unit.kind == DECODING}
    assert planned == {(sampling, n) for sampling in SAMPLINGS for n in (1, 8)}
