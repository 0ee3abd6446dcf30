"""Downloads models by their addresses on Hugging Face's hub or a mirror.

    hf://org/name@revision ─ commit, list of files ─ the model, its weights, its descriptions
                             CACHE/org/name/COMMIT.json               CACHE/org/name/COMMIT/...

A commit never changes, so a downloaded commit needs no network. The commit of a branch or tag is
looked up every time. If the hub cannot be reached, the last commit that was looked up is used.
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
    "an address on a hub must be hf://ORG/NAME, hf://ORG/NAME@REVISION or"
    " hf://ORG/NAME/FOLDER/FILE.onnx"
)


@dataclass(frozen=True)
class Address:
    """Names a repository on a hub, and optionally one of its files."""

    org: str
    name: str
    revision: str = _MAIN  # a branch, tag or commit
    file: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == _MAIN else f"@{quote(self.revision, safe='')}"
        return f"hf://{self.org}/{self.name}{revision}{'/' if self.file else ''}{self.file}"


def parse_address(path: PurePath) -> Address | None:
    """Return the hub address that a path contains, or None for an ordinary path.

    `path` begins with `hf:/`, because Path merges the slashes of `hf://`. Raises ModelFileError for
    an incomplete address.
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
            f"{written}: the revision is invalid; it must name a branch, a tag or a commit"
        )
    return address


_Size = Annotated[int, msgspec.Meta(ge=0)]
_Sha1 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{40}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Large(msgspec.Struct):
    """Holds the checksum and size of a file in Git LFS. The git repository itself has only a
    pointer to such a file."""

    sha256: _Sha256
    size: _Size


class _File(msgspec.Struct):
    rfilename: str
    size: _Size
    blob: _Sha1 = msgspec.field(name="blobId")
    lfs: _Large | None = None


class _Listing(msgspec.Struct):
    """Holds the hub's list of the files of a repository at one commit."""

    sha: _Sha1
    siblings: list[_File]


def pull(address: Address, access: HubAccess, show: Show, cache: Path = CACHE) -> Path:
    """Return the path of the model at an address. Download the model, its weights and its
    description files first, unless they are in the cache.

    Raises ModelFileError if there is no model or several, or if a file name leads outside the
    folder. Raises NotDownloadedError if the repository or a file cannot be downloaded, or differs
    from the hub's listing.
    """
    # This imports ONNX, and the modules that read such files.
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
            "%s: model.toml is ignored, because it may name any file of this machine", address
        )
    _log.info("%s is at the commit %s", address, listing.sha)
    return found


# --- the list of files ---------------------------------------------------------------------------


def _listing(address: Address, access: HubAccess, home: Path) -> _Listing:
    """Return the list of files at the commit that the address names, from the hub or from the
    cache."""
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
            f"{address} was not downloaded, and HF_HUB_OFFLINE is set; unset HF_HUB_OFFLINE once,"
            f" or copy {home} from a machine that has this folder"
        )
    url = f"{access.endpoint}/api/models/{address.org}/{address.name}/revision/"
    url += f"{quote(address.revision, safe='')}?blobs=true"
    try:
        data = read(url, _LARGEST_LISTING, access.token)
        listing = _parsed(data)
        if _COMMIT.fullmatch(address.revision) and listing.sha != address.revision:
            raise DownloadError(f"the server listed the files of another commit, {listing.sha}")
    except DownloadError as error:
        if error.status in _FINAL or not is_here:
            raise _explained(address, access, url, error) from error
        _log.warning(
            "%s: the hub cannot be reached (%s); the downloaded commit %s is served",
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
    """Return the hub's list of files, parsed from JSON. Raises DownloadError if the text is not
    such a list."""
    try:
        return msgspec.json.decode(data, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DownloadError(f"the server's answer is not a list of files: {error}") from error


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    part.write_bytes(data)
    part.replace(path)


def _checked(address: Address, name: str) -> PurePosixPath:
    """Return a file's name as a path. Raises ModelFileError if it may lie outside the folder."""
    parts = name.split("/")
    if re.search(r"[\\\x00-\x1f]", name) or any(part in ("", ".", "..") for part in parts):
        raise ModelFileError(
            f"{address} is refused: the name of its file {name[:80]!a} is not a plain relative path"
        )
    return PurePosixPath(name)


# --- the files that are wanted -------------------------------------------------------------------


def _choose(address: Address, files: Collection[PurePosixPath]) -> PurePosixPath:
    """Return the path of the model file that the address names. Raises ModelFileError if there is
    none or several."""
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
                f"the model of {address} may be {_shown(found, 'or')}; name the file to serve, such"
                f" as {replace(address, file=str(found[0]))}"
            )
        what, every = f"{address} has no *.onnx file; Convoy serves only ONNX models", sorted(files)
    there = f"it has {_shown(every, 'and')}" if every else "it has no files"
    raise ModelFileError(f"{what}; {there}")


def _shown(files: Collection[PurePosixPath], word: str) -> str:
    names = [str(file) for file in files][:_SHOWN]
    more = len(files) - len(names)
    return f" {word} ".join(names) + (f" {word} {more} more" if more else "")


def _named(
    address: Address, model: PurePosixPath, name: str, files: Collection[PurePosixPath]
) -> PurePosixPath:
    """Return the path of a weights file to which the model refers by `name`. Raises ModelFileError
    if the repository lacks the file."""
    path = model.parent / name
    if path not in files:
        raise ModelFileError(
            f"{address}: {model} stores weights in {name[:80]!a}, which the repository lacks"
        )
    return path


def _check_room(address: Address, files: Collection[_File]) -> None:
    from models import FileLimits  # noqa: PLC0415  it brings ONNX

    total, most = sum(_source("", file).bytes for file in files), FileLimits().max_bytes
    if total > most:
        raise ModelFileError(
            f"{address} has {total:,} bytes; choose a model of at most {most:,} bytes"
        )


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
    401: "check the repository's name. A private or gated repository needs a token: "
    "set HF_TOKEN to a token that may read the repository",
    403: "the token has no access: accept the conditions on the repository's page, or set "
    "HF_TOKEN to another token",
    404: "check the names of the repository and of the revision",
    429: "try again later, or set HF_TOKEN: the limit is higher with a token",
}
_FINAL = {401, 403, 404}  # the hub's verdict on the repository, which is final


def _explained(
    address: Address, access: HubAccess, url: str, error: DownloadError
) -> NotDownloadedError:
    """Add advice for the user to the error of a download, and return the new error."""
    advice = _REFUSED.get(error.status or 0) or (
        "check the network. Set https_proxy to a proxy or HF_ENDPOINT to a mirror of the hub "
        f"(now {access.endpoint}), or copy the files to this machine and name their folder"
    )
    if error.status == 401 and access.token:
        advice = f"HF_TOKEN is not a token of {access.endpoint}, or the repository does not exist"
    begun = f"; {error.begun:,} bytes arrived; try again to resume" if error.begun else ""
    return NotDownloadedError(
        f"{address} cannot be downloaded from {url}: {error}{begun}; {advice}"
    )
