"""Defines the sliding window of convolution and pooling, with its positions and its extent."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Window:
    """A window over 2 (H, W) or 3 (D, H, W) spatial axes. Every tuple has one entry per axis.

    `output` cannot be derived from the other fields: with ONNX's `ceil_mode`, the last window of a
    pool may start inside the padded input and end outside.
    """

    input: tuple[int, ...]  # H, W or D, H, W
    kernel: tuple[int, ...]  # R, S or T, R, S
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output: tuple[int, ...]  # P, Q or O, P, Q

    def __post_init__(self) -> None:
        axes = len(self.input)
        if axes not in (2, 3):
            raise ValueError(f"a window needs 2 or 3 spatial axes, got {axes}: {self.input}")
        for name in ("kernel", "strides", "dilations", "pads_begin", "pads_end", "output"):
            entries = getattr(self, name)
            if len(entries) != axes:
                raise ValueError(
                    f"{name}={entries} needs {axes} entries, one per axis of input={self.input}"
                )
            least = 0 if name.startswith("pads") else 1
            if min(entries) < least:
                raise ValueError(f"every entry of {name}={entries} must be at least {least}")

    @property
    def extent(self) -> tuple[int, ...]:
        """Return how many input positions a window spans along each axis: dilation · (kernel - 1) +
        1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def kernel_volume(self) -> int:
        """Return the number of positions of a kernel: R·S, or T·R·S in 3-D."""
        return prod(self.kernel)

    @property
    def output_volume(self) -> int:
        """Return the number of output positions of one image: P·Q, or O·P·Q in 3-D."""
        return prod(self.output)

    @property
    def is_pointwise(self) -> bool:
        """Return whether every output position reads only one input, the input at the same
        position."""
        return self.kernel_volume == 1 and set(self.strides) == {1} and self.input == self.output


def by_axis(sizes: tuple[int, ...]) -> str:
    """Return one number per axis as text, such as "3x3"."""
    return "x".join(map(str, sizes))
