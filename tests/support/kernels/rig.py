"""Contains code that the tests of all kernel families share: tests of drawn cases, and the check
that a planted defect is noticed."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cusim.build import PLAIN, Build
from cusim.device import CusimDevice, Order
from kernels.device.device import CompileError, DeviceError
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.windows import ON_A_DEVICE

Test = Callable[..., None]


def of_drawn(
    make: Callable[..., KernelCase], drawn: st.SearchStrategy[tuple[Any, ...]], few: int, many: int
) -> tuple[Test, Test]:
    """Return two tests that compare drawn cases with their reference. The first test draws `few`
    cases. The second test draws `many` cases, and belongs to the long suite.

    The tests have the fixture `device`. `make` creates a case from the drawn values.
    """

    def of(examples: int) -> Test:
        @settings(ON_A_DEVICE, max_examples=examples)
        @given(drawn)
        def cases_are_their_reference(device: CusimDevice, drawn: tuple[Any, ...]) -> None:
            run(make(*drawn), device)

        return cases_are_their_reference

    return of(few), pytest.mark.slow(of(many))


def notices(root: Path, cases: Iterable[KernelCase], builds: Sequence[Build] = (PLAIN,)) -> bool:
    """Run the cases with the sources under `root`, in each of the builds. Return whether a case
    fails."""
    every = list(cases)
    for build in builds:
        device = CusimDevice(build, Order.RANDOM, source_root=root, timeout_s=60)
        with closing(device):
            for case in every:
                try:
                    run(case, device)
                except CompileError:
                    raise
                except (AssertionError, DeviceError):
                    return True
    return False
