"""A model file as ONNX Runtime alone runs it: what Convoy's engines are compared with."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.classifier import Classifier
from models.engines.engine import Pixels
from models.errors import EngineError
from models.preprocessing import normalised


class Original:
    """The file without Convoy's loader: its own opset, types and nodes; one image at a time."""

    def __init__(self, path: Path, classifier: Classifier) -> None:
        """EngineError: ONNX Runtime cannot open the file."""
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._classifier = classifier
        try:
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own exceptions share no base class but this
            raise EngineError(f"ONNX Runtime cannot open {path}: {error}") from error

    def run(self, image: Pixels) -> NDArray[np.float32]:
        """The scores of one image, as the decoder gives it; EngineError."""
        (x,) = self._session.get_inputs()
        kind = np.float16 if x.type == "tensor(float16)" else np.float32
        tensor = normalised(image[np.newaxis], self._classifier.preprocessing).astype(kind)
        try:
            (scores,) = self._session.run(None, {x.name: tensor})
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed on {self._classifier.name}: {error}") from error
        return np.ravel(scores).astype(np.float32)
