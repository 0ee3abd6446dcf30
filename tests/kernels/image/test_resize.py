"""The cases of resize.cu notice defects in the kernel and in its input data."""

from pathlib import Path

import pytest

from kernels.image.resize import second_axis_launch
from tests.support.cases.resize import RESIZE_CASES
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices

DEFECTS = {
    "rounding down": ("int sum = 1 << (WEIGHT_BITS - 1);", "int sum = 0;"),
    "rounding half up by one bit too many": ("1 << (WEIGHT_BITS - 1);", "1 << WEIGHT_BITS;"),
    "no lower bound": ("min(max(sum >> WEIGHT_BITS, 0), 255)", "min(sum >> WEIGHT_BITS, 255)"),
    "no upper bound": ("min(max(sum >> WEIGHT_BITS, 0), 255)", "max(sum >> WEIGHT_BITS, 0)"),
    "a tap too few": ("tap < taps;", "tap < taps - 1;"),
    "the next row of the table": ("table + output * (entry.taps[1] + 1)", "table + output"),
    "the first table twice": ("begin + entry.table[1]", "begin + entry.table[0]"),
    "the axes exchanged": (
        "entry.second[0] + right * entry.second[1] + down * entry.second[2]",
        "entry.second[0] + right * entry.second[2] + down * entry.second[1]",
    ),
    "not mirrored": ("entry.kept[0] + right *", "right *"),
    "no paper": ("*to = entry.paper[channel];", "*to = 0;"),
    "one column of paper missing": ("unsigned(right) >= unsigned", "unsigned(right) > unsigned"),
    "the image's own channel": ("+ entry.channel[channel]", "+ int(channel)"),
    "a vector too few": ("/ 16;", "/ 16 - 1;"),
    "one place for all": ("size_t(blockIdx.y) * unsigned(middle_pitch);", "0;"),
    "only the grid's first bytes": ("i += gridDim.x * blockDim.x) to[i]", "i += 1u << 31) to[i]"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_the_kernels_is_noticed(defect: str, tmp_path: Path) -> None:
    old, new = DEFECTS[defect]
    assert notices(replaced(tmp_path, "resize.cu", old, new), RESIZE_CASES)


def test_more_pixels_than_a_place_has_room_for_are_refused() -> None:
    second_axis_launch(1, (1024, 1024, 3))
    with pytest.raises(ValueError, match="1024×1025×3 is too large"):
        second_axis_launch(1, (1024, 1025, 3))
