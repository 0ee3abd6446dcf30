"""Finds and opens the models to serve, given a file, a folder of one model or of several, or a
name.

models/                      convoy serve models, models/digits or models/flowers
    digits/
        model.onnx           or the only file *.onnx; with model.toml, labels.txt, ... beside it
    flowers/
        1/model.onnx         or with versions, as in Triton: the highest is served
    birds/
        onnx/model.onnx      or as optimum's exports are published
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import (
    BUILT_IN_MODEL,
    TRANSLATED,
    Classifier,
    DeviceChoice,
    DeviceKind,
    DeviceLostError,
    Engine,
    FileLimits,
    ModelError,
    ModelFileError,
    Pixels,
    Preprocessing,
    files_of,
    load_classifier,
    open_engines,
)
from service.folders import without_folders
from service.hosting.catalogue import check_name, near_names, pull, pulled, read_catalogue
from service.hosting.hub import parse_address
from service.hosting.hub import pull as pull_address
from service.hosting.kept import KeptObject
from service.hosting.onnx_files import FILE, model_files, onnx_files_in
from service.hosting.pipeline import FailedModel, ModelInfo
from service.hosting.presets import PHOTOGRAPHS, judged
from service.images.clip import prepare_clip
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from service.progress import compiling_kernels, download_progress
from service.settings import Settings, SettingsError, hub_access, parse_assignments

BUILT_IN_NAME = "digits"

_log = logging.getLogger("convoy")


@dataclass(frozen=True)
class ReadModel:
    """Holds everything from a model's files that serving it needs. Picklable."""

    info: ModelInfo
    preprocessing: Preprocessing
    open: Callable[[Sequence[DeviceChoice]], Sequence[Engine]]  # raises EngineError
    stamp: "Stamp"


@dataclass(frozen=True)
class OpenModel:
    """Holds a model and its engines, which are not warm yet."""

    info: ModelInfo
    preprocessing: Preprocessing
    engines: Sequence[Engine]
    # Opens another engine of the same version in place of one, by number. It shares no memory with
    # the others: what they share may be why one failed.
    reopen: Callable[[int], Engine]
    stamp: "Stamp"


Stamp = Sequence[tuple[str, int, int, int]]
"""Distinguishes the present files of a model from earlier ones."""


@dataclass(frozen=True)
class ModelFile:
    """Locates a model to serve; a missing file is reported when the model is opened."""

    name: str
    version: str
    path: Path
    error: str = ""  # why it is not clear which file it is
    overrides: Mapping[str, object] = field(default_factory=dict)  # keys of model.toml
    numbered: bool = False  # the version is the folder's name


def open_models(
    settings: Settings, expectations: Sequence[str] | None
) -> Iterator[OpenModel | FailedModel]:
    """Open the models that the settings name, one after another.

    Raises SettingsError, before anything is loaded, for a default model that is not among them, or
    a flag for one model where there are several. Raises ModelError where the only one cannot be
    opened, or none can, or with `strict` for the first of several that cannot.
    """
    files = check_models(settings, expectations)
    several = len({file.path for file in files}) > 1
    errors = []
    for file in files:
        try:
            opened = open_file(file, settings, expectations)
        except DeviceLostError:
            raise
        except ModelError as error:
            if not several:
                raise
            errors.append(f"the model {file.name}: {error}")
            if settings.strict or len(errors) == len(files):
                raise ModelError("\n".join(errors)) from error
            _log.error("the model %s is not served: %s", file.name, error)
            yield FailedModel(file.name, file.version, for_clients(error, settings, file))
            continue
        yield opened


def for_clients(error: Exception, settings: Settings, file: ModelFile | None = None) -> str:
    """Return an error's message without the folders of this server."""
    places = [] if file is None else [file.path.parent]
    if settings.model is not None:
        places.insert(0, settings.model if settings.model.is_dir() else settings.model.parent)
    return without_folders(str(error), *places)


def check_models(settings: Settings, expectations: Sequence[str] | None) -> "list[ModelFile]":
    """Return the models that the settings name. Raises SettingsError like `open_models`."""
    files = find_models(settings)
    names = [file.name for file in files]
    if settings.default_model not in (None, *names):
        raise SettingsError(
            f"--default-model: {settings.default_model} is not served; there are {', '.join(names)}"
        )
    set_by_flags = expectations or settings.preset is not None or settings.labels is not None
    if len({file.path for file in files}) > 1 and set_by_flags:
        raise SettingsError(
            "--preset, --labels and --set apply to a single model; describe each model in "
            f"{settings.model} in a model.toml beside it"
        )
    return files


def open_file(file: ModelFile, settings: Settings, expectations: Sequence[str] | None) -> OpenModel:
    """Open one model. Raises ModelError, also if its files change while they are read."""
    return open_read(read_file(file, settings, expectations), file, settings, expectations)


def read_file(file: ModelFile, settings: Settings, expectations: Sequence[str] | None) -> ReadModel:
    """Read one model. Raises ModelError, also if its files change while they are read."""
    return read_as_it_is(*load_unchanged(file, settings, expectations), file, settings)


def load_unchanged(
    file: ModelFile, settings: Settings, expectations: Sequence[str] | None
) -> tuple[Classifier, Stamp]:
    """Return the model in a file, and its files' stamp, which is the same before and after reading.

    Raises ModelError.
    """
    stamp = stamp_of(file)
    classifier = _load(file, settings, expectations)
    if stamp_of(file) != stamp:
        raise ModelFileError(f"{file.path}, or a file beside it, changed while it was read")
    return classifier, stamp


def read_as_it_is(
    classifier: Classifier, stamp: Stamp, file: ModelFile, settings: Settings
) -> ReadModel:
    """Return a model whose engines prove themselves when they are opened. Raises EngineError."""
    max_batch = max_batch_of(classifier, settings)
    return ReadModel(
        info_of(classifier, file.version),
        classifier.preprocessing,
        partial(open_on_devices, classifier, settings, max_batch),
        stamp,
    )


def max_batch_of(classifier: Classifier, settings: Settings) -> int:
    """Return the largest batch that both the settings and the model allow."""
    return min(settings.max_batch, classifier.serving.max_batch or settings.max_batch)


def open_read(
    read: ReadModel, file: ModelFile, settings: Settings, expectations: Sequence[str] | None
) -> OpenModel:
    """Open a model's engines. Raises EngineError."""
    info, places = read.info, settings.device_choices
    if info.origin:
        _log.info("%s is described by %s", info.name, info.origin)
    _log.info("%s: %s", info.name, info.meaning)
    if info.warning:
        _log.warning("%s", info.warning)
    engines = read.open(places)
    for layers in dict.fromkeys(engine.layers for engine in engines if engine.layers):
        _log.info("%s is quantized: %s", info.name, layers)
    if settings.may_change:  # the version served may have other files than there are then
        again: Callable[[], ReadModel] = KeptObject(read).get
    else:
        again = partial(
            _read_again, file, settings, expectations, _stamp(file.path), read.preprocessing
        )

    def reopen(number: int) -> Engine:
        (engine,) = again().open([places[number]])
        return engine

    return OpenModel(info, read.preprocessing, engines, reopen, read.stamp)


def find_models(settings: Settings) -> list[ModelFile]:
    """Return the models, by name, that the settings name: one file, or each folder in a folder.

    With `beside` the only model is returned twice. Raises ModelFileError where there is no model,
    or a name cannot be part of a URL; in a folder of folders that is logged, and the folder left
    out, unless `strict` is set. Raises SettingsError for several where a flag applies to one.
    """
    found = _find_models(settings)
    if (name := settings.model_name) is not None:
        check_name(name, "--model-name")
        found = [replace(_single(found, "--model-name"), name=name)]
    if settings.beside is not None:
        found += [_beside(_single(found, "--beside"), settings.beside)]
    return found


def _single(found: list[ModelFile], flag: str) -> ModelFile:
    """Return the only model, ignoring folders without one. Raises SettingsError for several."""
    whole = [file for file in found if file.path.is_file()]
    if len(whole) > 1:
        names = ", ".join(file.name for file in whole)
        raise SettingsError(f"{flag} applies to a single model; there are {names}")
    return (whole or found)[0]


def _beside(file: ModelFile, assignment: str) -> ModelFile:
    """Return the same model with another name and with one key set as `assignment` says."""
    overrides = parse_assignments([assignment], "--beside")
    value = re.sub(r"[^\w.-]+", "-", assignment.partition("=")[2], flags=re.ASCII)
    return replace(file, name=f"{file.name}-{value.strip('-')}", overrides=overrides)


def _find_models(settings: Settings) -> list[ModelFile]:
    folder = settings.model
    if folder is not None and (address := parse_address(folder)) is not None:
        if settings.model_name is None:
            check_name(address.name, address)
        with download_progress() as show:
            return [ModelFile(address.name, "1", pull_address(address, hub_access(), show))]
    if folder is None or not folder.is_dir():
        path = _model_file(settings)
        if path in (folder, BUILT_IN_MODEL):
            return [ModelFile(path.stem, "1", path)]
        return [ModelFile(_folder_name(path.parent, settings), "1", path)]
    found = []
    every = (place for place in folder.iterdir() if place.is_dir())
    places = sorted(place for place in every if not place.name.startswith("."))
    if (own := _model_in(folder)) is not None:
        others = [place for place in places if _highest(place).path.is_file()]
        if others and own.name != FILE:
            raise ModelFileError(
                f"{folder} may be the model {own.name}, or a folder of models, such as "
                f"{others[0].name}; name the one to serve, or put each model in a folder of its own"
            )
        return [ModelFile(_folder_name(folder, settings), "1", own)]
    if places and all(place.name.isdecimal() for place in places):  # versions of one model
        return [replace(_highest(folder), name=_folder_name(folder, settings))]
    for place in places:
        try:
            check_name(place.name, place)
        except ModelFileError as error:
            if settings.strict:
                raise
            _log.error("not served: %s", error)
            continue
        found.append(_highest(place))
    if not found:
        raise ModelFileError(f"{folder} has no models; put each in a folder, as NAME/{FILE}")
    return found


def _folder_name(folder: Path, settings: Settings) -> str:
    """Return a folder's name. Raises ModelFileError if it is no valid model name and none is
    set."""
    folder = folder.resolve()
    if settings.model_name is None:
        check_name(folder.name, folder)
    return folder.name


def find_model(settings: Settings) -> ModelFile:
    """Return the only model that the settings name. Raises ModelFileError if there are several."""
    first, *others = find_models(settings)
    if others:
        names = ", ".join(file.name for file in (first, *others))
        raise ModelFileError(
            f"{settings.model} has several models ({names}); name one of them, as "
            f"{first.path.parent}"
        )
    return first


def load(
    settings: Settings, expectations: Sequence[str] | None, file: ModelFile | None = None
) -> Classifier:
    """Load `file`, or else the only model that the settings name."""
    return _load(file or find_model(settings), settings, expectations)


def open_classifier(classifier: Classifier, settings: Settings, max_batch: int) -> Engine:
    """Return an engine for a model. Raises EngineError."""
    (engine,) = open_on_devices(classifier, settings, max_batch, [DeviceChoice(settings.device)])
    return engine


def open_on_devices(
    classifier: Classifier, settings: Settings, max_batch: int, choices: Sequence[DeviceChoice]
) -> Sequence[Engine]:
    """Open an engine for each device, as `open_classifier` does. Raises EngineError if one
    fails."""
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
    """Return a model in which the built-in photographs decide what no file describes.

    They run on the CPU, on an engine of their own that is closed again. Raises
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


def image_reader(settings: Settings) -> Callable[[Path, Preprocessing], Pixels]:
    """Return a function that reads an image file, or a clip, for a model with the given
    preprocessing.
    """
    limits = _limits(settings)
    return lambda file, meaning: _preparing(meaning)(file.read_bytes(), meaning, limits).run()


def decoder(meaning: Preprocessing, settings: Settings) -> Callable[[Any], Decoding]:
    """Return a function that prepares an image file, or a clip, for decoding to the input of a
    model with the given preprocessing.
    """
    return partial(
        _preparing(meaning),
        preprocessing=meaning,
        limits=_limits(settings),
    )


def _limits(settings: Settings) -> ImageLimits:
    return ImageLimits(settings.max_body_bytes, settings.max_pixels, max_clip_s=settings.max_clip_s)


def _preparing(meaning: Preprocessing) -> Callable[..., Decoding]:
    return prepare_image if meaning.frames is None else prepare_clip


def _model_file(settings: Settings) -> Path:
    """Return the file of the only model; a model of the catalogue is downloaded first."""
    path = settings.model
    if path is None or path == Path(BUILT_IN_NAME):
        return BUILT_IN_MODEL
    if not path.exists() and path.name == str(path):
        if (found := pulled(path.name)) is not None:
            return found
        entries = read_catalogue(settings.catalogue)
        if (entry := entries.get(path.name)) is not None:
            with download_progress() as show:
                return pull(path.name, entry, show)
        raise ModelFileError(
            f"there is no file or folder {path}, and no model of that name; "
            f"{near_names(path.name, [*entries, BUILT_IN_NAME])}"
        )
    return path


def _highest(place: Path) -> ModelFile:
    """Return a folder's own model file, or that of the version with the highest number."""
    versions = [int(p.name) for p in place.iterdir() if p.name.isdecimal() and p.is_dir()]
    version = str(max(versions, default=1))
    try:
        if (own := _model_in(place)) is not None:
            return ModelFile(place.name, "1", own)
        path = _model_in(place / version) or place / version / FILE
    except ModelFileError as error:
        return ModelFile(place.name, version, place / FILE, str(error))
    return ModelFile(place.name, version, path, numbered=bool(versions))


def _model_in(folder: Path) -> Path | None:
    """Return a folder's model, which is model.onnx or the only *.onnx, perhaps in a folder `onnx`
    in it.

    Raises ModelFileError where there are several.
    """
    found = model_files(onnx_files_in(folder))
    if found[1:]:
        raise ModelFileError(
            f"the model of {folder} may be {' or '.join(map(str, found))}; name the one to serve, "
            f"as {folder / found[0]}"
        )
    return folder / found[0] if found else None


def _load(
    file: ModelFile, settings: Settings, expectations: Sequence[str] | None = None
) -> Classifier:
    if file.error:
        raise ModelFileError(file.error)
    place, version = file.path.parent, file.version
    if file.path.name == FILE and place.name == version and not file.path.is_file():
        raise ModelFileError(f"{place.parent} has no {FILE}, and no {version}/{FILE}")
    overrides: dict[str, object] = {
        **parse_assignments(expectations or ()),
        "preset": settings.preset,
        "labels": settings.labels,
    }
    if settings.precision is not None:  # None would hide a --set precision
        overrides["precision"] = settings.precision.value
    overrides.update(file.overrides)
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
    """Return the built-in photographs as a model's pixels; none for a model of clips."""
    limits = ImageLimits()  # whatever the settings allow clients
    files = PHOTOGRAPHS if meaning.frames is None else []
    images = [prepare_image(file.read_bytes(), meaning, limits).run() for file in files]
    return np.array(images, np.uint8).reshape(-1, *meaning.image_shape)


def _read_again(
    file: ModelFile,
    settings: Settings,
    expectations: Sequence[str] | None,
    stamp: tuple[int, int],
    meaning: Preprocessing,
) -> ReadModel:
    """Read a model's file again, so that its weights need not be kept in memory. Raises ModelError,
    whose message clients read."""
    try:
        again = read_file(file, settings, expectations)
    except ModelError as error:
        raise ModelFileError(for_clients(error, settings, file)) from error
    if _stamp(file.path) != stamp or again.preprocessing != meaning:
        raise ModelFileError(f"the files of {file.name} have changed since the server started")
    return again


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def stamp_of(file: ModelFile) -> Stamp:
    """Return a stamp that changes with the files that a model is read from."""
    stamps = []
    for path in dict.fromkeys(files_of(file.path)):
        with suppress(OSError):  # it is not there
            status = path.stat()
            stamps.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return stamps


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
    """Return the type of a model's own input by its name in V2; every float but float16 counts as
    float32."""
    if classifier.preprocessing.as_bytes:
        return "UINT8"
    return "FP16" if classifier.takes_halves else "FP32"
