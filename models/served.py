"""Defines the data about a model that a server needs. The model file may have been read by another
process.

This module imports neither graphs nor readers of files, because the server does not need them in
that case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

_Array = NDArray[np.float32]

_SHOWN = 8  # the most names in a message


@dataclass(frozen=True, slots=True)
class Serving:
    """Holds the serving options that a model's own files set. They limit or replace the server's
    settings."""

    max_batch: int | None = None  # a limit in addition to --max-batch
    timeout_ms: float | None = None  # deadline of requests that set none or a later one
    priority: int = 0  # priority of requests that set none; 0: the default


@dataclass(frozen=True, slots=True)
class Inner:
    """Names a value inside a network that an engine can return in addition to the scores.

    The loaded graph and its ONNX form use the same name.
    """

    name: str
    shape: tuple[int, ...]  # for one image

    @property
    def size(self) -> int:
        """Return the length of the vectors that `as_vectors` computes from this value."""
        return self.shape[_axis(self.shape)]


@dataclass(frozen=True, slots=True)
class Absent:
    """Explains why a network has no embedding, no maps, or no value of a given name."""

    reason: str


UNSOUGHT = Absent("none was looked for")


def as_vectors(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return one vector per image from a value of n images. If the value has several positions, the
    vector is their average.

    The positions are H and W of C×H×W, or the T tokens of T×C.
    """
    axis = 1 + _axis(value.shape[1:])
    others = tuple(other for other in range(1, value.ndim) if other != axis)
    if prod(value.shape[other] for other in others) == 1:
        return value.reshape(len(value), -1)
    means: NDArray[np.float32] = value.mean(axis=others, dtype=np.float32)
    return means


def _axis(shape: tuple[int, ...]) -> int:
    """Return the index of the value's channel axis."""
    return 1 if len(shape) == 2 and shape[1] > 1 else 0


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """Computes class activation maps from the value `features` (C×H×W)."""

    features: Inner
    weight: _Array  # classes×C
    inside: _Array  # added at each position, one per class
    rectified: bool  # negative sums count as 0
    beside: _Array  # added to the mean over the positions, one per class

    def of(self, features: _Array, classes: Sequence[int]) -> _Array:
        """Return the maps (classes×H×W) of the given classes."""
        channels, *positions = features.shape
        kept = list(classes)
        maps = self.weight[kept] @ features.reshape(channels, -1) + self.inside[kept, np.newaxis]
        if self.rectified:
            maps = np.maximum(maps, 0)
        return maps.reshape(len(kept), *positions)


@dataclass(frozen=True, slots=True)
class Layers:
    """Holds the number of convolutions and fully connected layers that compute with integers.

    `in_float` has the names of the layers that compute in float.
    """

    on_integers: int
    in_float: tuple[str, ...]

    @override
    def __str__(self) -> str:
        count = self.on_integers + len(self.in_float)
        if not self.in_float:
            return f"{count} of {count} layers on integers"
        more = len(self.in_float) - _SHOWN
        names = ", ".join(self.in_float[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"{self.on_integers} of {count} layers on integers; in float: {names}"
