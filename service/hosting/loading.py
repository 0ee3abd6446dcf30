"""Opens the engines of models that were read from files."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from models import DeviceLostError, Engine, ModelError, ModelFileError, Preprocessing
from service.folders import without_folders
from service.hosting.finding import ModelFile, ReadModel, Stamp
from service.hosting.kept import KeptObject
from service.hosting.model_info import FailedModel, ModelInfo
from service.hosting.reads import Reads, read_models
from service.settings import Settings

_log = logging.getLogger("convoy")


@dataclass(frozen=True)
class OpenModel:
    """Holds a model and its engines. The engines have not run their warm-up yet."""

    info: ModelInfo
    preprocessing: Preprocessing
    engines: Sequence[Engine]
    # Opens a new engine of the same version in place of the engine with this number. The new engine
    # shares no memory with the others, because shared memory may be why the engine failed.
    reopen: Callable[[int], Engine]
    stamp: "Stamp"


def open_models(
    settings: Settings, expectations: Sequence[str] | None, reads: Reads | None = None
) -> Iterator[OpenModel | FailedModel]:
    """Open the models that the settings name, one after another. `reads` is the result of
    `begin_reading`.

    Raises SettingsError if the default model is missing, or if a flag needs a single model and
    there are several. This is checked before any model is opened. Raises ModelError if no model can
    be opened or, with `strict`, if one of them cannot.
    """
    with closing(reads or read_models(settings, expectations)) as found:
        files = cast("Sequence[ModelFile]", next(found))
        several = len({file.path for file in files}) > 1
        errors = []
        for file in files:
            read = cast("ReadModel | ModelError", next(found))
            try:
                if isinstance(read, ModelError):
                    raise read
                opened = open_read(read, file, settings, expectations)
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
            del read  # it may have all weights
            yield opened


def for_clients(error: Exception, settings: Settings, file: ModelFile | None = None) -> str:
    """Return an error's message for clients, without the names of this server's folders."""
    places = [] if file is None else [file.path.parent]
    if settings.model is not None:
        places.insert(0, settings.model if settings.model.is_dir() else settings.model.parent)
    return without_folders(str(error), *places)


def open_read(
    read: ReadModel, file: ModelFile, settings: Settings, expectations: Sequence[str] | None
) -> OpenModel:
    """Open the engines of a model that was read from its files. Raises EngineError."""
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


def _read_again(
    file: ModelFile,
    settings: Settings,
    expectations: Sequence[str] | None,
    stamp: tuple[int, int],
    meaning: Preprocessing,
) -> ReadModel:
    """Read a model's file again to replace an engine, because the server does not keep the weights
    in memory. Raises ModelError, with a message that may be shown to clients."""
    from service.hosting.reading import read_file  # noqa: PLC0415  as above

    try:
        again = read_file(file, settings, expectations)
    except ModelError as error:
        raise ModelFileError(for_clients(error, settings, file)) from error
    if _stamp(file.path) != stamp or again.preprocessing != meaning:
        raise ModelFileError(
            f"the files of {file.name} have changed since the server started; restart the server"
        )
    return again


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
