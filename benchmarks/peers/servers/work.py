"""Does the same work in every peer: turns an image's bytes into the five likeliest classes.

Imports nothing of Convoy, which is not installed where this runs.
"""

import io
import json
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_BATCH = 8
TOP = 5

Answer = dict[str, list[dict[str, int | float]]]


@dataclass(frozen=True)
class Settings:
    """Says how a server is started: `choices` are its own options, all else is equal for all."""

    port: int
    work: str  # noop, or digits
    model: str  # an ONNX file that takes N×side×side×1 bytes
    side: int
    choices: dict[str, Any]


class Work(Protocol):
    """Runs a model in the two steps that servers separate, decoding and scoring."""

    def decode(self, image: Image.Image | bytes, /) -> NDArray[np.uint8]:
        """Return one image in the form that the model takes."""
        ...

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return the scores of up to 8 images."""
        ...


class NoOp:
    """Ignores its images, and finds 1000 classes equally likely."""

    def __init__(self) -> None:
        self._pixels = np.zeros((1, 1, 1), np.uint8)
        self._scores = np.zeros((MAX_BATCH, 1000), np.float32)

    def decode(self, _: Image.Image | bytes) -> NDArray[np.uint8]:
        """Return the same pixels every time."""
        return self._pixels

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return the same scores every time."""
        return self._scores[: len(pixels)]


class Digits:
    """Runs the digits model by ONNX Runtime with the session options that Convoy sets."""

    def __init__(self, model: str, side: int) -> None:
        import onnxruntime as ort  # noqa: PLC0415  only where it is needed

        options = ort.SessionOptions()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._side = side
        for n in range(1, MAX_BATCH + 1):
            self.scores([np.zeros((side, side, 1), np.uint8)] * n)

    def decode(self, image: Image.Image | bytes) -> NDArray[np.uint8]:
        """Return the image's central square in grey, with its shorter side resampled to `side`."""
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        side, full = self._side, opened.size
        resized = (side * full[0] // min(full), side * full[1] // min(full))
        draft = opened.draft(None, resized)
        shrink = full[0] / draft[1][2] if draft else 1.0
        grey = opened.convert("L")
        x, y = (full[axis] / resized[axis] / shrink for axis in (0, 1))
        left, top = (round((size - side) / 2) for size in resized)
        box = (left * x, top * y, (left + side) * x, (top + side) * y)
        small = grey.resize((side, side), Image.Resampling.BILINEAR, box=box)
        return np.asarray(small)[:, :, np.newaxis]

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return the scores that one run of the session computes."""
        (scores,) = self._session.run(None, {self._input: np.stack(pixels)})
        return np.reshape(scores, (len(pixels), -1)).astype(np.float32, copy=False)


def work_of(settings: Settings) -> Work:
    """Return the work that the settings name."""
    if settings.work == "noop":
        return NoOp()
    return Digits(settings.model, settings.side)


def settings_given() -> Settings:
    """Return the settings that this process was started with."""
    # An environment variable: some servers start the processes that do the work themselves.
    return Settings(**json.loads(os.environ["CONVOY_PEER"]))  # noqa: TID251


def answer(scores: NDArray[np.float32]) -> Answer:
    """Return the five likeliest classes by softmax, the likeliest first."""
    few = np.argpartition(scores, -TOP)[-TOP:]
    first = few[np.argsort(-scores[few])]
    weights = np.exp(scores - scores[first[0]])
    chosen = weights[first] / weights.sum()
    return {
        "predictions": [
            {"index": index, "probability": round(probability, 6)}
            for index, probability in zip(first.tolist(), chosen.tolist(), strict=True)
        ]
    }
