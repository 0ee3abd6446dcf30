"""Creates the outputs of an answer to a V2 inference request, for HTTP and gRPC."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.api.v2.interpretation import InferRequest, WantedOutput
from service.engine.ranking import ScoreRow, finite, largest, probabilities
from service.errors import EngineFailedError, InvalidTensorError
from service.hosting.model_info import ModelInfo
from service.hosting.pipeline import Pipeline
from service.hosting.regions import RegionPart
from service.hosting.vectors import embedding, embeddings_of
from service.http.responses import JSON_NUMBER_BYTES

# The most bytes of an answer without its elements, and of the part "value:index:" of an element:
# `%f` writes the largest float32 with many digits.
_HEAD_BYTES, _LINE_BYTES = 4096, 64

# The most numbers that are copied at once: NumPy holds the interpreter's lock for 10 ms per 38 MB.
_PIECE = 2**18


class Output(NamedTuple):
    """One output of an answer: scores, labels or embeddings."""

    name: str
    datatype: str
    shape: list[int]
    elements: NDArray[np.float32] | list[str]  # flat
    as_bytes: bool  # a binary tensor is wanted
    written: Mapping[str, str | int] = {}  # parameters that say where in shared memory they are

    def binary(self) -> list[bytes]:
        """Return the elements as the bytes of a binary tensor, in pieces."""
        elements = self.elements
        if isinstance(elements, np.ndarray):
            each = (elements[at : at + _PIECE] for at in range(0, len(elements), _PIECE))
            return [piece.astype("<f4", copy=False).tobytes() for piece in each]
        texts = map(str.encode, elements)
        return [b"".join(len(text).to_bytes(4, "little") + text for text in texts)]


def bytes_of(asked: InferRequest, rows: Sequence[ScoreRow], pipeline: Pipeline) -> int:
    """Return an upper limit on the bytes of an answer, in JSON or in protobuf."""
    count, info = _HEAD_BYTES + 6 * len(asked.id), pipeline.info
    for wanted in asked.outputs:
        classes = len(rows[0].scores)
        if wanted.classes is not None:
            k = min(wanted.classes, max(classes, 2))
            count += len(rows) * k * (_LINE_BYTES + pipeline.longest_label)
        else:
            size = classes if wanted.name == info.scores else embedding(info).size
            each = 4 if wanted.binary else JSON_NUMBER_BYTES
            count += len(rows) * size * each
    return count


def outputs_of(asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo) -> Sequence[Output]:
    """Return the outputs that a request asks for. Write outputs to shared memory if the request
    asks for that.

    Raises EngineFailedError if an image has a score that is NaN or infinite. Raises
    InvalidTensorError if a float tensor from the client has such a score. Such a score is allowed
    in two cases: if the tensor's output is binary, as in Triton, or if the tensor itself contains
    NaN or infinite numbers. Also raises the errors of `embeddings_of` and `RegionPart.write`.
    """
    unsure = [(number, row) for number, row in enumerate(rows, 1) if not row.is_known_finite]
    if unsure and not _may_be_any(asked, info):
        for number, row in unsure:
            _check_finite(row, number, asked, info)
    return [_written(_output(wanted, rows, info), wanted.shared) for wanted in asked.outputs]


def _written(output: Output, part: RegionPart | None) -> Output:
    if part is None:
        return output
    data = b"".join(output.binary())
    part.write(data)
    parameters: dict[str, str | int] = {
        "shared_memory_region": part.region.status["name"],
        "shared_memory_byte_size": len(data),
    }
    if part.offset:
        parameters["shared_memory_offset"] = part.offset
    return output._replace(written=parameters)


def _output(wanted: WantedOutput, rows: Sequence[ScoreRow], info: ModelInfo) -> Output:
    name, binary = wanted.name, wanted.binary
    if name != info.scores:
        vectors = embeddings_of(rows, info)
        return Output(name, "FP32", list(vectors.shape), vectors.ravel(), binary)
    if wanted.classes is None:
        shape = [len(rows), len(rows[0].scores)]
        return Output(name, "FP32", shape, np.concatenate([row.scores for row in rows]), binary)
    values = [_ranked_values(row, info) for row in rows]
    k = min(wanted.classes, len(values[0]))
    texts = [text for each in values for text in _classification(each, k, info.labels)]
    return Output(name, "BYTES", [len(rows), k], texts, binary)


def _may_be_any(asked: InferRequest, info: ModelInfo) -> bool:
    """Return whether the outputs may contain scores that are NaN or infinite. The docstring of
    `outputs_of` states the rule."""
    own = asked.images
    if own is None or own.dtype != np.float32:
        return False
    return all(
        output.name != info.scores
        or (
            output.classes is None
            and (output.binary or output.shared is not None or not np.isfinite(own).all())
        )
        for output in asked.outputs
    )


def _check_finite(row: ScoreRow, number: int, asked: InferRequest, info: ModelInfo) -> None:
    try:
        finite(row.scores)
    except EngineFailedError as error:
        if asked.images is None or asked.images.dtype != np.float32:
            raise
        raise InvalidTensorError(
            f"the model's scores for tensor {number} of input '{info.tensor}' are not finite"
            " numbers: the tensor's values are too large; normalise them as the model expects"
        ) from error


def _ranked_values(row: ScoreRow, info: ModelInfo) -> NDArray[np.floating]:
    """Return the scores, one per class. If the model has a single score for yes or no, return the
    probabilities of no and yes."""
    return row.scores if len(row.scores) > 1 else probabilities(row.scores, info.output)


def _classification(values: NDArray[np.floating], k: int, labels: Sequence[str]) -> list[str]:
    """Return the k largest values as texts "value:index:label", as the classification extension
    defines."""
    texts = []
    for index in largest(values.astype(np.float64), k).tolist():
        text = f"{values[index]:f}:{index}"
        texts.append(f"{text}:{labels[index]}" if index < len(labels) else text)
    return texts
