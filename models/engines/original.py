"""Runs a model file by ONNX Runtime alone, as a reference for Convoy's engines."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from models.classifier import Classifier
from models.engines.engine import Pixels
from models.errors import EngineError
from models.onnx_loader import expose
from models.preprocessing import normalised

_KINDS: Mapping[str, type[np.generic]] = {
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}


class Original:
    """Runs a file without Convoy's loader, in its own opset and nodes, one image at a time.

    Its types are its own too, but float16 is read as float32, which has all of its numbers: ONNX
    Runtime would round to float16 after every node, by more than Convoy's engines may err in
    float32.
    """

    def __init__(self, path: Path, classifier: Classifier) -> None:
        """Open a session. Raises EngineError where ONNX Runtime cannot open the file."""
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._classifier = classifier
        try:
            proto = onnx.load(path)
            outputs = [output.name for output in proto.graph.output]
            (scores,) = classifier.network.graph.outputs
            expose(proto, scores)
            halves = any(
                weight.data_type == TensorProto.FLOAT16 for weight in proto.graph.initializer
            )
            if halves:
                model: Path | bytes = _as_floats(proto)
            elif outputs == [output.name for output in proto.graph.output]:
                model = path
            else:
                model = proto.SerializeToString()
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own exceptions share no base class but this
            raise EngineError(f"ONNX Runtime cannot open {path}: {error}") from error

    def run(self, image: Pixels) -> NDArray[np.float32]:
        """Return the scores of one decoded image. Raises EngineError where ONNX Runtime fails."""
        (x,) = self._session.get_inputs()
        kind = _KINDS.get(x.type, np.float32)
        tensor = normalised(image[np.newaxis], self._classifier.preprocessing).astype(kind)
        try:
            (scores,) = self._session.run(None, {x.name: tensor})
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed on {self._classifier.name}: {error}") from error
        return np.ravel(scores).astype(np.float32)


def _as_floats(proto: ModelProto) -> bytes:
    # They take half a second to import, and few commands need them.
    import onnx_ir as ir  # noqa: PLC0415

    from models.onnx_loader.normalise import to_float32  # noqa: PLC0415

    model = ir.serde.deserialize_model(proto)
    to_float32(model)
    serialized: bytes = ir.serde.serialize_model(model).SerializeToString()
    return serialized
