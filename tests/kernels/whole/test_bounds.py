"""Tensors end where they end: what a kernel reads past the last element is noticed."""

from pathlib import Path

import pytest

from cusim.build import ASAN
from cusim.device import CusimDevice
from kernels.device.device import FaultError
from tests.support.cases import CASES
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.mutations import replaced

ONE_CHANNEL_TOO_FAR = ("if (filter + i < sizes.filters)", "if (filter + i <= sizes.filters)")


def _depthwise_by_the_element() -> KernelCase:
    """A layer whose channels do not fill vectors, so that they are read one by one."""
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
