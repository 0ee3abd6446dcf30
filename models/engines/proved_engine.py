"""A GPU's engine that serves only after a self-test on that GPU.

warm up ─ every N once, compared with ONNX Runtime ─┬─ within the tolerance ─ serve
                                                    └─ not, or it failed ─ fallback, or raise
"""

import logging
from collections.abc import Callable

import numpy as np

from models.classifier import Classifier
from models.engines.engine import Batch, Engine, Images, Ranked, Scores
from models.engines.onnxruntime_engine import OnnxRuntimeEngine
from models.engines.tolerance import relative_error, score_tolerance
from models.errors import EngineError
from models.lowering import Choose
from models.preprocessing import normalised

Fallback = Callable[[EngineError], Engine]
"""Opens the engine to serve in place of one that failed so."""

_log = logging.getLogger("convoy")


class ProvedEngine:
    """See the module, and Engine. `engine` is what serves; without a fallback, failures raise."""

    def __init__(
        self, engine: Engine, prove: Callable[[Engine], None], fallback: Fallback | None
    ) -> None:
        self.engine, self._prove, self._fallback = engine, prove, fallback

    @property
    def max_batch(self) -> int:
        """See Engine."""
        return self.engine.max_batch

    @property
    def classes(self) -> int:
        """See Engine."""
        return self.engine.classes

    @property
    def device(self) -> str:
        """See Engine; it changes where warming up falls back."""
        return self.engine.device

    @property
    def fallback_reason(self) -> str:
        """See Engine."""
        return self.engine.fallback_reason

    @property
    def ranked(self) -> Ranked | None:
        """See Engine."""
        return self.engine.ranked

    def warm_up(self) -> None:
        """Warm the engine up and prove it; where that fails, warm up the fallback."""
        try:
            self.engine.warm_up()
            self._prove(self.engine)
        except EngineError as failure:
            if self._fallback is None:
                raise
            try:
                self.engine.close()
            except EngineError as error:  # on a lost device; the CPU needs none
                _log.warning("the GPU's memory could not be freed: %s", error)
            self.engine = self._fallback(failure)
            self.engine.warm_up()

    def run(self, images: Batch) -> Scores:
        """See Engine."""
        return self.engine.run(images)

    def close(self) -> None:
        """See Engine."""
        self.engine.close()


def check_images(n: int, image_shape: tuple[int, ...], seed: int = 0) -> Images:
    """n images, or clips, of coarse squares: networks tell them apart, unlike noise."""
    *spatial, channels = image_shape
    images = np.random.default_rng(seed).integers(0, 256, (n, *[4] * len(spatial), channels))
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    return images.astype(np.uint8)


def prove(engine: Engine, classifier: Classifier, choose: Choose, threads: int = 0) -> None:
    """Run a warm engine on every N, and raise EngineError where its scores are wrong.

    Right is what ONNX Runtime says on the CPU, within what both may err by.
    """
    images = check_images(engine.max_batch, classifier.preprocessing.image_shape)
    tensors = normalised(images, classifier.preprocessing)
    reference = OnnxRuntimeEngine(classifier, max_batch=1, threads=threads)
    expected = np.concatenate([reference.run(image[np.newaxis]) for image in images])
    reference.close()
    for n in range(1, engine.max_batch + 1):
        bound = score_tolerance(classifier, expected[-n:].min(), choose, n)
        for batch in (images[-n:], tensors[-n:]):
            error = relative_error(engine.run(batch), expected[-n:])
            if error <= bound:  # not NaN
                continue
            raise EngineError(
                f"the self-test of {classifier.name} on {engine.device} fails at N = {n}: scores"
                f" differ from ONNX Runtime's by {error:.1e} of the largest, {bound:.1e} is allowed"
            )
