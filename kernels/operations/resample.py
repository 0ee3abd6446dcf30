"""Launches kernels/src/resample.cu, which resizes images, or pads images with copies of their own
pixels."""

from collections.abc import Sequence
from math import prod

from kernels.device.launch import Launch, blocks_of_threads, instantiate, int32, launch, struct
from kernels.layout.pixels import Pixels, vector_width
from kernels.problems.precision import one_type


def resample_launch(
    n: int, size: Sequence[int], tables: Sequence[tuple[int, int]], x: Pixels, y: Pixels
) -> Launch:
    """Return a launch that resamples n images of `size` (H, W or D, H, W).

    Each axis has a table. For each of the P output positions, it has T pairs of an input position
    and a factor (kernels/src/resample.cu). `tables` has the sizes (P, T) of these tables. The
    operands are x, y, and the tables heights, widths and, for volumes, depths. Raises ValueError if
    channels or types do not match, or if an index exceeds 32 bits.
    """
    if x.channels != y.channels:
        raise ValueError(f"y must have x's {x.channels} channels, got {y.channels}")
    missing = 3 - len(size)
    sizes = (*[(1, 1)] * missing, *tables)
    output = [size for size, _ in sizes]
    v = vector_width(x, y)
    vectors = x.channels // v
    steps = n * prod(output) * vectors
    int32(n * prod(size) * x.pitch)
    int32(n * prod(output) * y.pitch)
    return launch(
        instantiate("resample.cu", "resample", t=one_type(x.stored, y.stored).element, v=v),
        *blocks_of_threads(steps),
        x="x",
        depths=0 if missing else "depths",
        heights="heights",
        widths="widths",
        y="y",
        steps=steps,
        vectors=vectors,
        x_pitch=x.pitch,
        y_pitch=y.pitch,
        sizes=struct(
            "resample.cu",
            "Resampling",
            input=(*[1] * missing, *size),
            output=output,
            taps=[taps for _, taps in sizes],
        ),
    )
