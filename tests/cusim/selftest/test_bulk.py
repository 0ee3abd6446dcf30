"""Bulk copies of tensors' tiles compared with NumPy, their rules, and NVRTC's machine code for
them."""

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.build import PLAIN
from cusim.device import CusimDevice
from kernels.device.compile import compile_kernel
from kernels.device.device import SOURCE_ROOT, Argument, FaultError
from kernels.device.machine_code import disassemble
from kernels.device.tensor_map import TensorMap
from kernels.layout.pixels import Pixels
from kernels.layout.tensor_maps import matrix_map, pixels_map
from kernels.problems.precision import FLOAT
from tests.cusim.selftest.launching import KERNELS, instantiation, opened
from tests.support.kernels.windows import window


@dataclass(frozen=True, slots=True)
class Map:
    """A simulated device's tensor map for floats, which may break a rule; its fields are those in
    runtime.h."""

    dims: tuple[int, ...]  # elements, the innermost first
    box: tuple[int, int]
    swizzle: int
    im2col: bool = False
    shift: int = 0  # of the tensor, in bytes
    stride: int = 0  # between rows; 0 where they are dense

    def at(self, address: int) -> bytes:
        rank = len(self.dims)
        strides = [4 * self.dims[0]]
        for size in self.dims[1:-1]:
            strides.append(strides[-1] * size)
        if self.stride:
            strides[0] = self.stride
        fields = struct.pack(
            "<Q4I3I2H4B2B2b2b",
            address + self.shift,
            *(*self.dims, *(1,) * (4 - rank)),
            *(*strides, *(0,) * (4 - rank)),
            *self.box,
            2 if self.im2col else 1,
            rank,
            4,
            self.swizzle,
            *(1, 1),  # every pixel's window
            *(0,) * 4,
        )
        return fields.ljust(128, b"\0")


def _copied(
    device: CusimDevice,
    x: NDArray[np.float32],
    tensor: Map | TensorMap,
    at: tuple[int, ...],
    tap: tuple[int, int] = (0, 0),
    shift: int = 0,
) -> NDArray[np.float32]:
    """Return the tile as it is stored in shared memory: rows of the box, without unswizzling."""
    kernel = device.load(instantiation("bulk.cu", "copy_tensor", pixels=len(at) == 4))
    stream = device.stream()
    columns, rows = tensor.box if isinstance(tensor, Map) else (tensor.row, tensor.rows)
    y = np.zeros((rows, columns), np.float32)
    from_, to = device.allocate(x.nbytes), device.allocate(y.nbytes)
    device.upload(from_.address, x, stream)
    place = struct.pack("7i", *(*at, *(0,) * (4 - len(at))), *tap, shift)
    arguments: list[Argument] = [
        tensor.at(from_.address),
        place,
        to.address,
        np.int32(y.nbytes // 16),
    ]
    device.launch(kernel, (1, 1, 1), (64, 1, 1), y.nbytes + 16 * shift, arguments, stream)
    device.download(y, to.address, stream)
    stream.synchronize()
    from_.free()
    to.free()
    return y


def _unswizzled(y: NDArray[np.float32], swizzle: int) -> NDArray[np.float32]:
    """Return rows with their vectors in order, from rows that are as long as the swizzle."""
    rows = np.arange(len(y))
    if swizzle == 0:
        return y
    vectors = swizzle // 16
    flips = {128: rows, 64: rows // 2, 32: rows // 4}[swizzle] % vectors
    lying = y.reshape(len(y), vectors, 4)
    in_order: NDArray[np.float32] = lying[rows[:, None], np.arange(vectors) ^ flips[:, None]]
    return in_order.reshape(y.shape)


def test_a_matrix_is_copied_as_its_description_says(device: CusimDevice) -> None:
    x = np.random.default_rng(5).standard_normal((50, 40)).astype(np.float32)
    y = _copied(device, x, matrix_map("x", FLOAT, 36, 50, 40, 24), (8, 30))
    expected = np.zeros((24, 32), np.float32)
    expected[:20, :28] = x[30:, 8:36]
    assert (_unswizzled(y, 128) == expected).all()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_tile_is_swizzled_and_has_zeros_outside(device: CusimDevice, swizzle: int) -> None:
    x = np.random.default_rng(swizzle).standard_normal((50, 40)).astype(np.float32)
    columns = swizzle // 4 or 8
    tensor = Map(dims=(40, 50), box=(columns, 24), swizzle=swizzle)
    padded = np.pad(x, ((8, 24), (0, 64)))
    for column, row in ((0, 0), (36, 30), (8, 45), (4, -3), (64, 0), (0, 60)):
        y = _copied(device, x, tensor, (column, row))
        expected = np.zeros((24, columns), np.float32)
        found = padded[8 + row : 32 + row, column : column + columns]
        expected[: len(found), : found.shape[1]] = found
        assert (_unswizzled(y, swizzle) == expected).all(), (column, row)


@pytest.mark.parametrize(
    ("stride", "pad", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 0, 1)]
)
def test_pixels_are_those_of_windows_across_rows_and_images(
    device: CusimDevice, stride: int, pad: int, dilation: int
) -> None:
    images, height, width, channels, taps = 2, 9, 7, 36, 3
    random = np.random.default_rng(stride)
    x = random.standard_normal((images, height, width, channels)).astype(np.float32)
    seen = window(
        (height, width),
        (taps, taps),
        strides=(stride, stride),
        dilations=(dilation, dilation),
        pads=(pad,) * 4,
    )
    tensor = pixels_map("x", Pixels(channels, channels), images, seen, 40)
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 60)))
    of_h, of_w = seen.output
    windows = [(n, h, w) for n in range(images) for h in range(of_h) for w in range(of_w)]
    for first, channel, s, r in ((0, 0, 0, 0), (5, 32, 2, 1), (len(windows) - 9, 0, 1, 2)):
        n, h, w = windows[first]
        at = (channel, w * stride - pad, h * stride - pad, n)
        y = _copied(device, x, tensor, at, (s * dilation, r * dilation))
        expected = np.zeros((40, 32), np.float32)
        for i, (n, h, w) in enumerate(windows[first : first + 40]):
            pixel = padded[n, h * stride + r * dilation, w * stride + s * dilation]
            expected[i] = pixel[channel : channel + 32]
        assert (_unswizzled(y, 128) == expected).all(), (first, channel, s, r)


_TILE = Map(dims=(64, 64), box=(32, 16), swizzle=128)
_PIXELS = Map(dims=(64, 64, 1), box=(32, 16), swizzle=128, im2col=True)

BROKEN = {
    "address": (replace(_TILE, shift=4), 0, r"address 0x\w+ is no multiple of 16"),
    "stride": (replace(_TILE, stride=264), 0, "stride of 264 bytes is no multiple of 16"),
    "row": (replace(_TILE, box=(30, 16)), 0, "rows of 120 bytes .* no multiple of 16"),
    "swizzle": (replace(_TILE, swizzle=64), 0, "rows of 128 bytes .* a swizzle of 64"),
    "rows": (replace(_TILE, box=(32, 257)), 0, "a tile of 32 x 257: too large"),
    "place": (_TILE, 1, "tile at 0x410, which is no multiple of 128"),
    "kind": (_PIXELS, 0, "another kind, or of 3 dimensions"),
    "outside": (replace(_TILE, dims=(64, 65)), 0, "bulk copy out of bounds"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_tensor_map_that_breaks_a_rule_is_a_fault(broken: str) -> None:
    tensor, shift, caught = BROKEN[broken]
    device = opened(PLAIN)
    x = np.zeros((64, 64), np.float32)
    with pytest.raises(FaultError, match=caught):
        _copied(device, x, tensor, (0, 60 if broken == "outside" else 0), shift=shift)
    device.close()


@pytest.mark.parametrize("arch", ["90a", "120"])
@pytest.mark.parametrize(
    ("name", "pixels", "opcode"),
    [
        ("sum_chunks", None, "UBLKCP"),
        ("copy_tensor", False, "UTMALDG.2D"),
        ("copy_tensor", True, "UTMALDG.4D.IM2COL"),
    ],
)
def test_a_compiler_takes_the_source(
    name: str, pixels: bool | None, opcode: str, arch: str, tmp_path: Path
) -> None:
    kernel = instantiation("bulk.cu", name, **({} if pixels is None else {"pixels": pixels}))
    for path in (*SOURCE_ROOT.glob("*.cuh"), KERNELS / kernel.source):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    code = disassemble(compile_kernel(kernel, arch, tmp_path / "cache", tmp_path))
    assert any(each.opcode.startswith(opcode) for each in code)
    assert any(each.opcode.startswith("SYNCS") for each in code)
