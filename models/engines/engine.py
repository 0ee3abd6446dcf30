"""The protocol of engines, which run batches of images."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, unique
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.problems.precision import Precision
from models.errors import EngineError

# N×H×W×C, pixels 0..255 in the order the model's channels have; N×D×H×W×C for clips of D frames.
Pixels = NDArray[np.uint8]  # one image, H×W×C, in the model's size and order
Images = NDArray[np.uint8]
# One image as the network takes it, normalised: C×H×W, or H×W×C where that is the model's layout.
Tensor = NDArray[np.float32]
Image = Pixels | Tensor
# As one array, or one array per image: an engine copies them anyway. Pixels and tensors may mix.
Batch = Images | Tensor | Sequence[Image]
Scores = NDArray[np.float32]  # N×classes, one row an image


class TopClasses(NamedTuple):
    """The largest classes of each image, n×k: the largest first, of equals the lower index."""

    indices: NDArray[np.float32]  # whole numbers
    probabilities: NDArray[np.float32]  # all NaN where one of the image's scores is not finite


class Results(NamedTuple):
    """Holds what a batch gave, in arrays that later batches do not change."""

    scores: Scores
    ranked: TopClasses | None = None  # where the device ranks them; else that is left to the reader


class Engine(Protocol):
    """A model on a device; one thread at a time may call `run`."""

    @property
    def max_batch(self) -> int:
        """Return the largest N that `run` takes; warming up may lower it."""

    @property
    def classes(self) -> int:
        """Return how many scores an image gets."""

    @property
    def device(self) -> str:
        """Return where it runs, with what in parentheses, for display: "cpu (ONNX Runtime
        1.23)".
        """

    @property
    def precision(self) -> Precision:
        """Return how exactly it computes convolutions."""

    @property
    def fallback_reason(self) -> str:
        """Return why it runs on the CPU though `auto` looked for a GPU; empty where it was asked
        to.
        """

    def warm_up(self) -> "Engine":
        """Run what no request is to pay for, and return the engine that serves.

        Those of `open_engine` run every N and prove it. That is this engine, or the one that takes
        its place where it failed, warm too; this one is closed then.
        """

    def run(self, images: Batch) -> Results:
        """Compute the scores of n images, 1 <= n <= max_batch.

        `images` may change once this returns. EngineError where the device failed,
        DeviceLostError where it takes no more work.
        """

    def close(self) -> None:
        """Free the device's memory; the engine is not used again."""


Proof = Callable[[Engine], int]
"""Returns the largest batch that a warm engine may be given; EngineError: none may."""

Fallback = Callable[[EngineError], Engine]
"""Opens the engine that serves in place of one that failed so."""


def unproved(engine: Engine) -> int:
    """Return the engine's own largest batch: the proof where none is asked for."""
    return engine.max_batch


def batch_size(
    images: Batch, forms: Mapping["np.dtype[Any]", tuple[int, ...]], max_batch: int
) -> int:
    """N, where `images` are 1 to `max_batch` of a model's forms, or EngineError."""
    n = len(images)
    if not 1 <= n <= max_batch or any(image.shape != forms.get(image.dtype) for image in images):
        got = ", ".join(sorted({f"{image.dtype}{image.shape}" for image in images}))
        raise EngineError(
            f"got {n} images of {got or 'unknown shape'}; the engine takes 1 to {max_batch}"
            f" images of {' or '.join(f'{dtype}{shape}' for dtype, shape in forms.items())}"
        )
    return n


@unique
class DeviceKind(Enum):
    """The devices that an engine may run on."""

    AUTO = "auto"  # a CUDA GPU where one answers and passes the self-test, else the CPU
    CUDA = "cuda"
    CPU = "cpu"
