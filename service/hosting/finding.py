"""Finds the models to serve, given a file, a folder with one model or several, or a name.

models/                      convoy serve models, models/digits or models/flowers
    digits/
        model.onnx           or the only *.onnx file; next to it model.toml, labels.txt, ...
    flowers/
        1/model.onnx         or in folders of versions, as in Triton: the highest is served
    birds/
        onnx/model.onnx      or as exports of optimum are published
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from models import (
    BUILT_IN_MODEL,
    DeviceChoice,
    Engine,
    ModelFileError,
    Pixels,
    Preprocessing,
    WarmUpResult,
)
from service.hosting.catalogue import check_name, near_names, pull, pulled, read_catalogue
from service.hosting.hub import parse_address
from service.hosting.hub import pull as pull_address
from service.hosting.model_info import ModelInfo
from service.hosting.onnx_files import FILE, model_files, onnx_files_in
from service.images.clip import prepare_clip
from service.images.decode_pool import Decoding
from service.images.prepare import ImageLimits, prepare_image
from service.progress import download_progress
from service.settings import BUILT_IN_NAME, Settings, SettingsError, hub_access, parse_assignments

_log = logging.getLogger("convoy")

# The scheme of an address, as a path contains it: https:/example.org. One letter is a drive.
_SCHEME = re.compile(r"(\w{2,}):/")

# How similar a path is that an error suggests: almost equal, because any folder may be suggested.
_ALIKE = 0.8


@dataclass(frozen=True)
class ReadModel:
    """Holds everything that the server needs from a model's files. This object can be pickled."""

    info: ModelInfo
    preprocessing: Preprocessing
    open: Callable[[Sequence[DeviceChoice]], Sequence[Engine]]  # raises EngineError
    stamp: "Stamp"


@dataclass(frozen=True)
class ProvedModel:
    """Opens engines for a model that has passed its self-test. These engines do not run the
    self-test again. This object can be pickled."""

    proved: WarmUpResult

    def __call__(self, places: Sequence[DeviceChoice]) -> Sequence[Engine]:
        """Return one engine per device in `places`. Raises EngineError."""
        engines = [self.proved.open()]
        for _ in places[1:]:
            engines.append(self.proved.open(engines[-1]))
        return engines


Stamp = Sequence[tuple[str, int, int, int]]
"""The path, time, size and inode of each of a model's files. It changes when a file changes."""


@dataclass(frozen=True)
class ModelFile:
    """Says where the file of a model to serve is. A missing file is reported only when the model is
    opened."""

    name: str
    version: str
    path: Path
    error: str = ""  # why the model's file is not clear
    overrides: Mapping[str, object] = field(default_factory=dict)  # keys of model.toml
    numbered: bool = False  # the version is the folder's name


def check_models(settings: Settings, expectations: Sequence[str] | None) -> "list[ModelFile]":
    """Return the models that the settings name. Raises SettingsError if the default model is
    missing, or if a flag needs a single model and there are several."""
    files = find_models(settings)
    names = [file.name for file in files]
    if settings.default_model not in (None, *names):
        raise SettingsError(
            f"--default-model: {settings.default_model} is not served; the models are"
            f" {', '.join(names)}"
        )
    set_by_flags = expectations or settings.preset is not None or settings.labels is not None
    if len({file.path for file in files}) > 1 and set_by_flags:
        raise SettingsError(
            f"--preset, --labels and --set need a single model, but {settings.model} has several;"
            " write a model.toml beside each of them"
        )
    return files


def find_models(settings: Settings) -> list[ModelFile]:
    """Return the models that the settings name: one model, or each model in a folder of models,
    sorted by name.

    With the setting `beside`, the list also has a copy of the only model, with one key of its
    model.toml changed. Raises ModelFileError if there is no model, or if a name cannot be part of a
    URL. In a folder of models, such a name is only logged, unless `strict` is set. Raises
    SettingsError if a flag needs a single model and there are several.
    """
    found = _find_models(settings)
    if (name := settings.model_name) is not None:
        check_name(name, "--model-name")
        found = [replace(_single(found, "--model-name"), name=name)]
    if settings.beside is not None:
        found += [_beside(_single(found, "--beside"), settings.beside)]
    return found


def _single(found: list[ModelFile], flag: str) -> ModelFile:
    """Return the only model in `found`, ignoring models whose file is missing. Raises SettingsError
    if there are several."""
    whole = [file for file in found if file.path.is_file()]
    if len(whole) > 1:
        names = ", ".join(file.name for file in whole)
        raise SettingsError(f"{flag} needs a single model, but there are several: {names}")
    return (whole or found)[0]


def _beside(file: ModelFile, assignment: str) -> ModelFile:
    """Return a copy of `file` with another name and with one key of model.toml changed.
    `assignment` has the key and its new value, as KEY=VALUE."""
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
    if (folder / "saved_model.pb").is_file():
        raise ModelFileError(
            f"{folder} is a TensorFlow SavedModel; convert it with"
            f" `python -m tf2onnx.convert --saved-model {folder} --output {FILE}`"
        )
    found = []
    every = (place for place in folder.iterdir() if place.is_dir())
    places = sorted(place for place in every if not place.name.startswith("."))
    if (own := _model_in(folder)) is not None:
        others = [place for place in places if _highest(place).path.is_file()]
        if others and own.name != FILE:
            raise ModelFileError(
                f"{folder} has the model {own.name} and folders with models, such as "
                f"{others[0].name}; name the model to serve, or put each model in its own folder"
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
        raise ModelFileError(
            f"{folder} contains no models; put each model in its own folder, as NAME/{FILE}"
        )
    return found


def _folder_name(folder: Path, settings: Settings) -> str:
    """Return a folder's name, which becomes the model's name. Raises ModelFileError if a model
    cannot have this name, unless the settings give another name."""
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
            f"{settings.model} contains several models ({names}); name one, such as "
            f"{(settings.model or Path()) / first.name}"
        )
    return first


def image_reader(settings: Settings) -> Callable[[Path, Preprocessing], Pixels]:
    """Return a function that reads an image or clip from a file, and decodes it with a model's
    preprocessing."""
    limits = _limits(settings)
    return lambda file, meaning: _preparing(meaning)(file.read_bytes(), meaning, limits).run()


def decoder(meaning: Preprocessing, settings: Settings) -> Callable[[Any], Decoding]:
    """Return a function that prepares the file of an image or clip for decoding. The decoded pixels
    are the input of a model that has the preprocessing `meaning`."""
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
    """Return the model file for settings that do not name a folder. A model in the catalogue is
    downloaded first."""
    path = settings.model
    if path is None or path == Path(BUILT_IN_NAME):
        return BUILT_IN_MODEL
    if path.exists():
        return path
    if (scheme := _SCHEME.match(str(path))) is not None:
        raise ModelFileError(
            f"models cannot be loaded from {scheme[1]}:// addresses; download the file and give"
            " its path, or name a model on a hub, such as hf://ORG/NAME"
        )
    near = _near_files(path)
    if path.name == str(path):
        if (found := pulled(path.name)) is not None:
            return found
        entries = read_catalogue(settings.catalogue)
        if (entry := entries.get(path.name)) is not None:
            with download_progress() as show:
                return pull(path.name, entry, show)
        if path.suffix != ".onnx" and not near:
            raise ModelFileError(
                f"{path} is neither a file, nor a folder, nor the name of a model; "
                f"{near_names(path.name, [*entries, BUILT_IN_NAME])}"
            )
    if near:
        raise ModelFileError(f"{path} does not exist; did you mean {near[0]}?")
    return path


def _near_files(path: Path) -> list[Path]:
    """Return the model file or the folder whose name is most similar to the name of `path`, if
    there is one in the same folder."""
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".onnx" or p.is_dir()]
    except OSError:  # there is no such folder, or it cannot be read
        return []
    return [path.parent / name for name in get_close_matches(path.name, names, 1, _ALIKE)]


def _highest(place: Path) -> ModelFile:
    """Return the model in a folder. If the folder itself has no model file, the model is the
    version with the highest number in the folder."""
    versions: list[int] = []
    version = "1"
    try:
        versions = [int(p.name) for p in place.iterdir() if p.name.isdecimal() and p.is_dir()]
        version = str(max(versions, default=1))
        if (own := _model_in(place)) is not None:
            return ModelFile(place.name, "1", own)
        path = _model_in(place / version) or place / version / FILE
    except ModelFileError as error:
        return ModelFile(place.name, version, place / FILE, str(error))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        # The folder was removed or replaced since it was listed, or is not readable.
        why = f"{place} cannot be read: {error.strerror}"
        return ModelFile(place.name, version, place / FILE, why)
    return ModelFile(place.name, version, path, numbered=bool(versions))


def _model_in(folder: Path) -> Path | None:
    """Return a folder's model: model.onnx or the only *.onnx file, in the folder or in its
    subfolder `onnx`.

    Raises ModelFileError if there are several.
    """
    found = model_files(onnx_files_in(folder))
    if found[1:]:
        raise ModelFileError(
            f"the model of {folder} may be {' or '.join(map(str, found))}; name the file to serve,"
            f" such as {folder / found[0]}"
        )
    return folder / found[0] if found else None


def stamp_of(file: ModelFile) -> Stamp:
    """Return the time stamps and sizes of a model's files. The result changes when one of the files
    changes."""
    from models import files_of  # noqa: PLC0415  it brings all that reads such files

    stamps = []
    for path in dict.fromkeys(files_of(file.path)):
        with suppress(OSError):  # it is not there
            status = path.stat()
            stamps.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return stamps
