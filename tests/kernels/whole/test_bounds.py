"""A kernel that reads past the last element of a tensor is noticed."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cusim.build import ASAN
from cusim.device import CusimDevice
from kernels.convolution.split_sum import TileConfig
from kernels.device.device import FaultError
from tests.support.cases import CASES
from tests.support.cases.integer import (
    INTEGER,
    INTEGER_DEPTHWISE,
    INTEGER_PATCH,
    INTEGER_WARPGROUPS,
    in_bytes,
    integer_case,
    tiles_of,
)
from tests.support.kernels.conv_layers import Layer, odd
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.windows import conv_problem, window

ONE_CHANNEL_TOO_FAR = ("if (filter + i < sizes.filters)", "if (filter + i <= sizes.filters)")


def _depthwise_by_the_element() -> KernelCase:
    """A layer whose channels do not fill vectors, so they are read one by one."""
    return next(
        case
        for case in CASES
        for launch in case.launches
        if launch.instantiation.expression.startswith("conv_depthwise<float, 0, 0, 1, ")
        and "thrice as many" in case.name
    )


def test_one_channel_more_than_there_are_is_a_fault(tmp_path: Path) -> None:
    case = _depthwise_by_the_element()
    whole = CusimDevice(ASAN)
    run(case, whole)
    whole.close()
    root = replaced(tmp_path, "depthwise.cu", *ONE_CHANNEL_TOO_FAR)
    with pytest.raises(FaultError, match=r"depthwise\.cu"):
        run(case, CusimDevice(ASAN, source_root=root))


_FEW = Layer(
    "whose filters fill no vector",
    conv_problem(1, 5, 5, window((5, 6), (3, 3), pads=(1,) * 4), 5),
    odd(5),
    replace(odd(5), pitch=6),  # the last pixel ends where memory ends
    replace(odd(5), pitch=6),
)


def _of_bytes() -> dict[str, KernelCase]:
    """Return a layer of bytes for each kernel of bytes; its filters do not fill vectors."""
    depthwise = in_bytes(_FEW)
    whole = replace(depthwise, problem=replace(depthwise.problem, groups=1))
    return {
        "depthwise": integer_case(depthwise, INTEGER_DEPTHWISE.configs(depthwise.problem)[0]),
        "integer": integer_case(whole, TileConfig(tiles_of(INTEGER)[-1])),
        "wgmma": integer_case(whole, TileConfig(tiles_of(INTEGER_WARPGROUPS)[-1])),
        "patch": integer_case(whole, INTEGER_PATCH.configs(whole.problem)[0]),
    }


OF_BYTES = _of_bytes()


@pytest.mark.parametrize("case", OF_BYTES.values(), ids=OF_BYTES)
def test_kernels_of_bytes_touch_nothing_past_the_last_filter(case: KernelCase) -> None:
    with closing(CusimDevice(ASAN)) as device:
        run(case, device)


UNGUARDED = {
    "depthwise": (
        "depthwise.cu",
        ("i < exist ? offset[4 + filter + i] : 0", "offset[4 + filter + i]"),
        ("i < exist ? scale[filter + i] : 0.0f", "scale[filter + i]"),
        ("if (i < exist)\n            added", "added"),
        ("if (i < exist) to[i]", "to[i]"),
    ),
    "integer": (
        "requantize.cuh",  # and with it wgmma's and patch's
        ("i < exist ? to.offset[4 + filter + i] : 0", "to.offset[4 + filter + i]"),
        ("i < exist ? to.scale[filter + i] : 0.0f", "to.scale[filter + i]"),
        ("if (c < exist) added", "added"),
        ("if (c < exist) y[c]", "y[c]"),
    ),
}
"""The axis of channels in offsets, scales, the residual and y."""


@pytest.mark.parametrize(
    ("kernel", "file", "edit"),
    [(kernel, file, edit) for kernel, (file, *edits) in UNGUARDED.items() for edit in edits],
)
def test_one_filter_more_than_there_are_is_a_fault(
    kernel: str, file: str, edit: tuple[str, str], tmp_path: Path
) -> None:
    with (
        closing(CusimDevice(ASAN, source_root=replaced(tmp_path, file, *edit))) as device,
        pytest.raises(FaultError, match=file.replace(".", r"\.")),
    ):
        run(OF_BYTES[kernel], device)
