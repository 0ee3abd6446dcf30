"""Makes the answer to an inference request of the V2 protocol, in whatever form it is sent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.api.v2.inference import InferRequest
from service.engine.ranking import ScoreRow, finite, largest
from service.errors import EngineFailedError, InvalidTensorError
from service.hosting.pipeline import ModelInfo


class Output(NamedTuple):
    """Holds the one output of an answer: the scores, or labels if the request asks for those."""

    datatype: str
    shape: list[int]
    elements: NDArray[np.float32] | list[str]  # flat
    written: Mapping[str, str | int] = {}  # parameters that say where in shared memory they are

    def binary(self) -> bytes:
        """Return the elements as a binary tensor has them."""
        if isinstance(self.elements, np.ndarray):
            return self.elements.astype("<f4", copy=False).tobytes()
        return b"".join(
            len(each).to_bytes(4, "little") + each for each in map(str.encode, self.elements)
        )


def output_of(asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo) -> Output:
    """Return what a request asks for, written to shared memory if the request has it there.

    Raises what `_output` and `Place.write` raise.
    """
    output = _output(asked, rows, info)
    if asked.place is None:
        return output
    data = output.binary()
    asked.place.write(data)
    parameters: dict[str, str | int] = {
        "shared_memory_region": asked.place.region.status["name"],
        "shared_memory_byte_size": len(data),
    }
    if asked.place.offset:
        parameters["shared_memory_offset"] = asked.place.offset
    return output._replace(written=parameters)


def _output(asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo) -> Output:
    """Return what a request asks for of its images' scores.

    A score is NaN or infinite: InvalidTensorError where the client sent what the engine got,
    otherwise EngineFailedError.
    """
    for number, row in enumerate(rows, 1):
        if not row.is_known_finite:
            _check_finite(row, number, asked, info)
    if asked.classes is None:
        shape = [len(rows), len(rows[0].scores)]
        return Output("FP32", shape, np.concatenate([row.scores for row in rows]))
    k = min(asked.classes, len(rows[0].scores))
    texts = [text for row in rows for text in _classification(row, k, info.labels)]
    return Output("BYTES", [len(rows), k], texts)


def _check_finite(row: ScoreRow, number: int, asked: InferRequest, info: ModelInfo) -> None:
    try:
        finite(row.scores)
    except EngineFailedError as error:
        if asked.images is None or asked.images.dtype != np.float32:
            raise
        raise InvalidTensorError(
            f"the model's scores are not finite numbers for tensor {number} of input "
            f"'{info.tensor}': its values are too large for the model; normalise them as it expects"
        ) from error


def _classification(row: ScoreRow, k: int, labels: Sequence[str]) -> list[str]:
    """Return "value:index:label" for the k largest scores, as the classification extension
    has it.
    """
    texts = []
    for index in largest(row.scores.astype(np.float64), k).tolist():
        text = f"{row.scores[index]:f}:{index}"
        texts.append(f"{text}:{labels[index]}" if index < len(labels) else text)
    return texts
