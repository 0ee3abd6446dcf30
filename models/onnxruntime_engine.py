"""The engine for machines without a GPU: ONNX Runtime on the loader's normal form."""

import os

# ONNX Runtime's Linux wheels switch telemetry on when they are imported: they write an identifier
# into the home directory and send it away. Its own off switch is read at that moment only.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.classifier import Classifier
from models.engine import Batch, Images, Scores, batch_size
from models.errors import EngineError
from models.preprocessing import Layout, Preprocessing, normalisation

_PIXELS = "convoy/pixels"


class OnnxRuntimeEngine:
    """Runs a classifier on the CPU; `threads` = 0 leaves their number to ONNX Runtime.

    Normalisation runs inside the session, so `run` takes the decoder's bytes as they are.
    """

    def __init__(self, classifier: Classifier, *, max_batch: int, threads: int = 0) -> None:
        if max_batch < 1:
            raise EngineError(f"max_batch must be at least 1, got {max_batch}")
        p = classifier.preprocessing
        self._max_batch = max_batch
        self._classes = classifier.classes
        self._image_shape = p.image_shape
        self._gathered: Images | None = None
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that spin between two runs would take the cores from decoding.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = with_normalisation(classifier.network.proto, p)
        try:
            self._session: ort.InferenceSession | None = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own exceptions share no base class but this
            raise EngineError(f"ONNX Runtime cannot open {classifier.name}: {error}") from error

    @property
    def max_batch(self) -> int:
        """The largest N that `run` takes."""
        return self._max_batch

    @property
    def classes(self) -> int:
        """How many scores an image gets."""
        return self._classes

    @property
    def device(self) -> str:
        """Where it runs, for people."""
        return f"cpu (ONNX Runtime {ort.__version__})"

    def warm_up(self) -> None:
        """Run every N once."""
        for n in range(1, self._max_batch + 1):
            self.run(np.zeros((n, *self._image_shape), np.uint8))

    def run(self, images: Batch) -> Scores:
        """N of H×W×C uint8 → N×classes; EngineError for a shape the model does not take."""
        n = batch_size(images, self._image_shape, self._max_batch)
        if self._session is None:
            raise EngineError("the engine is closed")
        try:
            (scores,) = self._session.run(None, {_PIXELS: self._gather(images)})
        except Exception as error:  # as above
            raise EngineError(f"ONNX Runtime failed on a batch of {n}: {error}") from error
        return np.reshape(scores, (n, self._classes))

    def close(self) -> None:
        """Free the session."""
        self._session = None

    def _gather(self, images: Batch) -> Images:
        """The images as one array: several go into one that is used again."""
        if isinstance(images, np.ndarray):
            return images
        if len(images) == 1:
            return images[0][np.newaxis]
        if self._gathered is None:
            # Made once: a fresh megabyte costs a page fault for every 4 kB, each time.
            self._gathered = np.empty((self._max_batch, *self._image_shape), np.uint8)
        for place, image in zip(self._gathered, images, strict=False):
            place[...] = image
        return self._gathered[: len(images)]


def with_normalisation(model: ModelProto, preprocessing: Preprocessing) -> ModelProto:
    """`model` with uint8 pixels N×H×W×C as its input: x = pixel · multiplier + offset, then NCHW.

    `model` itself is left as it is.
    """
    multiplier, offset = normalisation(preprocessing)
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    image = graph.input[0].name
    transposed = preprocessing.layout is Layout.NCHW
    last = "convoy/shifted" if transposed else image
    nodes = [
        helper.make_node("Cast", [_PIXELS], ["convoy/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["convoy/float", "convoy/multiplier"], ["convoy/scaled"]),
        helper.make_node("Add", ["convoy/scaled", "convoy/offset"], [last]),
    ]
    if transposed:
        *spatial, channels = range(1, 1 + len(preprocessing.image_shape))  # axes
        order = [0, channels, *spatial]
        nodes.append(helper.make_node("Transpose", [last], [image], perm=order))
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.append(numpy_helper.from_array(multiplier, "convoy/multiplier"))
    graph.initializer.append(numpy_helper.from_array(offset, "convoy/offset"))
    shape = [None, *preprocessing.image_shape]
    graph.input[0].CopyFrom(helper.make_tensor_value_info(_PIXELS, TensorProto.UINT8, shape))
    return result
