"""Finds models by name in a catalogue, and downloads them with `pull`.

    name ─ catalogue.toml, --catalogue ─ Entry ─ download ─ PULLED/NAME/model.onnx

The folder of a downloaded model has the model's name.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models import CACHE_FOLDER, ModelFileError, placed
from service.hosting.download import DownloadError, NotDownloadedError, Source, fetch
from service.progress import Show

PULLED = CACHE_FOLDER / "models"

# Names are parts of URLs and of folders' paths, and /v2/models/stats is a route.
_NAME = re.compile(r"(?!stats$)[A-Za-z0-9][A-Za-z0-9._-]*")

_SHIPPED = Path(__file__).with_suffix(".toml")


class Entry(BaseModel):
    """Describes one model of a catalogue. Comments in the catalogue file explain the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern="^https?://")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(gt=0)
    licence: str
    preset: str
    labels: tuple[str, ...] = ()
    top1: float | None = None


def check_name(name: str, whose: object) -> None:
    """Raise ModelFileError if `name` is not a valid model name. The message begins with `whose`,
    which says where the name is from."""
    if not _NAME.fullmatch(name):
        raise ModelFileError(
            f"{whose}: invalid model name {name[:80]!a}; use letters, digits, dots, dashes and"
            " underscores, begin with a letter or digit, and do not use `stats`"
        )


# The least ratio of difflib for a misspelling, and the least letters of a beginning that is
# compared.
_ALIKE, _FEWEST_LETTERS = 0.8, 3


def read_catalogue(more: Path | None = None) -> dict[str, Entry]:
    """Return the entries of the built-in catalogue and of the file `more`, by model name. Entries
    of `more` override built-in entries. Raises ModelFileError."""
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
    """Return the entry with this name. If there is none, raises ModelFileError with similar names
    in the message."""
    if name in entries:
        return entries[name]
    raise ModelFileError(f"the catalogue has no model {name}; {near_names(name, entries)}")


def near_names(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about the unknown name `name`: a question that suggests
    similar names, or a list of all names.

    Names that begin with `name` are similar. If there are none, the name with the closest spelling
    is similar.
    """
    asked, known = name.lower(), list(names)
    long = len(asked) >= _FEWEST_LETTERS
    near = [name for name in known if long and name.startswith(asked)][:3]
    near = near[:1] if asked in known else near or get_close_matches(asked, known, 1, _ALIKE)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"the models are {', '.join(known)}; `convoy models` describes them"


def pulled(name: str, folder: Path = PULLED) -> Path | None:
    """Return the model file that `pull` downloaded earlier, or None if there is none."""
    path = _file(name, folder) if _NAME.fullmatch(name) else None
    return path if path is not None and path.is_file() else None


def pull(name: str, entry: Entry, show: Show, folder: Path = PULLED) -> Path:
    """Download a model unless it was downloaded before, and return the path of the model file.

    Raises ModelFileError for an invalid name, and NotDownloadedError if the server does not send
    the file or sends a different file.
    """
    target = _file(name, folder)
    source = Source(entry.url, entry.bytes, entry.sha256)
    try:
        fetch(
            source,
            target,
            lambda done: show(name, done, entry.bytes),
            before=lambda: _describe(target.parent, entry),
        )
    except DownloadError as error:
        raise NotDownloadedError(
            f"{name} cannot be pulled from {entry.url}: {error}; {_advice(error, entry)}"
        ) from error
    return target


def _file(name: str, folder: Path) -> Path:
    """Return the path where the model with this name is stored, inside the folder. Raises
    ModelFileError for an invalid name."""
    check_name(name, name)
    return placed(folder) / name / "model.onnx"


def _advice(error: DownloadError, entry: Entry) -> str:
    """Return advice for the user after a failed download."""
    if error.begun:
        return f"{error.begun:,} of {entry.bytes:,} bytes were downloaded; try again to resume"
    if error.status is not None and error.status < 500:
        return "nothing was downloaded; check the model's `url` in the catalogue"
    return (
        "nothing was downloaded; check the network, and https_proxy if the network needs a proxy; "
        "--catalogue FILE may name a mirror"
    )


def _describe(folder: Path, entry: Entry) -> None:
    """Write model.toml and, if the entry has labels, labels.txt into the model's folder."""
    lines = [f"preset = {json.dumps(entry.preset)}"]
    if entry.labels:
        lines.append('labels = "labels.txt"')
        (folder / "labels.txt").write_text("\n".join(entry.labels) + "\n", encoding="utf-8")
    (folder / "model.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
