"""Defines the interface of engines, which run batches of images."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, unique
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels.device.device import Instantiation
from kernels.image.place import DeferredImage, Kind
from kernels.problems.precision import Precision
from models.errors import EngineError

# N×H×W×C, pixels 0..255 in the order the model's channels have; N×D×H×W×C for clips of D frames.
Pixels = NDArray[np.uint8]  # one image, H×W×C, in the model's size and order
Images = NDArray[np.uint8]
# One image as the network takes it, normalised: C×H×W, or H×W×C where that is the model's layout.
Tensor = NDArray[np.float32]
Array = Pixels | Tensor
# Others than arrays are arrays of pixels, too, which some engines make on their device.
Image = Array | DeferredImage
# As one array, or one array per image: an engine copies them anyway. The kinds may mix.
Batch = Images | Tensor | Sequence[Image]
Scores = NDArray[np.float32]  # N×classes, one row per image


Progress = Callable[[Collection[Instantiation]], Iterable[Instantiation]]
"""Wraps the kernels that are compiled, to show progress, like tqdm."""


class TopClasses(NamedTuple):
    """Holds the classes with the largest scores of each image, n×k, the largest first.

    Of equal scores the lower index comes first.
    """

    indices: NDArray[np.float32]  # whole numbers
    probabilities: NDArray[np.float32]  # all NaN where one of the image's scores is not finite


class Results(NamedTuple):
    """Holds the results of a batch, in arrays that later batches do not change."""

    scores: Scores
    ranked: TopClasses | None = None  # where the device ranks them; else that is left to the reader
    # The values asked for, by name: n×(one image's shape) each.
    inner: Mapping[str, NDArray[np.float32]] = MappingProxyType({})
    # For each image, why the device left its file to the CPU: its scores mean nothing then. 0 where
    # the device decoded it. None where the device decodes no files.
    flags: NDArray[np.int32] | None = None


class Engine(Protocol):
    """Runs a model on a device; one thread at a time may call `run`."""

    @property
    def max_batch(self) -> int:
        """Return the largest N that `run` accepts; warming up may lower it."""

    @property
    def classes(self) -> int:
        """Return the number of scores of an image."""

    @property
    def device(self) -> str:
        """Return the device and its software for display, such as "cpu (ONNX Runtime 1.23)"."""

    @property
    def precision(self) -> Precision:
        """Return the precision at which the engine computes convolutions."""

    @property
    def fallback_reason(self) -> str:
        """Return why `auto` chose the CPU and no GPU; empty if a GPU runs, or the CPU was asked
        for."""

    @property
    def layers(self) -> str:
        """Return how many layers of a quantized model are on integers, and the others' names;
        empty for other models."""

    @property
    def takes(self) -> Kind:
        """Return the highest kind of images that the device turns into pixels itself; this
        machine's CPU does the rest."""

    @property
    def on_cpu(self) -> bool:
        """Return whether this machine's CPU computes, so that decoding takes time from it wherever
        it is done."""

    def warm_up(self) -> "Engine":
        """Do the work that no request should wait for, and return the engine that will serve.

        An engine of `open_engine` runs every N here, and its scores are proved (prove.py). The
        engine returned is this one, or a warm replacement where this one failed and is closed.
        """

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the results of n images, 1 <= n <= max_batch, with those values in `inner`.

        The classifier's `inner` has the names that may be asked for. `images` may change once this
        returns. Raises EngineError where the device failed, DeviceLostError where it takes no more
        work.
        """

    def close(self) -> None:
        """Free the device's memory; the engine cannot be used any more."""


Proof = Callable[[Engine], int]
"""Returns the largest batch that a warm engine may be given. Raises EngineError if it may be given
none."""

Fallback = Callable[[EngineError], Engine]
"""Opens the engine that serves in place of one that failed with this error."""


def unproved(engine: Engine) -> int:
    """Return the engine's own largest batch: a proof that tries nothing."""
    return engine.max_batch


def batch_size(
    images: Batch, forms: Mapping["np.dtype[Any]", tuple[int, ...]], max_batch: int
) -> int:
    """Return N. Raises EngineError unless there are 1 to `max_batch` images of a shape in
    `forms`."""
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
    """Names the kinds of device that an engine may run on."""

    AUTO = "auto"  # a CUDA GPU where one answers and passes the self-test, else the CPU
    CUDA = "cuda"
    CPU = "cpu"
