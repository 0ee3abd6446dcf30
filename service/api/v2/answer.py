"""Inference answers of the V2 protocol: the scores, or the classification extension's strings."""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from service.api.v2.request import InferRequest
from service.engine.ranking import ScoreRow, finite, largest
from service.hosting.pipeline import ModelInfo

_LENGTH = struct.Struct("<I")


def format_answer(
    asked: InferRequest, rows: Sequence[ScoreRow], info: ModelInfo
) -> tuple[bytes, int | None]:
    """The answer's body, and how long its JSON is if a binary tensor follows.

    EngineFailedError where a score is NaN or infinite.
    """
    for row in rows:
        if row.ranking is None:
            finite(row.scores)
    if asked.classes is None:
        scores = np.stack([row.scores for row in rows]).astype("<f4", copy=False)
        output: dict[str, Any] = {
            "name": info.scores,
            "datatype": "FP32",
            "shape": list(scores.shape),
        }
        data: bytes | list[Any] = scores.tobytes() if asked.binary else scores.ravel().tolist()
    else:
        k = min(asked.classes, len(rows[0].scores))
        texts = [text for row in rows for text in _classification(row, k, info.labels)]
        output = {"name": info.scores, "datatype": "BYTES", "shape": [len(rows), k]}
        data = b"".join(map(_element, texts)) if asked.binary else texts
    if isinstance(data, bytes):
        output["parameters"] = {"binary_data_size": len(data)}
    else:
        output["data"] = data
    answer = {"model_name": info.name, "model_version": info.version, "outputs": [output]}
    head = msgspec.json.encode({"id": asked.id, **answer} if asked.id else answer)
    return (head + data, len(head)) if isinstance(data, bytes) else (head, None)


def _classification(row: ScoreRow, k: int, labels: Sequence[str]) -> list[str]:
    """The classification extension's "value:index:label", of the k largest."""
    texts = []
    for index in largest(row.scores.astype(np.float64), k).tolist():
        text = f"{row.scores[index]:f}:{index}"
        texts.append(f"{text}:{labels[index]}" if index < len(labels) else text)
    return texts


def _element(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data
