"""Descriptions of tensors: their refusals, and the parts that a launch binds."""

from dataclasses import replace

import pytest

from kernels.device.launch import Launch, instantiate
from kernels.device.tensor_map import TensorMap, Windows
from kernels.problems.precision import FLOAT, HALF

MATRIX = TensorMap("x", HALF, (40, 50), (96,), 64, 32)
IMAGES = TensorMap(
    "x", FLOAT, (8, 7, 9, 2), (32, 224, 2016), 32, 64, Windows((1, 2), (-1, -3), (-1, 0))
)

BROKEN: dict[str, tuple[TensorMap, dict[str, object], str]] = {
    "a dimension too many": (MATRIX, {"dims": (8, 8, 8)}, "a tensor map of 2 dimensions"),
    "a stride too many": (MATRIX, {"strides": (96, 960)}, "a tensor map of 2 dimensions"),
    "a matrix as images": (IMAGES, {"dims": (8, 7)}, "a tensor map of 4 dimensions"),
    "no element": (MATRIX, {"dims": (40, 0)}, "each dimension must have 1 to"),
    "too many elements": (MATRIX, {"dims": (40, (1 << 32) + 1)}, "each dimension must have 1 to"),
    "a stride off 16 bytes": (MATRIX, {"strides": (88,)}, r"strides must .* got \(88,\)"),
    "a stride of nothing": (MATRIX, {"strides": (0,)}, r"strides must .* got \(0,\)"),
    "a stride too long": (MATRIX, {"strides": (1 << 40,)}, "strides must be multiples of 16 bytes"),
    "a row beyond the swizzle": (MATRIX, {"row": 72}, "bytes, got 144"),
    "a row off 16 bytes": (MATRIX, {"row": 60}, "bytes, got 120"),
    "a row of nothing": (MATRIX, {"row": 0}, "bytes, got 0"),
    "too many rows": (MATRIX, {"rows": 257}, "must have 1 to 256 rows, got 257"),
    "too many pixels": (IMAGES, {"rows": 1025}, "must have 1 to 1024 rows, got 1025"),
    "no row": (IMAGES, {"rows": 0}, "rows, got 0"),
    "an address off 16 bytes": (MATRIX, {"base": 0x1008}, "must be a multiple of 16, got 0x1008"),
    "windows too far apart": (IMAGES, {"windows": Windows((1, 9), (0, 0), (0, 0))}, r"\(1, 9\)"),
    "windows on one another": (IMAGES, {"windows": Windows((0, 1), (0, 0), (0, 0))}, r"\(0, 1\)"),
    "too much padding": (IMAGES, {"windows": Windows((1, 1), (-129, 0), (0, 0))}, "corners of"),
    "an end too far": (IMAGES, {"windows": Windows((1, 1), (0, 0), (0, 128))}, "corners of"),
    "no window": (
        IMAGES,
        {"windows": Windows((1, 1), (0, 0), (0, -9))},
        "does not fit into images",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_a_driver_would_refuse_is_refused_with_a_reason(broken: str) -> None:
    tensor, change, says = BROKEN[broken]
    with pytest.raises(ValueError, match=says):
        replace(tensor, **change)  # type: ignore[arg-type]


def test_the_largest_that_a_driver_takes_is_taken() -> None:
    replace(MATRIX, dims=(1 << 32, 1), strides=((1 << 40) - 16,), rows=256, base=0x1010)
    replace(IMAGES, rows=1024, windows=Windows((8, 8), (-128, -128), (127, 127)))
    replace(IMAGES, windows=Windows((1, 1), (6, 8), (0, 0)))


def _launch() -> Launch:
    kernel = instantiate("lrn.cu", "lrn", t="float")
    return Launch(kernel, (1, 1, 1), (1, 1, 1), (IMAGES, "y", *[1] * 9))


def test_a_launch_binds_the_operand_of_a_map_as_it_does_a_pointer() -> None:
    made = _launch()
    assert made.operands == ("x", "y")
    assert made.elements["x"] == "float"
    assert made.writes == {"y"}
    tensor, y, *_ = made.bind({"x": 0x100, "y": 0x204})
    assert (tensor, y) == (replace(IMAGES, base=0x100), 0x204)
    with pytest.raises(KeyError, match="x"):
        made.bind({"y": 0x204})
    with pytest.raises(ValueError, match="must be a multiple of 16, got 0x104"):
        made.bind({"x": 0x104, "y": 0x204})


def test_a_launch_on_other_operands_renames_that_of_a_map() -> None:
    assert _launch().renamed({"x": "z", "z": "x"}).operands == ("z", "y")
    assert _launch().renamed({"y": "v"}).operands == ("x", "v")
