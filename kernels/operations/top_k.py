"""Launches kernels/src/top_k.cu, which finds the k classes with the largest scores of each image,
and writes them for the host."""

from dataclasses import dataclass
from enum import Enum, unique

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, int32, launch
from kernels.layout.strided import StridedTensor

_MOST_K, _MOST_WARPS = 16, 32
_EXACT = 1 << 24
"""The largest number up to which floats represent all whole numbers."""


@unique
class ScoreKind(Enum):
    """Lists the ways to compute the scores and probabilities of the classes from the network's
    output x."""

    PROBABILITIES = "x"
    LOGITS = "x; the k largest get a probability by softmax"
    SOFTMAX = "softmax of x, which are probabilities"


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """Describes the layout of a batch's results, which are floats. For each image, these are the
    scores of all classes, the indices of the k best classes, and the probabilities of these
    classes. The last number is the image's flags plus 1. It is at least 1, which shows that the
    results are written."""

    n: int
    classes: int

    @property
    def k(self) -> int:
        """Return how many of the best classes the kernel reports."""
        return min(_MOST_K, self.classes)

    @property
    def pitch(self) -> int:
        """Return the number of floats of one image's results."""
        return self.classes + 2 * self.k + 1

    @property
    def nbytes(self) -> int:
        """Return the bytes of the batch's results."""
        return 4 * self.n * self.pitch


def top_k_launch(x: StridedTensor, kind: ScoreKind, *, has_flags: bool = False) -> Launch:
    """Return a launch that finds the k classes with the largest scores of each image. Each row of x
    has the scores of one image. The operands are x, flags (optional, one int32 per image), and y
    with the layout of ResultLayout. Raises ValueError if a row is not contiguous, if there are too
    many classes, or if an index exceeds 32 bits."""
    n, classes = x.shape
    results = ResultLayout(n, classes)
    if classes > _EXACT:
        raise ValueError(
            f"{classes} classes are too many; at most {_EXACT} are supported, because a float32"
            " cannot hold every larger index exactly"
        )
    if x.strides[1] != 1:
        raise ValueError(f"an image's scores must be contiguous, got a stride of {x.strides[1]}")
    int32(n * max(x.strides[0], results.pitch))
    warps = min(_MOST_WARPS, 1 << (-(-classes // 32) - 1).bit_length())
    template: dict[str, TemplateArgument] = {
        "x": x.stored.element,
        "kind": f"ScoreKind::{kind.name}",
        "threads": 32 * warps,
    }
    return launch(
        instantiate("top_k.cu", "top_k", **template),
        (n, 1, 1),
        (32 * warps, 1, 1),
        x="x",
        flags="flags" if has_flags else 0,
        y="y",
        classes=classes,
        x_pitch=x.strides[0],
        k=results.k,
        scale=x.stored.scale,
        zero=x.stored.zero_point,
    )
