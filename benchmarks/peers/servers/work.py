"""Classifies images in every server that Convoy is compared with: converts an image's bytes to the
five likeliest classes. This module imports nothing of Convoy, because Convoy is not installed in
these servers' environments."""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_BATCH = 8
TOP = 5

Answer = dict[str, list[dict[str, int | float]]]


@dataclass(frozen=True)
class Settings:
    """Holds the settings with which a server starts. `choices` are the options of this particular
    server. All other fields are the same for all servers."""

    port: int
    work: str  # "noop", or a work with a model
    model: str  # an ONNX file whose input is N×side×side×C bytes
    resize: int  # the image's shorter side, before a central square is cut out
    side: int
    channels: str  # grey, rgb or bgr
    logits: bool  # whether softmax converts the scores to probabilities
    threads: int  # of ONNX Runtime, for one image
    facts: str  # the folder for the processes' reports
    choices: dict[str, Any]


class Work(Protocol):
    """Decodes images, computes their scores and ranks the classes. Servers call the three methods
    separately."""

    def decode(self, image: Image.Image | bytes, /) -> NDArray[np.uint8]:
        """Decode an image file. Return the model's input for this image."""
        ...

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return the scores of up to 8 decoded images."""
        ...

    def answer(self, scores: NDArray[np.float32]) -> Answer:
        """Return the five likeliest classes of one image."""
        ...


class NoOp:
    """Ignores the images, and gives all 1000 classes the same score."""

    def __init__(self) -> None:
        self._pixels = np.zeros((1, 1, 1), np.uint8)
        self._scores = np.zeros((MAX_BATCH, 1000), np.float32)

    def decode(self, _: Image.Image | bytes) -> NDArray[np.uint8]:
        """Return constant pixels, without decoding the image."""
        return self._pixels

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return constant scores, without running a model."""
        return self._scores[: len(pixels)]

    def answer(self, scores: NDArray[np.float32]) -> Answer:
        """Return the five likeliest classes by softmax."""
        return answer(scores, logits=True)


class Model:
    """Runs a model in ONNX Runtime with the same session options as Convoy."""

    def __init__(self, settings: Settings) -> None:
        telemetry = os.environ.get("ORT_DISABLE_TELEMETRY", "")  # noqa: TID251
        import onnxruntime as ort  # noqa: PLC0415  only where it is needed

        options = ort.SessionOptions()
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(settings.model, options, providers=providers)
        threads = self._session.get_session_options().intra_op_num_threads
        tell(settings, {"telemetry": telemetry, "threads": str(threads)})
        self._input = self._session.get_inputs()[0].name
        self._given = settings
        self._mode = "L" if settings.channels == "grey" else "RGB"
        shape = (settings.side, settings.side, 1 if self._mode == "L" else 3)
        for n in range(1, MAX_BATCH + 1):
            self.scores([np.zeros(shape, np.uint8)] * n)

    def decode(self, image: Image.Image | bytes) -> NDArray[np.uint8]:
        """Decode the image, and resize it so that its shorter side has `resize` pixels. Return the
        square at its centre."""
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        shorter, side, full = self._given.resize, self._given.side, opened.size
        resized = (shorter * full[0] // min(full), shorter * full[1] // min(full))
        draft = opened.draft(None, resized)
        shrink = full[0] / draft[1][2] if draft else 1.0
        converted = opened.convert(self._mode)
        x, y = (full[axis] / resized[axis] / shrink for axis in (0, 1))
        left, top = (round((size - side) / 2) for size in resized)
        box = (left * x, top * y, (left + side) * x, (top + side) * y)
        small = np.asarray(converted.resize((side, side), Image.Resampling.BILINEAR, box=box))
        if self._mode == "L":
            return small[:, :, np.newaxis]
        return small[:, :, ::-1] if self._given.channels == "bgr" else small

    def scores(self, pixels: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Compute the scores of all images in one run of the ONNX Runtime session."""
        (scores,) = self._session.run(None, {self._input: np.stack(pixels)})
        return np.reshape(scores, (len(pixels), -1)).astype(np.float32, copy=False)

    def answer(self, scores: NDArray[np.float32]) -> Answer:
        """Return the five likeliest classes."""
        return answer(scores, logits=self._given.logits)


def tell(settings: Settings, facts: dict[str, str]) -> None:
    """Write `facts` about this process, such as its number of threads, to a file.
    benchmarks/peers/fairness.py reads the file to check that the comparison is fair."""
    file = Path(settings.facts) / f"{os.getpid()}.json"
    file.write_text(json.dumps(facts))


def work_of(settings: Settings) -> Work:
    """Return an object that decodes images and computes scores as the settings require."""
    return NoOp() if settings.work == "noop" else Model(settings)


def settings_given() -> Settings:
    """Return the settings that the parent process passed in an environment variable."""
    # In an environment variable, because some servers start the processes that classify.
    return Settings(**json.loads(os.environ["PEER_SETTINGS"]))  # noqa: TID251


def answer(scores: NDArray[np.float32], *, logits: bool) -> Answer:
    """Return the five likeliest classes with their probabilities, the likeliest first. If the
    scores are logits, softmax converts them to probabilities."""
    few = np.argpartition(scores, -TOP)[-TOP:]
    first = few[np.argsort(-scores[few])]
    chosen = scores[first]
    if logits:
        weights = np.exp(scores - scores[first[0]])
        chosen = weights[first] / weights.sum()
    return {
        "predictions": [
            {"index": index, "probability": round(probability, 6)}
            for index, probability in zip(first.tolist(), chosen.tolist(), strict=True)
        ]
    }
