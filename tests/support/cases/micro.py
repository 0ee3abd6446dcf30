"""Lists cases of micro.cu, whose kernels are only timed. The cases check that the kernels do the
work that is timed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.device.launch import Launch, instantiate, launch
from kernels.layout.strided import StridedTensor
from kernels.tuning.micro import (
    SOURCE,
    chain_launch,
    issue_launch,
    read_cache_launch,
    wide_launch,
)
from tests.support.kernels.arrays import normal
from tests.support.kernels.kernel_case import Check, KernelCase, PlacedArray
from tests.support.tolerance import EPS32

LATE_THREADS = 256


def late_launch(blocks: int) -> Launch:
    """Return a launch of the kernel `late`. In each block, LATE_THREADS threads read x, and each
    thread stores a float of y at its end."""
    kernel = instantiate(SOURCE, "late")
    return launch(kernel, (blocks, 1, 1), (LATE_THREADS, 1, 1), x="x", y="y")


@dataclass(frozen=True, eq=False)
class _Filled:
    """A check that all elements of y equal one number."""

    size: int
    value: float
    bound: float = 0.0
    inputs: Mapping[str, PlacedArray] | None = None

    def __call__(self) -> Check:
        layout = StridedTensor.contiguous((self.size,))
        expected = np.full(self.size, self.value)
        return Check(dict(self.inputs or {}), layout, expected, self.bound)


def _case(name: str, launch: Launch, check: _Filled) -> KernelCase:
    return KernelCase(name, (launch,), check)


def _read(blocks: int, vectors: int) -> KernelCase:
    numbers = normal((4 * vectors,), 1)
    check = _Filled(
        blocks,
        float(numbers.astype(np.float64).sum()),
        len(numbers) * EPS32 * float(np.abs(numbers).sum()),
        {"x": PlacedArray(numbers)},
    )
    return _case(f"{blocks} blocks", read_cache_launch(blocks, 16 * vectors), check)


MICRO_CASES: tuple[KernelCase, ...] = (
    *(_read(blocks, 3000) for blocks in (1, 3)),
    _case("7 turns", chain_launch(2, 7), _Filled(512, 7.0)),
    *(
        _case(f"{variant}", wide_launch(1, variant, 100), _Filled(256, 101.0 + variant))
        for variant in (0, 3)
    ),
    _case(
        "2 blocks",
        late_launch(2),
        _Filled(512, 4.0, inputs={"x": PlacedArray(np.full(512, 3, np.float32))}),
    ),
    _case("2 warps", issue_launch(2, 2, 5), _Filled(128, 5 * 4 * 8 * 2.0)),
)
