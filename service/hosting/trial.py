"""Tries a model's new version on the CPU in a separate process.

    files ── classifier ── self-test, every batch size ── L(n) ── recent images ─┬─ ReadModel
                                                                                 └─ their scores

L(n) is the time that a batch of n images takes. The process does all work that holds the GIL or
needs all cores. The server then only opens an ONNX Runtime session. The results of the process are
valid for this session, because the model file, the threads, the library and the machine are the
same. The process uses only the CPU. If another device may serve the model, the process only reads
the model, and the server runs the self-test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import Array, Engine, Image
from service.batching.latency import Latency, measure
from service.errors import ServiceError
from service.hosting.finding import ModelFile, ReadModel, decoder
from service.hosting.model_info import ModelInfo
from service.images.clip import Frames
from service.images.decode_pool import Decoding
from service.settings import Settings

# Seconds for which batches of every size are timed.
_MEASURE_S = 0.5


@dataclass(frozen=True)
class Trial:
    """Holds a new version and the results of trying it. The results are None if the version was
    only read."""

    read: ReadModel
    latency: Latency | None = None
    scores: Sequence[NDArray[np.float32] | None] | None = None  # None: it takes no such image


def try_file(
    file: ModelFile,
    settings: Settings,
    expectations: Sequence[str] | None,
    old: ModelInfo | None,
    images: Sequence[bytes | Frames | Array],
) -> Trial:
    """Read a new version, test it, and run it on images that the old version answered. Return the
    new version's scores and the time of each batch size. Raises ModelError."""
    # Imports ONNX, which the server does not need.
    from service.hosting.reading import (  # noqa: PLC0415
        load_unchanged,
        proved_on_cpu,
        read_as_it_is,
    )

    classifier, stamp = load_unchanged(file, settings, expectations)
    tried = proved_on_cpu(classifier, stamp, file, settings)
    if tried is None:
        _ = classifier.network.no_kernels or classifier.rewritten  # goes with it
        if classifier.given is not None:
            classifier.given.scores()  # so does it, instead of the file
        return Trial(read_as_it_is(classifier, stamp, file, settings))
    read, engine = tried
    meaning, info = read.preprocessing, read.info
    scores: list[NDArray[np.float32] | None] = []
    if old is not None:
        prepare = decoder(meaning, settings)
        for image in images:
            taken = prepared(old, info, prepare, image)
            scores.append(None if taken is None else engine.run([taken]).scores[0])
    latency = _measured(engine, np.zeros(meaning.image_shape, np.uint8))
    engine.close()
    return Trial(read, latency, scores)


def _measured(engine: Engine, blank: NDArray[np.uint8]) -> Latency:
    def seconds(n: int) -> float:
        started = perf_counter()
        engine.run([blank] * n)
        return perf_counter() - started

    return measure(seconds, engine.max_batch, budget_s=_MEASURE_S)


def prepared(
    old: ModelInfo,
    new: ModelInfo,
    prepare: Callable[[Any], Decoding],
    image: bytes | Frames | Array,
) -> Image | None:
    """Convert an image that the old version accepted to an input of the new version. Return None if
    the new version does not accept the image."""
    if isinstance(image, Frames) and not new.of_clips:
        return None
    if not isinstance(image, np.ndarray):
        try:
            return prepare(image).run()
        except ServiceError:
            return None
    if image.dtype == np.uint8:
        same = (old.image_shape, old.channels) == (new.image_shape, new.channels)
    else:
        same = (old.tensor, old.tensor_shape) == (new.tensor, new.tensor_shape)
    return image if same else None
