"""Reads models from their files. This module imports ONNX, and the modules that convert and check
ONNX graphs.

    file ── classifier ─┬─ no GPU may serve it: self-test on the CPU ── engines without another test
                        └─ otherwise: engines that run the self-test themselves

A server whose models run on the CPU does not import this module. When it starts, a copy of its
process reads the models (`forked.py`). Later, separate processes read new versions (`trial.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models import (
    TRANSLATED,
    Classifier,
    DeviceChoice,
    DeviceKind,
    Engine,
    FileLimits,
    ModelFileError,
    Preprocessing,
    load_classifier,
    open_engines,
    try_on_cpu,
)
from service.hosting.finding import (
    ModelFile,
    ProvedModel,
    ReadModel,
    Stamp,
    find_model,
    image_reader,
    stamp_of,
)
from service.hosting.model_info import ModelInfo
from service.hosting.onnx_files import FILE
from service.hosting.presets import PHOTOGRAPHS, judged
from service.images.prepare import ImageLimits, prepare_image
from service.progress import compiling_kernels
from service.settings import Settings, parse_assignments


def read_proved(
    file: ModelFile, settings: Settings, expectations: Sequence[str] | None
) -> ReadModel:
    """Read one model. If no GPU may serve the model, also run its self-test on the CPU. Raises
    ModelError."""
    classifier, stamp = load_unchanged(file, settings, expectations)
    tried = proved_on_cpu(classifier, stamp, file, settings)
    if tried is None:
        return read_as_it_is(classifier, stamp, file, settings)
    read, engine = tried
    engine.close()
    return read


def proved_on_cpu(
    classifier: Classifier, stamp: Stamp, file: ModelFile, settings: Settings
) -> tuple[ReadModel, Engine] | None:
    """Run a model's self-test on the CPU. Return the model, whose engines need no further
    self-test, and the engine that passed. Return None if a GPU may serve the model. Raises
    EngineError."""
    tried = try_on_cpu(
        classifier,
        settings.device_choices,
        max_batch=max_batch_of(classifier, settings),
        threads=settings.engine_threads,
    )
    if tried is None:
        return None
    engine, found = tried
    info = info_of(classifier, file.version)
    return ReadModel(info, classifier.preprocessing, ProvedModel(found), stamp), engine


def read_file(file: ModelFile, settings: Settings, expectations: Sequence[str] | None) -> ReadModel:
    """Read one model. Raises ModelError if the model cannot be read, or if one of its files changes
    meanwhile."""
    return read_as_it_is(*load_unchanged(file, settings, expectations), file, settings)


def load_unchanged(
    file: ModelFile, settings: Settings, expectations: Sequence[str] | None
) -> tuple[Classifier, Stamp]:
    """Return the model in a file, and the `Stamp` of the model's files.

    Raises ModelError if the model cannot be read, or if one of its files changes meanwhile.
    """
    stamp = stamp_of(file)
    classifier = _load(file, settings, expectations)
    if stamp_of(file) != stamp:
        raise ModelFileError(
            f"{file.path} or a file beside it changed while it was read; try again"
        )
    return classifier, stamp


def read_as_it_is(
    classifier: Classifier, stamp: Stamp, file: ModelFile, settings: Settings
) -> ReadModel:
    """Return a model without running its self-test. The model's engines will run the self-test."""
    max_batch = max_batch_of(classifier, settings)
    return ReadModel(
        info_of(classifier, file.version),
        classifier.preprocessing,
        partial(open_on_devices, classifier, settings, max_batch),
        stamp,
    )


def max_batch_of(classifier: Classifier, settings: Settings) -> int:
    """Return the size of the largest batch that the settings and the model allow."""
    return min(settings.max_batch, classifier.serving.max_batch or settings.max_batch)


def load(
    settings: Settings, expectations: Sequence[str] | None, file: ModelFile | None = None
) -> Classifier:
    """Load `file`. If `file` is None, load the only model that the settings name."""
    return _load(file or find_model(settings), settings, expectations)


def open_classifier(classifier: Classifier, settings: Settings, max_batch: int) -> Engine:
    """Return an engine for a model. Raises EngineError."""
    (engine,) = open_on_devices(classifier, settings, max_batch, [DeviceChoice(settings.device)])
    return engine


def open_on_devices(
    classifier: Classifier, settings: Settings, max_batch: int, choices: Sequence[DeviceChoice]
) -> Sequence[Engine]:
    """Open one engine per device, as `open_classifier` does. Raises EngineError if one fails."""
    return open_engines(
        classifier,
        choices,
        max_batch=max_batch,
        threads=settings.engine_threads,
        tuning=settings.tuning,
        progress=compiling_kernels,
        takes=settings.takes,
    )


def judge(classifier: Classifier, settings: Settings) -> Classifier:
    """Return the model with the facts that its files do not state, such as the kind of its scores.
    The scores of the built-in photographs show these facts.

    The photographs run on a separate CPU engine, which is closed afterwards. Raises
    UnsupportedModelError and EngineError.
    """
    meaning = classifier.preprocessing
    if classifier.shown and (not meaning.guess or meaning.frames is not None):
        return classifier
    choice, threads = [DeviceChoice(DeviceKind.CPU)], settings.engine_threads
    (engine,) = open_engines(classifier, choice, max_batch=1, threads=threads)
    try:
        return judged(classifier, engine, image_reader(settings))
    finally:
        engine.close()


def _load(
    file: ModelFile, settings: Settings, expectations: Sequence[str] | None = None
) -> Classifier:
    if file.error:
        raise ModelFileError(file.error)
    place, version = file.path.parent, file.version
    if file.path.name == FILE and place.name == version and not file.path.is_file():
        raise ModelFileError(
            f"{place.parent} has neither {FILE} nor {version}/{FILE}; add the model file"
        )
    flags = {
        "preset": settings.preset,
        "labels": settings.labels,
        "precision": settings.precision and settings.precision.value,
    }
    # A flag that is not given would hide a key that --set sets.
    given = {key: value for key, value in flags.items() if value is not None}
    overrides = parse_assignments(expectations or ()) | given | dict(file.overrides)
    limits = FileLimits(external_data=settings.external_data)
    loaded = load_classifier(
        file.path,
        overrides=overrides,
        limits=limits,
        photographs=_photographs,
        threads=settings.engine_threads,
        keep=TRANSLATED,
    )
    return judge(replace(loaded, name=file.name), settings)


def _photographs(meaning: Preprocessing) -> NDArray[np.uint8]:
    """Return the built-in photographs as pixels in the model's size. For a model of clips, the
    array is empty."""
    limits = ImageLimits()  # whatever the settings allow clients
    files = PHOTOGRAPHS if meaning.frames is None else []
    images = [prepare_image(file.read_bytes(), meaning, limits).run() for file in files]
    return np.array(images, np.uint8).reshape(-1, *meaning.image_shape)


def info_of(classifier: Classifier, version: str) -> ModelInfo:
    """Return the description of a model for clients."""
    meaning = classifier.preprocessing
    return ModelInfo(
        name=classifier.name,
        version=version,
        image_shape=meaning.image_shape,
        scores=classifier.network.graph.outputs[0],
        output=meaning.output,
        labels=meaning.labels,
        channels=meaning.channels,
        tensor=classifier.network.graph.inputs[0],
        tensor_shape=meaning.input_shape,
        layout=meaning.layout,
        tensor_type=_tensor_type(classifier),
        guess=meaning.guess,
        warning=classifier.warning,
        origin=classifier.origin,
        serving=classifier.serving,
        embedding=classifier.embedding,
        maps=classifier.maps,
        inner=tuple(classifier.inner.values()),
        meaning=classifier.scores,
        is_multi_label=classifier.is_multi_label,
    )


def _tensor_type(classifier: Classifier) -> str:
    """Return the data type of the model's input, as the V2 protocol names it. Float types other
    than float16 are FP32."""
    if classifier.preprocessing.as_bytes:
        return "UINT8"
    return "FP16" if classifier.takes_halves else "FP32"
