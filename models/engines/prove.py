"""Checks, at the end of the warm-up, that an engine computes correct scores on its device.

warm up ─┬─ N = 1 ─ on a GPU: scores agree with ONNX Runtime ─── else: fallback or EngineError
         └─ N > 1 ─ an image scores as it does alone ────────── else: `max_batch` becomes 1
"""

import io
import logging
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from kernels.image.decoded import DecodedImage, Resize
from kernels.image.jpeg import JpegImage, read_jpeg
from kernels.image.place import Kind
from kernels.problems.interpolation import Interpolation
from models.classifier import Classifier
from models.engines.compare import tolerance
from models.engines.engine import Batch, Engine, Images, Pixels, Scores
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.tolerance import relative_error, repeat_tolerance, score_tolerance
from models.errors import DeviceLostError, EngineError
from models.preprocessing import normalised

if TYPE_CHECKING:  # it imports the planner, which only a GPU needs
    from models.lowering import Choose

_START_OF_SCAN = 0xDA

_log = logging.getLogger("convoy")


def check_images(n: int, image_shape: tuple[int, ...], seed: int = 0) -> Images:
    """Return n test images or clips, which consist of coarse squares of random colours.

    Each of them gets clearly different scores. Images of noise would all get nearly the same
    scores.
    """
    *spatial, channels = image_shape
    images = np.random.default_rng(seed).integers(0, 256, (n, *[4] * len(spatial), channels))
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    return images.astype(np.uint8)


def prove(
    engine: Engine, classifier: Classifier, choose: "Choose | None" = None, threads: int = 0
) -> int:
    """Check an engine's scores at every batch size, and return the largest batch size that it may
    use.

    An image must get the same scores, except for rounding, in every batch and at every index in a
    batch. This is also checked for images that the engine resizes or decodes. If a score differs,
    the result is 1, and a warning is logged. Otherwise, the result is `max_batch`.

    `choose` is passed for a GPU engine only. The scores of single images must then agree with the
    scores that ONNX Runtime computes on the CPU. Raises EngineError if they do not agree.
    """
    images = check_images(engine.max_batch, classifier.preprocessing.image_shape)
    files: list[JpegImage] = []
    if engine.takes is Kind.JPEG:
        pairs = [_as_file(image) for image in images]
        files, images = [file for file, _ in pairs], np.stack([pixels for _, pixels in pairs])
    tensors = normalised(images, classifier.preprocessing)
    judge, whose = engine, "the scores of each image alone"
    if choose:
        judge, whose = (
            OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=1, threads=threads),
            "ONNX Runtime's",
        )
    expected = np.concatenate([judge.run(image[np.newaxis]).scores for image in images])
    smallest = float(expected.min())
    if judge is not engine:
        judge.close()
    if choose:
        _prove_as_given(engine, classifier, choose)
    for n in range(1 if choose else 2, engine.max_batch + 1):
        allowed = repeat_tolerance(classifier, smallest)
        batches: list[tuple[Batch, Scores]] = [(images[-n:], expected[-n:])]
        if choose:
            allowed = score_tolerance(classifier, smallest, choose, n)
        if engine.takes >= Kind.DECODED:
            batches.append(([_twice_as_large(image) for image in images[-n:]], expected[-n:]))
        if files:
            batches.append((files[-n:], expected[-n:]))
        if choose or n == engine.max_batch:  # at every N, a GPU also has a plan for tensors
            batches.append((tensors[-n:][::-1], expected[-n:][::-1]))
        flaw = next(filter(None, (_flaw(engine, *batch, allowed, whose) for batch in batches)), "")
        if flaw and n == 1:
            what = f"the self-test of {classifier.name} on {engine.device}"
            raise EngineError(f"{what} fails at batch size 1: {flaw}")
        if flaw:
            what = f"{classifier.name} on {engine.device} runs one image at a time"
            _log.warning("%s: at batch size %d, %s", what, n, flaw)
            return 1
    if engine.max_batch > 1 and relative_error(np.roll(expected, 1, axis=0), expected) <= allowed:
        what = f"{classifier.name} gives {len(images)} different images the same scores"
        _log.warning("%s, so the self-test cannot show whether batches mix up images", what)
    return engine.max_batch


def _prove_as_given(engine: Engine, classifier: Classifier, choose: "Choose") -> None:
    """Raise EngineError unless the scores of a GPU agree with the scores that ONNX Runtime computes
    from the original file."""
    given = classifier.given
    expected = given.scores() if given is not None else ""
    if given is None or isinstance(expected, str):
        return
    allowed = tolerance(classifier, expected, choose, on_kernels=True)
    for tensor, scores in zip(given.tensors, expected, strict=True):
        whose = "ONNX Runtime's for the original file"
        flaw = _flaw(engine, tensor[np.newaxis], scores[np.newaxis], allowed, whose)
        if flaw:
            what = f"the self-test of {classifier.name} on {engine.device}"
            raise EngineError(f"{what} fails at batch size 1: {flaw}")


def _twice_as_large(pixels: Pixels) -> DecodedImage:
    """Return a decoded image of twice the width and height. When the device resizes it to the
    model's size, the result must equal `pixels`."""
    larger = pixels.repeat(2, axis=0).repeat(2, axis=1)
    return DecodedImage(larger, _to(pixels.shape, 2.0))


def _as_file(pixels: Pixels) -> tuple[JpegImage, Pixels]:
    """Return a JPEG file of approximately these pixels, and the pixels that libjpeg decodes from
    it."""
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(
        stream, "JPEG", quality=90
    )
    data = stream.getvalue()
    decoded = np.asarray(Image.open(stream)).reshape(pixels.shape)
    view, at, parts = memoryview(data), 2, [memoryview(data)[:2]]
    while data[at + 1] != _START_OF_SCAN:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        parts.append(view[at:end])
        at = end
    return JpegImage(read_jpeg([*parts, view[at:]]), 8, _to(pixels.shape, 1.0)), decoded


def _to(shape: tuple[int, ...], times: float) -> Resize:
    """Return the parameters that resize an image to the shape H×W×C. The image is `times` times as
    wide and as high as the result."""
    height, width, channels = shape
    return Resize(
        size=(width, height),
        box=(0.0, 0.0, times * width, times * height),
        crop=(0, 0, width, height),
        interpolation=Interpolation.BOX,
        x_reversed=False,
        y_reversed=False,
        transposed=False,
        frame=(width, height),
        channels=tuple(range(channels)),
        paper=(0,) * channels,
    )


def _flaw(engine: Engine, images: Batch, expected: Scores, allowed: float, whose: str) -> str:
    """Return a message about a wrong score in a batch, or "" if all scores are right."""
    try:
        results = engine.run(images)
        error = relative_error(results.scores, expected)
    except DeviceLostError:
        raise
    except EngineError as failure:
        return str(failure)
    if results.flags is not None and results.flags.any():
        return f"test files could not be decoded (flags {results.flags.tolist()})"
    if error <= allowed:  # False for NaN
        return ""
    return (
        f"scores differ from {whose} by {error:.1e} of the largest score; at most {allowed:.1e} is"
        " allowed"
    )
