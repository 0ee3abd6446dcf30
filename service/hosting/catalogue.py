"""Finds models by name: where each file is, and the files that were pulled.

    name ─ catalogue.toml, --catalogue ─ Entry ─ download ─ sum ─ PULLED/NAME/model.onnx

A file takes its place only once its size and SHA-256 are right; one that is incomplete is resumed.
A name is that of one folder; a file comes by https or http alone, also where a server redirects.
"""

import fcntl
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from models import ModelFileError

PULLED = Path("~/.cache/convoy/models")

# Names are parts of URLs and folders, and /v2/models/stats is a route.
_NAME = re.compile(r"(?!stats$)[A-Za-z0-9][A-Za-z0-9._-]*")

_SHIPPED = Path(__file__).with_suffix(".toml")
_TRIES = 5
_CHUNK = 2**16
_STALLED_S = 30.0  # without a byte from the server


class Entry(BaseModel):
    """Describes one model of a catalogue; its file explains the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern="^https?://")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(gt=0)
    licence: str
    preset: str
    labels: tuple[str, ...] = ()
    top1: float | None = None


def check_name(name: str, whose: object) -> None:
    """Raise ModelFileError, beginning with `whose` name it is, unless a model may have it."""
    if not _NAME.fullmatch(name):
        raise ModelFileError(
            f"{whose}: invalid model name; use letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit, and not `stats`"
        )


# Of difflib's ratio, that of a slip; and of letters, below which a beginning says nothing.
_ALIKE, _FEWEST_LETTERS = 0.8, 3


def read_catalogue(more: Path | None = None) -> dict[str, Entry]:
    """Return all entries by name, those of the file `more` first. Raises ModelFileError."""
    entries: dict[str, Entry] = {}
    for path in (_SHIPPED, more):
        if path is None:
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            for name in table:
                check_name(name, f"{path}: {name!r}")
            entries |= {name: Entry.model_validate(entry) for name, entry in table.items()}
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise ModelFileError(f"{path}: {where}: {problem['msg']}") from error
        except (OSError, ValueError) as error:  # ValueError: not TOML, or not UTF-8
            raise ModelFileError(f"{path} cannot be read: {error}") from error
    return entries


def find_entry(name: str, entries: Mapping[str, Entry]) -> Entry:
    """Return the entry of that name. Raises ModelFileError, naming similar ones."""
    if name in entries:
        return entries[name]
    raise ModelFileError(f"there is no model {name} in the catalogue; {near_names(name, entries)}")


def near_names(name: str, names: Iterable[str]) -> str:
    """Return a question or a hint for a name that is not among `names`.

    Near are those that begin so; where there is none, the one that it may be a misspelling of.
    """
    asked, known = name.lower(), list(names)
    long = len(asked) >= _FEWEST_LETTERS
    near = [name for name in known if long and name.startswith(asked)][:3]
    near = near[:1] if asked in known else near or get_close_matches(asked, known, 1, _ALIKE)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known)}; `convoy models` describes them"


def pulled(name: str, folder: Path = PULLED) -> Path | None:
    """Return the file of a model that was pulled, or None."""
    path = _file(name, folder) if _NAME.fullmatch(name) else None
    return path if path is not None and path.is_file() else None


def pull(name: str, entry: Entry, progress: Callable[[int], None], folder: Path = PULLED) -> Path:
    """Download a model unless it is there, and return its file; `progress` gets the bytes so far.

    Raises ModelFileError for a name that no model may have, where no server has the file, or where
    it sends another one.
    """
    target = _file(name, folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and _sum(target) == entry.sha256:
        return target
    part = target.with_suffix(f".{entry.sha256[:16]}.part")
    with part.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two pulls, the second waits and finds all there
        for left in reversed(range(_TRIES)):
            try:
                _download(entry, file, progress)
                break
            except (OSError, HTTPException) as error:
                gone = isinstance(error, HTTPError) and error.code < 500
                if gone or not left:
                    advice = _advice(file.tell(), entry, gone=gone)
                    if not file.tell():
                        part.unlink()
                    raise ModelFileError(
                        f"{name} cannot be pulled from {entry.url}: {_reason(error)}; {advice}"
                    ) from error
        if part.is_file():
            if _sum(part) != entry.sha256:
                part.unlink()
                raise ModelFileError(
                    f"{entry.url} does not have the file of {name}: its SHA-256 is another"
                )
            _describe(target.parent, entry)
            part.replace(target)
    return target


def _file(name: str, folder: Path) -> Path:
    """Return the path of the model of that name, which is never outside the folder."""
    check_name(name, name)
    return folder.expanduser() / name / "model.onnx"


def _reason(error: Exception) -> str:
    """Return the network's reason for the error, without urllib's brackets."""
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}".rstrip()
    cause = error.reason if isinstance(error, URLError) else error
    return str(getattr(cause, "strerror", None) or cause)


def _advice(begun: int, entry: Entry, *, gone: bool) -> str:
    """Return advice after a download that failed with `begun` bytes received."""
    if begun:
        return f"{begun:,} of {entry.bytes:,} bytes are here: pull it again to resume"
    if gone:
        return "nothing was downloaded; is the address in the catalogue still right?"
    return "nothing was downloaded; is the network there, and does https_proxy name its proxy?"


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to https and http alone; urllib would also go to ftp."""

    @override
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in ("https", "http"):
            raise ModelFileError(
                f"{req.full_url} redirects to {newurl}; only https and http are followed"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(entry: Entry, file: BinaryIO, progress: Callable[[int], None]) -> None:
    """Append the missing bytes. Raises OSError or HTTPException if the connection breaks before."""
    begin = file.seek(0, 2)
    if begin > entry.bytes:
        begin = file.truncate(0)
    progress(begin)
    if begin == entry.bytes:
        return
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    request = Request(entry.url, headers=headers)  # noqa: S310  its scheme is http or https
    with build_opener(_Redirects).open(request, timeout=_STALLED_S) as response:
        wanted = f"bytes {begin}-"
        if begin and not response.headers.get("content-range", "").startswith(wanted):
            begin = file.truncate(0)  # the server sends all of it
        while chunk := response.read1(min(_CHUNK, entry.bytes - begin + 1)):
            begin += len(chunk)
            if begin > entry.bytes:
                file.truncate(0)
                raise ModelFileError(f"{entry.url} has more than {entry.bytes:,} bytes")
            file.write(chunk)
            progress(begin)
    file.flush()
    if begin < entry.bytes:
        raise ConnectionError(f"the server closed the connection after {begin:,} bytes")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(folder: Path, entry: Entry) -> None:
    """Write the model's model.toml and its labels."""
    lines = [f"preset = {json.dumps(entry.preset)}"]
    if entry.labels:
        lines.append('labels = "labels.txt"')
        (folder / "labels.txt").write_text("\n".join(entry.labels) + "\n", encoding="utf-8")
    (folder / "model.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
