"""Defines the pooling problem: the maximum or the average over a window, in each channel."""

from dataclasses import dataclass
from enum import Enum, unique

from kernels.problems.window import Window


@unique
class PoolKind(Enum):
    """Names the function that reduces a window to one number."""

    MAX = "max"  # padding never wins: it counts as -inf
    AVERAGE = "average"  # divided by the positions inside the image
    AVERAGE_PADDED = "average_padded"  # by those inside the padded image (count_include_pad)


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """The pooling of one image's C channels, C×H×W → C×P×Q (in 3-D C×D×H×W → C×O×P×Q)."""

    kind: PoolKind
    c: int
    window: Window
