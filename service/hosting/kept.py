"""Stores a model on disk as it was read, so that engines can be opened after the model's files have
changed.

In memory, the weights would take too much space.
"""

import io
import logging
import pickle
import weakref
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Generic, TypeVar

from models import CACHE_FOLDER, placed

T = TypeVar("T")

FOLDER = CACHE_FOLDER / "served"

_log = logging.getLogger("convoy")


class KeptObject(Generic[T]):
    """Stores a picklable object in a temporary file. The file is deleted when this object is
    deleted or the process ends.

    If no file can be written, the object is stored in memory, and a warning is logged.
    """

    def __init__(self, what: T) -> None:
        self._lock = Lock()
        self._file: IO[bytes]
        try:
            self._file = _written(what)
        except OSError as error:
            _log.warning(
                "models are also kept in memory, because no file can be written in %s: %s",
                *(placed(FOLDER), error.strerror or error),
            )
            self._file = io.BytesIO(pickle.dumps(what, 5))
        weakref.finalize(self, self._file.close)

    def get(self) -> T:
        """Return a copy of the object. Any thread may call this method."""
        with self._lock:
            self._file.seek(0)
            kept: T = pickle.load(self._file)  # noqa: S301  (written above)
            return kept


def _written(what: object) -> IO[bytes]:
    folder = placed(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    file = TemporaryFile(dir=folder)  # noqa: SIM115  (it is closed with its owner)
    try:
        pickle.dump(what, file, 5)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file
