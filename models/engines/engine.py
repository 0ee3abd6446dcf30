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

# N×H×W×C, with pixels 0..255 in the model's order of channels. N×D×H×W×C for clips of D frames.
Pixels = NDArray[np.uint8]  # one image, H×W×C, in the model's size and order
Images = NDArray[np.uint8]
# One normalised image in the network's input format: C×H×W, or H×W×C if that is the model's layout.
Tensor = NDArray[np.float32]
Array = Pixels | Tensor
# A DeferredImage stands for pixels that some engines compute on their device.
Image = Array | DeferredImage
# One array, or one image after another: an engine copies them in any case. A batch may mix kinds.
Batch = Images | Tensor | Sequence[Image]
Scores = NDArray[np.float32]  # N×classes, one row per image


Progress = Callable[[Collection[Instantiation]], Iterable[Instantiation]]
"""Wraps the sequence of kernels to compile and shows progress, like tqdm."""


class TopClasses(NamedTuple):
    """Holds the classes with the largest scores of each image (n×k), in descending order of score.

    Among equal scores, the class with the lower index comes first.
    """

    indices: NDArray[np.float32]  # whole numbers
    probabilities: NDArray[np.float32]  # all NaN if one of the image's scores is not finite


class Results(NamedTuple):
    """Holds the results of a batch in arrays that later batches do not overwrite."""

    scores: Scores
    ranked: TopClasses | None = None  # None if the device does not rank them; the caller does
    # The requested values, by name: n×(shape for one image) each.
    inner: Mapping[str, NDArray[np.float32]] = MappingProxyType({})
    # For each image, the reason why the device left its file to the CPU; its scores then mean
    # nothing. 0 if the device decoded the file. None if the device decodes no files.
    flags: NDArray[np.int32] | None = None


class Engine(Protocol):
    """Runs a model on a device. One thread at a time may call `run`."""

    @property
    def max_batch(self) -> int:
        """Return the largest N that `run` accepts. Warming up may lower it."""

    @property
    def classes(self) -> int:
        """Return the number of scores per image."""

    @property
    def device(self) -> str:
        """Return the names of the device and its software for display, such as "cpu (ONNX Runtime
        1.23)"."""

    @property
    def precision(self) -> Precision:
        """Return the precision at which the engine computes convolutions."""

    @property
    def fallback_reason(self) -> str:
        """Return the reason why the engine runs on the CPU although the device choice was `auto`.

        The result is "" if the engine runs on a GPU, or if the CPU was requested.
        """

    @property
    def layers(self) -> str:
        """Return the number of layers that compute with integers, and the names of the other
        layers.

        The result is empty if the model is not quantized.
        """

    @property
    def takes(self) -> Kind:
        """Return the last kind of image, in the order of `Kind`, that the device accepts.

        This machine's CPU converts images of later kinds to pixels.
        """

    @property
    def on_cpu(self) -> bool:
        """Return whether the engine runs on this machine's CPU, and so competes with image
        decoding."""

    def warm_up(self) -> "Engine":
        """Prepare the engine for its first request, and return the engine to use from now on.

        An engine from `open_engine` runs batches of every size and checks its scores (prove.py). If
        this succeeds, the result is this engine. Otherwise, this engine is closed, and the result
        is another engine that has been warmed up.
        """

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the results of n images (1 <= n <= max_batch). The caller may overwrite `images`
        afterwards.

        The results include the values inside the network that `inner` names. The classifier's
        `inner` lists the names that are possible. Raises EngineError if the device fails, and
        DeviceLostError if the device accepts no more work.
        """

    def close(self) -> None:
        """Free the device's memory. The engine cannot be used afterwards."""


Proof = Callable[[Engine], int]
"""Checks an engine's scores, and returns the largest batch size that it may use. Raises EngineError
if the engine may not be used at all."""

Fallback = Callable[[EngineError], Engine]
"""Opens a replacement for an engine that failed with this error."""


def unproved(engine: Engine) -> int:
    """Return the engine's largest batch size without a check of its scores. This is a `Proof`."""
    return engine.max_batch


def batch_size(
    images: Batch, forms: Mapping["np.dtype[Any]", tuple[int, ...]], max_batch: int
) -> int:
    """Return the number of images. Raises EngineError unless there are 1 to `max_batch` images,
    each with one of the types and shapes in `forms`."""
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
    """Names the kinds of device on which an engine can run."""

    AUTO = "auto"  # a CUDA GPU if one is found and passes the self-test, else the CPU
    CUDA = "cuda"
    CPU = "cpu"
