"""The factors of a convolution for tensor copies: the maps describe windows and places."""

import pytest

from kernels.device.tensor_map import TensorMap, Windows
from kernels.layout.pixels import Pixels
from kernels.layout.tensor_maps import matrix_map, pixels_map, windows_refusal
from kernels.problems.precision import FLOAT, HALF
from kernels.problems.window import Window
from tests.support.kernels.windows import window


def test_a_matrix_is_copied_in_rows_of_128_bytes() -> None:
    expected = TensorMap("weight", HALF, (72, 40), (144,), 64, 128)
    assert matrix_map("weight", HALF, 72, 40, 72, 128) == expected
    assert matrix_map("weight", FLOAT, 72, 40, 76, 32).row == 32


def test_images_are_copied_window_by_window_their_width_first() -> None:
    seen = window((9, 15), (3, 5), strides=(2, 3), dilations=(2, 1), pads=(1, 2, 3, 4))
    assert pixels_map("x", Pixels(20, 24, stored=HALF), 5, seen, 64) == TensorMap(
        "x",
        HALF,
        (20, 15, 9, 5),
        (48, 48 * 15, 48 * 15 * 9),
        64,
        64,
        Windows((3, 2), (-2, -1), (4 - 4, 3 - 4)),
    )


def _along_width(windows: Windows, width: int) -> int:
    """Return the number of windows that a copy visits from one edge of an image to the other."""
    (step, _), (lower, _), (upper, _) = windows
    return (width - 1 + upper - lower) // step + 1


@pytest.mark.parametrize("kernel", [1, 2, 5])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("pads", [(0, 0), (1, 2), (4, 0)])
def test_a_copy_visits_as_many_windows_as_there_are_outputs(
    kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> None:
    for width in range(max(1, dilation * (kernel - 1) + 1 - sum(pads)), 14):
        seen = window(
            (1, width),
            (1, kernel),
            strides=(1, stride),
            dilations=(1, dilation),
            pads=(0, pads[0], 0, pads[1]),
        )
        made = pixels_map("x", Pixels(8, 8, stored=HALF), 1, seen, 64)
        assert made.windows is not None
        assert _along_width(made.windows, width) == seen.output[1]


REFUSED = {
    "3-D windows": window((2, 3, 4), (1, 1, 1)),
    "a stride of 9": window((40, 40), (1, 1), strides=(9, 1)),
    "further beyond the image": window((300, 300), (3, 3), dilations=(65, 1)),
    "windows that reach": window((300, 300), (1, 1), pads=(0, 129, 0, 0)),
}


@pytest.mark.parametrize(("says", "seen"), REFUSED.items())
def test_windows_that_no_copy_visits_are_refused_with_a_reason(says: str, seen: Window) -> None:
    assert says in str(windows_refusal(seen))
    with pytest.raises(ValueError, match=says):
        pixels_map("x", Pixels(8, 8), 1, seen, 64)


def test_windows_as_far_as_a_corner_reaches_are_taken() -> None:
    seen = window((300, 300), (3, 2), dilations=(64, 128), strides=(8, 8), pads=(128, 0, 0, 0))
    assert windows_refusal(seen) is None


def test_pixels_off_16_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="strides must be multiples"):
        pixels_map("x", Pixels(12, 12, stored=HALF), 1, window((5, 5), (1, 1)), 64)
