"""Runs a model file with ONNX Runtime alone, as a reference for Convoy's engines."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from models.as_given import GivenModel
from models.classifier import Classifier
from models.engines.engine import Pixels
from models.errors import EngineError
from models.onnx_loader import expose
from models.preprocessing import normalised


class Original:
    """Runs a model file with its original opset, nodes and types, one image at a time. Convoy's
    loader is not used.

    The only change is the conversion of float16 to float32, which represents every float16 number
    exactly. Otherwise, ONNX Runtime would round to float16 after every node. The resulting error
    would be larger than the tolerance for Convoy's float32 engines.
    """

    def __init__(self, path: Path, classifier: Classifier) -> None:
        """Open a session. Raises EngineError if ONNX Runtime cannot open the file."""
        self._classifier = classifier
        try:
            proto = onnx.load(path)
        except Exception as error:  # an error of protobuf or of the file system
            raise EngineError(f"{path} cannot be read: {error}") from error
        expose(proto, classifier.network.graph.outputs[0])
        self._scores = proto.graph.output[0].name
        try:
            self._model = GivenModel(proto, [self._scores])
        except EngineError as error:
            raise EngineError(f"{path}: {error}") from error

    def run(self, image: Pixels) -> NDArray[np.float32]:
        """Return the scores of one decoded image. Raises EngineError if ONNX Runtime fails."""
        (tensor,) = normalised(image[np.newaxis], self._classifier.preprocessing)
        try:
            return self._model.run(tensor)[self._scores]
        except EngineError as error:
            raise EngineError(f"{self._classifier.name}: {error}") from error
