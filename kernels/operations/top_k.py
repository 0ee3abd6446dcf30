"""Launch of kernels/src/top_k.cu: what the host gets of each image."""

from dataclasses import dataclass

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, int32, launch

_MOST_K, _MOST_WARPS = 16, 32
_EXACT = 1 << 24
"""Whole numbers up to this are floats."""


@dataclass(frozen=True, slots=True)
class Results:
    """A batch's results, floats: for each of n images scores, k indices, k probabilities, a 1."""

    n: int
    classes: int

    @property
    def k(self) -> int:
        """How many of the largest classes there are."""
        return min(_MOST_K, self.classes)

    @property
    def pitch(self) -> int:
        """Floats of an image."""
        return self.classes + 2 * self.k + 1

    @property
    def nbytes(self) -> int:
        """Of the batch."""
        return 4 * self.n * self.pitch


def top_k_launch(results: Results, x_pitch: int, *, logits: bool) -> Launch:
    """Scores, n rows `x_pitch` floats apart, to results: operands x, y.

    Probabilities are the scores themselves, or softmax of them where they are `logits`. Raises
    ValueError.
    """
    if results.classes > _EXACT:
        raise ValueError(f"{results.classes} classes; indices are floats, exact up to {_EXACT}")
    int32(results.n * max(x_pitch, results.pitch))
    warps = min(_MOST_WARPS, 1 << (-(-results.classes // 32) - 1).bit_length())
    template: dict[str, TemplateArgument] = {"logits": logits, "threads": 32 * warps}
    return launch(
        instantiate("top_k.cu", "top_k", **template),
        (results.n, 1, 1),
        (32 * warps, 1, 1),
        x="x",
        y="y",
        classes=results.classes,
        x_pitch=x_pitch,
        k=results.k,
    )
