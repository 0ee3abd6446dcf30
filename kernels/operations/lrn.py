"""Launches kernels/src/lrn.cu, which computes local response normalisation."""

from kernels.device.launch import Launch, blocks_of_threads, instantiate, int32, launch
from kernels.layout.pixels import Pixels
from kernels.problems.precision import one_type


def lrn_launch(
    x: Pixels, y: Pixels, pixels: int, *, size: int, alpha: float, beta: float, bias: float
) -> Launch:
    """Return a launch of y = x / (bias + alpha / size · Σ x²)^beta for `pixels` pixels, with the
    operands x and y.

    As in ONNX's LRN, the sum for channel c runs from channel c - floor((size - 1) / 2) to channel c
    + ceil((size - 1) / 2). The sum leaves out channels that do not exist. Raises ValueError if x
    and y differ in channels, or if an index exceeds 32 bits.
    """
    if x.channels != y.channels:
        raise ValueError(f"y must have x's {x.channels} channels, got {y.channels}")
    before, after = (size - 1) // 2, size // 2
    elements = pixels * x.channels
    int32(pixels * max(x.pitch, y.pitch))
    return launch(
        instantiate("lrn.cu", "lrn", t=one_type(x.stored, y.stored).element),
        *blocks_of_threads(elements),
        x="x",
        y="y",
        elements=elements,
        channels=x.channels,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
        before=before,
        after=after,
        scale=alpha / size,
        beta=beta,
        bias=bias,
    )
