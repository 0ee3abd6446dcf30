"""The cases of preprocess.cu notice defects in the code that reads places."""

from pathlib import Path

import pytest

from kernels.layout.pixels import Pixels
from kernels.operations.preprocess import Places, to_bytes_launch, to_floats_launch
from tests.support.cases.resize import RESIZE_CASES
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices

DEFECTS = {
    "tensors taken for pixels": ("if (entry.kind != TENSOR) {", "if (true) {"),
    "pixels looked for among those that were made": ("entry.kind == PIXELS ? data", "false ? data"),
    "decoded images taken as they are": ("entry.kind == PIXELS ? data", "true ? data"),
    "one image's made pixels for all": ("= size_t(blockIdx.y) * unsigned(area * CHANNELS)", "= 0"),
    "channels last where they are first": ("from[c * channel_stride]", "from[c]"),
    "tensors' pixels side by side": ("+ index * pixel_stride", "+ index"),
    "floats of the first place only": (
        "y + (blockIdx.y * unsigned(area) + index) * y_pitch",
        "y + index * y_pitch",
    ),
    "bytes of the first place only": (
        "blocks.write(blockIdx.y * unsigned(area) + index,",
        "blocks.write(index,",
    ),
    "a pixel too many": ("if (index >= unsigned(area)) return;", ""),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_the_kernels_is_noticed(defect: str, tmp_path: Path) -> None:
    old, new = DEFECTS[defect]
    assert notices(replaced(tmp_path, "preprocess.cu", old, new), RESIZE_CASES)


def test_what_does_not_fit_the_output_is_refused() -> None:
    places = Places(1 << 20)
    with pytest.raises(ValueError, match="3 channels of the image do not fit"):
        to_floats_launch(3, 2, 9, Pixels(1, 1), places)
    with pytest.raises(ValueError, match="2×2 pixels of 3 channels do not fit"):
        to_bytes_launch(3, 2, (4, 4), Pixels(4, 4), 2, places)
    with pytest.raises(ValueError, match="must be multiples of 2"):
        to_bytes_launch(3, 2, (5, 4), Pixels(4, 16), 2, places)
