"""Downloads files over https or http, from networks that may fail at any byte.

    Source ─ fetch ─ TARGET.SUM.part ─ size and sum ─ TARGET

A file gets its final name only after its size and checksum have been checked. An incomplete
download is resumed. Redirects from https are followed only to https, and an access token is never
sent to a second server.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from typing_extensions import override

from models import ModelFileError

_TRIES = 5
_CHUNK = 2**16
_STALLED_S = 30.0  # without a byte from the server

# Seconds before the second try; the pause doubles before each further try.
_PAUSE_S = 0.25
# The longest that a server may ask to wait (Retry-After) before the next try.
_LONGEST_PAUSE_S = 20.0

_TOO_MANY_REQUESTS = 429
_RANGE_NOT_SATISFIABLE = 416

_Got = TypeVar("_Got")


class NotDownloadedError(ModelFileError):
    """Raised if a model cannot be downloaded. The message gives the reason."""


class DownloadError(NotDownloadedError):
    """Raised if a server did not send a file, or sent only part of it.

    `status` is the HTTP status, or None if there was no answer. `begun` is the number of bytes
    downloaded so far.
    """

    def __init__(self, reason: str, status: int | None = None, begun: int = 0) -> None:
        super().__init__(reason)
        self.status, self.begun = status, begun


@dataclass(frozen=True)
class Source:
    """Describes a file on a server, with the size and the checksum that the file must have.

    `sum` is the SHA-256 of the file, or its SHA-1 as a git blob, which has 40 digits.
    """

    url: str
    bytes: int
    sum: str
    token: str = field(default="", repr=False)


def fetch(
    source: Source,
    target: Path,
    progress: Callable[[int], None],
    before: Callable[[], None] = lambda: None,
) -> None:
    """Download a file to `target`, unless it is there already. `progress` is called with the number
    of bytes so far.

    `before` is called once the file is complete, before it is moved to `target`. Raises
    DownloadError if the server does not send the file, and NotDownloadedError if it sends a
    different file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{source.sum[:16]}.part")
    while not (target.is_file() and _sum(target, source) == source.sum):
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of two downloads, the second waits
            if _is_at(part, file):  # otherwise the first has ended; look again at its file
                _complete(source, part, file, progress)
                before()
                part.replace(target)
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether an open file is still at this path. Another process may have moved or removed
    the file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _complete(source: Source, part: Path, file: BinaryIO, progress: Callable[[int], None]) -> None:
    """Download the missing bytes of a partial file, and check the file's checksum. Raises
    DownloadError, and NotDownloadedError if the checksum is wrong."""
    try:
        _try(lambda: _append(source, file, progress))
    except DownloadError as error:
        error.begun = file.tell()
        if not error.begun:
            part.unlink()
        raise
    if _sum(part, source) != source.sum:
        part.unlink()
        raise NotDownloadedError(
            f"{source.url} is not the expected file: its checksum differs; the download was deleted"
        )


def read(url: str, most: int, token: str = "") -> bytes:
    """Download `url`, and return the bytes of the answer. Raises NotDownloadedError if the answer
    has more than `most` bytes, and DownloadError if the download fails."""

    def answer() -> bytes:
        with _open(url, token) as response:
            data: bytes = response.read(most + 1)
        if len(data) > most:
            raise NotDownloadedError(f"{url} sent more than the {most:,} bytes allowed")
        if response.length:  # no error reports that bytes are missing
            raise ConnectionError(f"the server closed the connection after {len(data):,} bytes")
        return data

    return _try(answer)


def _try(download: Callable[[], _Got]) -> _Got:
    """Call `download` until it succeeds, at most `_TRIES` times, and return its result. Raises
    DownloadError."""
    for number in range(_TRIES):
        try:
            return download()
        except (OSError, HTTPException) as error:
            status = error.code if isinstance(error, HTTPError) else None
            refused = status is not None and status < 500 and status != _TOO_MANY_REQUESTS
            # A host that does not accept a connection for this long is behind a firewall.
            nowhere = isinstance(error, URLError) and isinstance(error.reason, TimeoutError)
            final = refused or nowhere
            pause = _pause(error, number)
            if final or number == _TRIES - 1 or pause > _LONGEST_PAUSE_S:
                raise DownloadError(_reason(error), status) from error
        time.sleep(pause)
    raise AssertionError("the last try neither returned nor raised an error")


def _pause(error: Exception, number: int) -> float:
    """Return the number of seconds to wait before the next try. The wait doubles with each try, and
    is longer if the server asks for that."""
    pause: float = _PAUSE_S * 2**number
    asked = error.headers.get("retry-after", "") if isinstance(error, HTTPError) else ""
    return max(pause, int(asked)) if asked.isdecimal() else pause


def _reason(error: Exception) -> str:
    """Return the message of a network error, without the angle brackets that urllib adds."""
    if isinstance(error, HTTPError):
        asked = error.headers.get("retry-after", "")
        later = f" and asks to wait {asked} s" if asked.isdecimal() else ""
        return f"the server answers {error.code} {error.reason}".rstrip() + later
    cause = error.reason if isinstance(error, URLError) else error
    return str(getattr(cause, "strerror", None) or cause)


class _Redirects(HTTPRedirectHandler):
    """Follows a redirect from https only to https, and a redirect from http only to https or http.
    urllib would also follow redirects to ftp. The access token is not sent to another server."""

    @override
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        allowed = ("https",) if old.scheme == "https" else ("https", "http")
        if new.scheme not in allowed:
            raise NotDownloadedError(
                f"{req.full_url} redirects to {newurl}, but only redirects to"
                f" {' and '.join(allowed)} are followed"
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            request.remove_header("Authorization")
        return request


def _open(url: str, token: str = "", **headers: str) -> Any:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = Request(url, headers=headers)  # noqa: S310  its scheme is http or https
    return build_opener(_Redirects).open(request, timeout=_STALLED_S)


def _append(source: Source, file: BinaryIO, progress: Callable[[int], None]) -> None:
    """Download the missing bytes and append them to the file. Raises OSError or HTTPException if
    the connection breaks."""
    begin = file.seek(0, 2)
    if begin > source.bytes:
        begin = file.truncate(0)
    progress(begin)
    if begin == source.bytes:
        return
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    try:
        response = _open(source.url, source.token, **headers)
    except HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE:
            file.truncate(0)  # the server's file ends before: the next try asks for all of it
            raise ConnectionError(f"the server's file ends before byte {begin:,}") from error
        raise
    with response:
        wanted = f"bytes {begin}-"
        if begin and not response.headers.get("content-range", "").startswith(wanted):
            begin = file.truncate(0)  # the server sends all of it
        while chunk := response.read1(min(_CHUNK, source.bytes - begin + 1)):
            begin += len(chunk)
            if begin > source.bytes:
                file.truncate(0)
                raise NotDownloadedError(
                    f"{source.url} has more than the expected {source.bytes:,} bytes"
                )
            file.write(chunk)
            progress(begin)
    file.flush()
    if begin < source.bytes:
        raise ConnectionError(f"the server closed the connection after {begin:,} bytes")


def _sum(path: Path, source: Source) -> str:
    """Return a file's checksum, computed with the algorithm of `source.sum`."""
    with path.open("rb") as file:
        if len(source.sum) == hashlib.sha256().digest_size * 2:
            return hashlib.file_digest(file, "sha256").hexdigest()
        blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        return hashlib.file_digest(file, lambda: blob).hexdigest()
