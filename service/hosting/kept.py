"""Keeps a version of a model as it was read, to open further engines after its files have changed.

On disk, not in memory: it has all weights.
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
    """Holds a picklable object in an unnamed file, which is deleted with this or with the process.

    Where no file can be written it is held in memory, and the log says so.
    """

    def __init__(self, what: T) -> None:
        self._lock = Lock()
        self._file: IO[bytes]
        try:
            self._file = _written(what)
        except OSError as error:
            _log.warning(
                "models are kept in memory, too, since nothing can be kept in %s: %s",
                *(FOLDER, error.strerror or error),
            )
            self._file = io.BytesIO(pickle.dumps(what, 5))
        weakref.finalize(self, self._file.close)

    def get(self) -> T:
        """Return a copy of the object; any thread may call this."""
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
