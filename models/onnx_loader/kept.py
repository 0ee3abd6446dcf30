"""Caches translated models on disk, so that the next start need not translate them again.

A cached translation is used only for the same model, the same options and the same version of this
code. Files that another user may have written are ignored.
"""

import hashlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from onnx import ModelProto

from kernels.device.cache_folder import FOLDER as CACHE_FOLDER
from kernels.device.cache_folder import placed

T = TypeVar("T")

TRANSLATED = CACHE_FOLDER / "translated"

# The most bytes of one cached translation; the most files, and the most bytes in total. The files
# that were written last are kept.
_MOST_BYTES = 2**28
_MOST_FILES, _MOST_BYTES_IN_ALL = 16, 2**30

_DIGEST_BYTES = hashlib.sha256().digest_size
_ROOT = Path(__file__).parents[2]
_SOURCES = ("kernels/problems", "models/onnx_loader", "models/graph.py", "models/scores.py")
_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxscript", "protobuf")

_log = logging.getLogger("convoy")


def translated(
    proto: ModelProto, question: Any, translate: Callable[[], T], folder: Path | None
) -> T:
    """Return a model's translation from the cache. If it is not there, call `translate` and cache
    the result.

    `question` has all options that affect the translation. Its repr is part of the cache key and
    must be stable. If `folder` is None, nothing is cached.
    """
    if folder is None or proto.ByteSize() > _MOST_BYTES:
        return translate()
    whole = hashlib.sha256(_translator())
    whole.update(repr(question).encode())
    whole.update(proto.SerializeToString(deterministic=True))
    path = placed(folder) / whole.hexdigest()
    data = _read(path)
    if data is not None:
        kept: T = pickle.loads(data)  # noqa: S301  (written below, by this user)
        return kept
    made = translate()
    try:
        _write(path, pickle.dumps(made, 5))
    except OSError as error:
        why = error.strerror or error
        _log.info("translations of models are not cached in %s: %s", placed(folder), why)
    return made


def _read(path: Path) -> bytes | None:
    """Return the translation in a cache file, or None if the file cannot be used.

    A file cannot be used if it is missing or truncated, or if another user owns it or can write it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if not own or status.st_mode & (S_IWGRP | S_IWOTH):
                return None
            digest, data = file.read(_DIGEST_BYTES), file.read()
    except OSError:
        return None
    return data if hashlib.sha256(data).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    """Write a cache file atomically. Then delete the oldest files if the cache exceeds its limits.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=_UNFINISHED, delete=False) as file:
        try:
            file.write(hashlib.sha256(data).digest())
            file.write(data)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise
    left = _MOST_BYTES_IN_ALL
    for number, (_, size, kept) in enumerate(sorted(_files(path.parent), reverse=True)):
        left -= size
        if number >= _MOST_FILES or left < 0:
            kept.unlink(missing_ok=True)


_UNFINISHED = "."


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the modification time, size and path of each cache file in a folder."""
    for path in folder.iterdir():
        try:
            status = path.stat()
            yield status.st_mtime_ns, status.st_size, path
        except OSError:  # another process has deleted it
            continue


@cache
def _translator() -> bytes:
    """Return a digest of the source code and the library versions on which a translation
    depends."""
    whole = hashlib.sha256()
    for library in _LIBRARIES:
        whole.update(f"{library} {version(library)}\n".encode())
    for source in map(_ROOT.joinpath, _SOURCES):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            whole.update(f"{path.relative_to(_ROOT)}\n".encode())
            whole.update(path.read_bytes())
    return whole.digest()
