"""Opens the models to serve: one file, a folder with model.onnx, or a folder of such folders.

models/                      convoy serve models, or convoy serve models/digits
    digits/
        model.onnx           optionally with model.toml and labels.txt beside it
    flowers/
        1/model.onnx         or with versions, as in Triton: the highest is served
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from models import (
    BUILT_IN_MODEL,
    Classifier,
    Engine,
    FileLimits,
    ModelError,
    ModelFileError,
    Place,
    UnsupportedModelError,
    load_classifier,
    open_engines,
)
from service.hosting.catalogue import pulled, read_catalogue
from service.hosting.pipeline import ModelInfo
from service.images.decode import ImageLimits, prepare_image
from service.images.decode_pool import Decoding
from service.settings import Settings, SettingsError, parse_assignments

BUILT_IN_NAME = "digits"

_FILE = "model.onnx"

# Names are parts of URLs, and /v2/models/stats is a route.
_NAME = re.compile(r"(?!stats$)[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Opened:
    """A model with its engines, not warmed up."""

    info: ModelInfo
    classifier: Classifier
    engines: Sequence[Engine]
    # Opens another engine from the same file in place of one, by number. It shares no memory with
    # the others: what they share may be why one failed.
    reopen: Callable[[int], Engine]


@dataclass(frozen=True)
class ModelFile:
    """One of several models."""

    name: str
    version: str
    path: Path


def open_models(settings: Settings, expectations: Sequence[str] | None) -> Iterator[Opened]:
    """Open the models that the settings name, one after another.

    ModelError names the model that cannot be opened. SettingsError: a flag for one model was given
    with a folder of several.
    """
    folder = settings.model
    if folder is None or not folder.is_dir() or (folder / _FILE).is_file():
        yield _open(partial(load, settings, expectations), model_file(settings), settings, "1")
        return
    if expectations or settings.preset is not None or settings.labels is not None:
        raise SettingsError(
            "--preset, --labels and --set apply to a single model; describe each model in "
            f"{folder} in a model.toml beside it"
        )
    for file in find_models(folder):
        try:
            opened = _open(partial(_load_one, settings, file), file.path, settings, file.version)
        except ModelError as error:
            raise ModelError(f"the model {file.name}: {error}") from error
        yield opened


def find_models(folder: Path) -> list[ModelFile]:
    """The models in a folder of folders, by name; hidden folders and files are ignored.

    ModelFileError: a folder without a model, a name that cannot be part of a URL, or no folder.
    """
    found = []
    folders = (place for place in folder.iterdir() if place.is_dir())
    for place in map(_checked, sorted(p for p in folders if not p.name.startswith("."))):
        versions = [int(p.name) for p in place.iterdir() if p.name.isdecimal() and p.is_dir()]
        version = str(max(versions, default=1))
        candidates = (place / _FILE, place / version / _FILE)
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise ModelFileError(f"{place} has no {_FILE}, and no {version}/{_FILE}")
        found.append(ModelFile(place.name, "1" if path == candidates[0] else version, path))
    if not found:
        raise ModelFileError(f"{folder} has no models; put each in a folder, as NAME/{_FILE}")
    return found


def load(settings: Settings, expectations: Sequence[str] | None) -> Classifier:
    """The one model that the settings name."""
    path = model_file(settings)
    classifier = load_classifier(
        path,
        overrides={
            **parse_assignments(expectations or ()),
            "preset": settings.preset,
            "labels": settings.labels,
            **_precision(settings),
        },
        limits=_limits(settings),
    )
    if path in (settings.model, BUILT_IN_MODEL):
        return classifier
    return replace(classifier, name=_checked(path.resolve().parent).name)  # of a folder


def open_classifier(classifier: Classifier, settings: Settings, max_batch: int) -> Engine:
    """An engine for a model of images; UnsupportedModelError for a model of clips."""
    (engine,) = open_places(classifier, settings, max_batch, [Place(settings.device)])
    return engine


def open_places(
    classifier: Classifier, settings: Settings, max_batch: int, places: Sequence[Place]
) -> Sequence[Engine]:
    """As `open_classifier`, an engine for each place; EngineError where one cannot be opened."""
    if classifier.preprocessing.frames is not None:
        raise UnsupportedModelError(
            f"{classifier.name} takes clips of {classifier.preprocessing.frames} frames, and "
            "Convoy serves images only; `convoy inspect` and `convoy compile` work for clips"
        )
    return open_engines(
        classifier,
        places,
        max_batch=max_batch,
        threads=settings.engine_threads,
        tuning=settings.tuning,
        progress=partial(track, description="compiling kernels", console=Console(stderr=True)),
    )


def decoder(classifier: Classifier, settings: Settings) -> Callable[[bytes], Decoding]:
    """A function that prepares an image file for decoding to the model's input."""
    return partial(
        prepare_image,
        preprocessing=classifier.preprocessing,
        limits=ImageLimits(settings.max_body_bytes, settings.max_pixels),
    )


def model_file(settings: Settings) -> Path:
    """The one model's file; that of a folder is model.onnx."""
    path = settings.model
    if path is None or path == Path(BUILT_IN_NAME):
        return BUILT_IN_MODEL
    if not path.exists() and path.name == str(path):
        if (found := pulled(path.name)) is not None:
            return found
        if path.name in read_catalogue(settings.catalogue):
            raise ModelFileError(f"{path} is not here yet; get it with: convoy pull {path}")
    return path / _FILE if path.is_dir() else path


def _checked(folder: Path) -> Path:
    """A model's folder; ModelFileError if its name cannot be part of a URL."""
    if not _NAME.fullmatch(folder.name):
        raise ModelFileError(
            f"{folder}: invalid model name; use letters, digits, dots, dashes and underscores, "
            "and not `stats`"
        )
    return folder


def _load_one(settings: Settings, file: ModelFile) -> Classifier:
    classifier = load_classifier(
        file.path, overrides=_precision(settings), limits=_limits(settings)
    )
    return replace(classifier, name=file.name)


def _open(
    load_it: Callable[[], Classifier], path: Path, settings: Settings, version: str
) -> Opened:
    classifier, stamp = load_it(), _stamp(path)
    places = settings.places
    engines = open_places(classifier, settings, settings.max_batch, places)
    info, meaning = _info(classifier, version), classifier.preprocessing

    # It loads the file again rather than keep the weights in memory.
    def reopen(number: int) -> Engine:
        again = load_it()
        if _stamp(path) != stamp or again.preprocessing != meaning:
            raise ModelFileError(f"{path} or its model.toml has changed since the server started")
        (engine,) = open_places(again, settings, settings.max_batch, [places[number]])
        return engine

    return Opened(info, classifier, engines, reopen)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _precision(settings: Settings) -> dict[str, object]:
    """As an override of model.toml, where it is set."""
    return {} if settings.precision is None else {"precision": settings.precision.value}


def _limits(settings: Settings) -> FileLimits:
    return FileLimits(external_data=settings.external_data)


def _info(classifier: Classifier, version: str) -> ModelInfo:
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
    )
