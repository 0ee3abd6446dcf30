"""Gets models by their addresses on Hugging Face's hub or on a mirror of it.

    hf://org/name@revision ─ commit, list of files ─ the model, its weights, what describes it
                             CACHE/org/name/COMMIT.json               CACHE/org/name/COMMIT/...

A commit never changes, so one that is here needs no network. A branch or a tag is looked up anew;
where the hub cannot be reached, its last known commit is taken.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec

from models import (
    CACHE_FOLDER,
    ModelFileError,
    placed,
)
from service.hosting.download import DownloadError, NotDownloadedError, Source, fetch, read
from service.hosting.onnx_files import model_files
from service.progress import Show
from service.settings import HubAccess

CACHE = CACHE_FOLDER / "hub"

_log = logging.getLogger("convoy")

_SCHEME = "hf:"
_NAME = re.compile(r"(?!\.)[\w.-]{1,96}", re.ASCII)
_REVISION = re.compile(r"[!-~]{1,80}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN = "main"

_LARGEST_LISTING = 2**24  # bytes; 50,000 files
_SHOWN = 8  # files in a message

_FORM = (
    "a model of a hub is hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://ORG/NAME/FOLDER/FILE.onnx"
)


@dataclass(frozen=True)
class Address:
    """Names a repository of a hub, and optionally one of its files."""

    org: str
    name: str
    revision: str = _MAIN  # a branch, tag or commit
    file: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == _MAIN else f"@{quote(self.revision, safe='')}"
        return f"hf://{self.org}/{self.name}{revision}{'/' if self.file else ''}{self.file}"


def parse_address(path: PurePath) -> Address | None:
    """Return the address that a path was made from, or None if it is an ordinary path.

    A path has lost one slash of `hf://`. Raises ModelFileError for an address that is incomplete.
    """
    if path.parts[:1] != (_SCHEME,):
        return None
    parts = path.parts[1:]
    org, repository, *inside = [*parts, "", ""][: max(2, len(parts))]
    name, at, revision = repository.partition("@")
    if revision == "refs" and len(inside) >= 2:  # refs/pr/1 need not be written refs%2Fpr%2F1
        revision, inside = "/".join((revision, *inside[:2])), inside[2:]
    address = Address(org, name, unquote(revision) if at else _MAIN, "/".join(inside))
    written = str(path).replace(f"{_SCHEME}/", f"{_SCHEME}//", 1)
    if not (_NAME.fullmatch(org) and _NAME.fullmatch(name)):
        raise ModelFileError(f"{written}: {_FORM}")
    if not _REVISION.fullmatch(address.revision):
        raise ModelFileError(
            f"{written}: a revision cannot have that name; it must be a branch, a tag or a commit"
        )
    return address


_Size = Annotated[int, msgspec.Meta(ge=0)]
_Sha1 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Large(msgspec.Struct):
    """Holds the checksum and size of a file for which git has only a pointer."""

    sha256: _Sha256
    size: _Size


class _File(msgspec.Struct):
    rfilename: str
    size: _Size
    blob: _Sha1 = msgspec.field(name="blobId")
    lfs: _Large | None = None


class _Listing(msgspec.Struct):
    """Holds the hub's description of a repository at a commit."""

    sha: _Sha1
    siblings: list[_File]


def pull(address: Address, access: HubAccess, show: Show, cache: Path = CACHE) -> Path:
    """Return a model's file; it, its weights and the files that describe it are downloaded if they
    are missing.

    Raises ModelFileError where there is no model or several, or a file's name leads outside, and
    NotDownloadedError where the repository or a file of it cannot be had or is not what the hub
    says.
    """
    # They bring all that reads such files, and ONNX.
    from models import descriptions_of, external_files, files_beside  # noqa: PLC0415

    home = placed(cache) / address.org / address.name
    listing = _listing(address, access, home)
    files = {_checked(address, file.rfilename): file for file in listing.siblings}
    model = _choose(address, files)
    wanted = [*files_beside(model, files), model]
    _check_room(address, [files[path] for path in wanted])
    at_commit = replace(address, revision=listing.sha)
    for path in wanted:
        _fetch(at_commit, access, path, files[path], home / listing.sha, show)
    found = home / listing.sha / model
    weights = [_named(address, model, name, files) for name in sorted(external_files(found))]
    _check_room(address, [files[path] for path in (*wanted, *weights)])
    for path in weights:
        _fetch(at_commit, access, path, files[path], home / listing.sha, show)
    if not files.keys().isdisjoint(descriptions_of(model)):
        _log.warning(
            "%s: its model.toml is not used: it may name any file of this machine", address
        )
    _log.info("%s is the commit %s", address, listing.sha)
    return found


# --- the list of files ---------------------------------------------------------------------------


def _listing(address: Address, access: HubAccess, home: Path) -> _Listing:
    """Return the list of files at the address' commit, from the hub or as stored here."""
    last = home / f"{quote(address.revision, safe='')}.commit"  # what a branch or tag was
    if _COMMIT.fullmatch(address.revision):
        commit = address.revision
    else:
        commit = last.read_text(encoding="ascii") if last.is_file() else ""
    known = home / f"{commit}.json"
    is_here = bool(commit) and known.is_file()
    if is_here and (access.offline or commit == address.revision):
        return _parsed(known.read_bytes())
    if access.offline:
        raise NotDownloadedError(
            f"{address} is not here, and HF_HUB_OFFLINE is set; download it once without, or copy "
            f"{home} from a machine that has it"
        )
    url = f"{access.endpoint}/api/models/{address.org}/{address.name}/revision/"
    url += f"{quote(address.revision, safe='')}?blobs=true"
    try:
        data = read(url, _LARGEST_LISTING, access.token)
        listing = _parsed(data)
        if _COMMIT.fullmatch(address.revision) and listing.sha != address.revision:
            raise DownloadError(f"the server answers with another commit, {listing.sha}")
    except DownloadError as error:
        if error.status in _FINAL or not is_here:
            raise _explained(address, access, url, error) from error
        _log.warning(
            "%s: the hub cannot be asked (%s); the commit %s is served, which is here",
            address,
            error,
            commit,
        )
        return _parsed(known.read_bytes())
    home.mkdir(parents=True, exist_ok=True)
    _write(home / f"{listing.sha}.json", data)
    _write(last, listing.sha.encode())
    return listing


def _parsed(data: bytes) -> _Listing:
    """Return the parsed listing. Raises DownloadError if the text is no listing."""
    try:
        return msgspec.json.decode(data, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DownloadError(f"the server's answer is no list of files: {error}") from error


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    part.write_bytes(data)
    part.replace(path)


def _checked(address: Address, name: str) -> PurePosixPath:
    """Return a file's name as a path. Raises ModelFileError if it may lie outside the folder."""
    parts = name.split("/")
    if re.search(r"[\\\x00-\x1f]", name) or any(part in ("", ".", "..") for part in parts):
        raise ModelFileError(
            f"{address} is refused: it has a file {name[:80]!a}, which is no plain relative path"
        )
    return PurePosixPath(name)


# --- the files that are wanted -------------------------------------------------------------------


def _choose(address: Address, files: Collection[PurePosixPath]) -> PurePosixPath:
    """Return the model that the address means. Raises ModelFileError if there is none, or
    several."""
    every = sorted(file for file in files if file.suffix == ".onnx")
    if address.file:
        if PurePosixPath(address.file) in every:
            return PurePosixPath(address.file)
        what = f"{replace(address, file='')} has no model {address.file}"
        every = every or sorted(files)
    else:
        found = model_files(files) or every
        if len(found) == 1:
            return found[0]
        if found:
            raise ModelFileError(
                f"the model of {address} may be {_shown(found, 'or')}; name the one to serve, as "
                f"{replace(address, file=str(found[0]))}"
            )
        what, every = f"{address} has no *.onnx, and Convoy serves no other models", sorted(files)
    there = f"it has {_shown(every, 'and')}" if every else "it has no files"
    raise ModelFileError(f"{what}; {there}")


def _shown(files: Collection[PurePosixPath], word: str) -> str:
    names = [str(file) for file in files][:_SHOWN]
    more = len(files) - len(names)
    return f" {word} ".join(names) + (f" {word} {more} more" if more else "")


def _named(
    address: Address, model: PurePosixPath, name: str, files: Collection[PurePosixPath]
) -> PurePosixPath:
    """Return the file that a model names. Raises ModelFileError if the repository lacks it."""
    path = model.parent / name
    if path not in files:
        raise ModelFileError(
            f"{address}: {model} keeps weights in {name[:80]!a}, which the repository does not have"
        )
    return path


def _check_room(address: Address, files: Collection[_File]) -> None:
    from models import FileLimits  # noqa: PLC0415  it brings ONNX

    total, most = sum(_source("", file).bytes for file in files), FileLimits().max_bytes
    if total > most:
        raise ModelFileError(f"{address} has {total:,} bytes; a model may have {most:,} at most")


def _source(url: str, file: _File, token: str = "") -> Source:
    if file.lfs is not None:
        return Source(url, file.lfs.size, file.lfs.sha256, token)
    return Source(url, file.size, file.blob, token)


def _fetch(
    address: Address,
    access: HubAccess,
    path: PurePosixPath,
    file: _File,
    folder: Path,
    show: Show,
) -> None:
    place = f"{address.org}/{address.name}/resolve/{address.revision}/{quote(str(path))}"
    source = _source(f"{access.endpoint}/{place}", file, access.token)
    try:
        fetch(source, folder / path, lambda done: show(path.name, done, source.bytes))
    except DownloadError as error:
        raise _explained(address, access, source.url, error) from error


# --- errors --------------------------------------------------------------------------------------

_REFUSED: Mapping[int, str] = {
    401: "is there such a repository? A private one, or one with conditions, needs a token: "
    "set HF_TOKEN to one that may read it",
    403: "the token may not read it: accept the conditions on the repository's page, or set "
    "HF_TOKEN to another",
    404: "is there such a repository, and has it that revision?",
    429: "try again later; with a token in HF_TOKEN more is allowed",
}
_FINAL = {401, 403, 404}  # the hub's own word on the repository, which no other way gets around


def _explained(
    address: Address, access: HubAccess, url: str, error: DownloadError
) -> NotDownloadedError:
    """Return a download's error with advice added."""
    advice = _REFUSED.get(error.status or 0) or (
        "is the network there? https_proxy names a proxy, HF_ENDPOINT a mirror of the hub "
        f"(it is {access.endpoint}); files that come by other ways are served as a folder"
    )
    if error.status == 401 and access.token:
        advice = f"HF_TOKEN is not a token of {access.endpoint}, or there is no such repository"
    begun = f"; {error.begun:,} bytes are here, and the next try resumes" if error.begun else ""
    return NotDownloadedError(f"{address} cannot be had from {url}: {error}{begun}; {advice}")
