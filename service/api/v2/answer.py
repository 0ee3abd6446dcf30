"""Inference answers of the V2 protocol: the scores, or the classification extension's strings."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from service.api.v2.request import InferRequest
from service.engine.ranking import ScoreRow, finite, largest
from service.hosting.pipeline import ModelInfo


class InferTensor(TypedDict, total=False):
    """A tensor with JSON `data`, or with `binary_data_size` bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any]


class InferAnswer(TypedDict, total=False):
    """The scores of n images, [n, classes], or their labels if the request asks for those."""

    id: str
    model_name: str
    model_version: str
    outputs: list[InferTensor]


def format_answer(
    asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo
) -> tuple[bytes, int | None]:
    """The answer's body, and the length of its JSON if a binary tensor follows.

    EngineFailedError: a score is NaN or infinite.
    """
    for row in rows:
        if row.ranking is None:
            finite(row.scores)
    output = InferTensor(name=info.scores)
    data: bytes | list[Any]
    if asked.classes is None:
        scores = np.stack([row.scores for row in rows]).astype("<f4", copy=False)
        output |= {"datatype": "FP32", "shape": list(scores.shape)}
        data = scores.tobytes() if asked.binary else scores.ravel().tolist()
    else:
        k = min(asked.classes, len(rows[0].scores))
        texts = [text for row in rows for text in _classification(row, k, info.labels)]
        output |= {"datatype": "BYTES", "shape": [len(rows), k]}
        data = b"".join(map(_element, texts)) if asked.binary else texts
    answer = InferAnswer(model_name=info.name, model_version=info.version, outputs=[output])
    if asked.id:
        answer["id"] = asked.id
    if not isinstance(data, bytes):
        output["data"] = data
        return msgspec.json.encode(answer), None
    output["parameters"] = {"binary_data_size": len(data)}
    head = msgspec.json.encode(answer)
    return head + data, len(head)


def _classification(row: ScoreRow, k: int, labels: Sequence[str]) -> list[str]:
    """The classification extension's "value:index:label" of the k largest scores."""
    texts = []
    for index in largest(row.scores.astype(np.float64), k).tolist():
        text = f"{row.scores[index]:f}:{index}"
        texts.append(f"{text}:{labels[index]}" if index < len(labels) else text)
    return texts


def _element(text: str) -> bytes:
    """An element of a binary BYTES tensor."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data
