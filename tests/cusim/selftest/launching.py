"""Launches one kernel with arrays, for the tests of the simulator itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cusim.build import PLAIN, Build
from cusim.device import POISON, CusimDevice, Order
from kernels.device.device import Argument, Dim3, Instantiation, TemplateArgument

Passed = NDArray[Any] | Argument

KERNELS = Path(__file__).parent / "kernels"


def opened(build: Build = PLAIN, order: Order = Order.FORWARD, **options: Any) -> CusimDevice:
    """Open a device for the kernels in this folder."""
    return CusimDevice(build, order, source_root=KERNELS, **options)


def unwritten(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an array with the content of device memory to which nothing has been written."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = POISON
    return array


def instantiation(source: str, kernel: str, **arguments: TemplateArgument) -> Instantiation:
    return Instantiation(source, kernel, tuple(arguments.items()))


def launch(
    device: CusimDevice,
    kernel: Instantiation,
    grid: Dim3,
    block: Dim3,
    arguments: Sequence[Passed],
    shared_bytes: int = 0,
    cluster: Dim3 = (1, 1, 1),
) -> list[NDArray[Any]]:
    """Launch a kernel with each array in its own buffer, and return the arrays after the launch."""
    loaded, stream = device.load(kernel), device.stream()
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    buffers = [device.allocate(array.nbytes) for array in arrays]
    for array, buffer in zip(arrays, buffers, strict=True):
        device.upload(buffer.address, array, stream)
    addresses = iter([buffer.address for buffer in buffers])
    passed = [next(addresses) if isinstance(a, np.ndarray) else a for a in arguments]
    device.launch(loaded, grid, block, shared_bytes, passed, stream, cluster=cluster)
    results = [np.empty_like(array) for array in arrays]
    for result, buffer in zip(results, buffers, strict=True):
        device.download(result, buffer.address, stream)
    stream.synchronize()
    for buffer in buffers:
        buffer.free()
    return results
