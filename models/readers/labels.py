"""Reads the labels of classes in the formats of various programs.

    text   one label per line, optionally with its number: "cat", "0 cat", "1: cat", "cat<tab>0"
    JSON   a list of labels, or an object that maps numbers to labels or labels to numbers,
           optionally under a key such as id2label or names; Python's notation is also accepted
    YAML   the same, as in the data.yaml of Ultralytics
    CSV    a column of labels, optionally with a column of numbers

The numbers are class numbers from 0 or 1 on. They set the order, and are not part of the labels.
"""

import csv
import io
import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from models.errors import PreprocessingError
from models.readers.reading import LONGEST, read_text

LABEL_KEYS = (
    *("id2label", "names", "class_names", "classnames", "label_names", "labels", "classes"),
    *("class_labels", "categories", "idx_to_class", "index_to_class", "idx2label"),
    *("class_to_idx", "class_to_index", "class_indices", "label2id", "label"),
    "vocab",  # the key of fastai
)
"""The keys under which programs write labels, in lower case."""

_OF_NAMES = {"name", "label", "class", "class_name", "classname", "label_name", "title", "display"}
_OF_NUMBERS = {"id", "index", "idx", "number", "class_id", "label_id", "class_index", "target"}

_QUOTED = r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
_ITEM = re.compile(
    rf"\s*(?:(\d{{1,9}}|{_QUOTED})\s*:\s*)?(\d{{1,9}}|{_QUOTED})\s*(?:,\s*|(?=[])}}]))", re.DOTALL
)
_NUMBER_FIRST = re.compile(r"(\d{1,9})(?:\s*[:=,;|]\s*|[.)]\s+|\s+)(\S.*)")
_NUMBER_LAST = re.compile(r"(\S.*?)(?:\s*[:=,;|]\s*|\s+)(\d{1,9})")
_CLOSES = {"[": "]", "(": ")", "{": "}"}

_LONGEST_YAML = 2**20  # in characters; a million characters take ten seconds

Pair = tuple[int | None, str]  # the number of a class, or None, and its label


class NotLabelsError(PreprocessingError):
    """Raised if a file contains no labels in any known format."""


def read_label_file(path: Path, source: str = "") -> tuple[str, ...]:
    """Return the labels in a file. The suffix of its name decides its format.

    `source` is the file that refers to the label file, if any. Raises NotLabelsError if the file
    contains no labels, or if it is JSON, YAML or a table that cannot be parsed. All other failures
    raise PreprocessingError.
    """
    what, form = f"{source}: the labels" if source else "", path.suffix.lower()
    labels: tuple[str, ...] | None
    if form in _READERS:
        longest, read = _READERS[form]
        try:
            labels = read(path, read_text(path, what, longest))
        except PreprocessingError as error:
            raise NotLabelsError(str(error)) from error
    else:
        text = read_text(path, what)
        labels = labels_in(parse_value(text)) or _in_lines(path, text)
    if not labels:
        raise NotLabelsError(
            f"{path} has no labels in a known format. Write one label per line, or a list of"
            " labels, or labels by class number from 0 or 1 on, in JSON, YAML or CSV"
        )
    return labels


def _in_yaml(path: Path, text: str) -> tuple[str, ...] | None:
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  few models need it

    try:
        return labels_in(yaml.load(text, yaml.BaseLoader))  # noqa: S506  it makes strings alone
    except (yaml.YAMLError, RecursionError) as error:
        raise PreprocessingError(f"{path} cannot be read: {error}") from error


def _in_json(path: Path, text: str) -> tuple[str, ...] | None:
    value = parse_value(text)
    if value is None:
        raise PreprocessingError(f"{path} cannot be read: it is not a list or object in JSON")
    return labels_in(value)


def labels_in_text(text: str) -> tuple[str, ...] | None:
    """Return the labels in a text of unknown format, or None if it contains no labels.

    The text may be a list or dict. It may also be two or more labels, separated by line ends,
    semicolons or commas.
    """
    if (value := parse_value(text)) is not None:
        return labels_in(value)
    separator = next((each for each in "\n;," if each in text.strip()), None)
    if separator is None:
        return None
    labels = tuple(label.strip() for label in text.strip().split(separator))
    return labels if all(labels) else None


def parse_value(text: str) -> object:
    """Parse JSON, or a flat list or dict in Python's notation. Return None for other text."""
    if text.lstrip()[:1] not in _CLOSES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _parse_literal(text.strip())


def labels_in(value: object, depth: int = 2) -> tuple[str, ...] | None:
    """Return the labels that a value lists, ordered by class number, or None if it lists no labels.

    If the value is a dict, the labels may be under one of LABEL_KEYS, nested at most `depth` times.
    """
    if isinstance(value, list):
        return _in_order(_pair(item) for item in value)
    if not isinstance(value, dict):
        return None
    keys = [str(key) for key in value]
    if all(map(_is_number, keys)):
        labels = (_label_of(item) for item in value.values())
        return _in_order(
            None if label is None else (int(key), label)
            for key, label in zip(keys, labels, strict=True)
        )
    if all(_is_number(item) for item in value.values()):
        return _in_order((int(str(item)), key) for key, item in value.items())
    by_key = {str(key).lower(): item for key, item in value.items()}
    found = (labels_in(by_key[key], depth - 1) for key in LABEL_KEYS if depth and key in by_key)
    return next((labels for labels in found if labels), None)


def _pair(item: object) -> Pair | None:
    """Return the class number and the label of an entry in a list. The number may be None."""
    label = _label_of(item)
    if label is None:
        return None
    numbers = item.items() if isinstance(item, dict) else ()
    number = next((n for key, n in numbers if key in _OF_NUMBERS and _is_number(n)), None)
    return (None if number is None else int(number)), label


def _label_of(item: object) -> str | None:
    """Return the label of an entry, or None if the entry has another form.

    The entry is the label itself, a dict with a label and a number, or a list of a WordNet
    identifier and a label, as in ImageNet's class index.
    """
    if isinstance(item, dict):
        item = next((text for key, text in item.items() if key in _OF_NAMES), None)
    if isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item):
        item = " ".join(item)
    if isinstance(item, bool) or not isinstance(item, str | int | float):
        return None
    return str(item).strip() or None


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and value.isascii() and len(value) <= 9
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _in_order(pairs: Iterable[Pair | None]) -> tuple[str, ...] | None:
    """Return labels in the order of their numbers.

    The result is None if a label is missing, or if the numbers are not consecutive from 0 or 1 on.
    """
    found = list(pairs)
    known = [pair for pair in found if pair is not None]
    if len(known) < len(found):
        return None
    if all(number is None for number, _ in known):
        return tuple(label for _, label in known)
    by_number = {number: label for number, label in known if number is not None}
    for first in (0, 1):
        numbers = range(first, first + len(known))
        if by_number.keys() == set(numbers):
            return tuple(by_number[number] for number in numbers)
    return None


def _parse_literal(text: str) -> object:
    """Parse a list, tuple or dict of numbers and strings in Python's notation. Return None for
    other text.

    Python's own parser would need a hundred times the memory of the text.
    """
    items: list[tuple[object, object]] = []
    at, end = 1, len(text) - 1
    while at < end:
        match = _ITEM.match(text, at)
        if match is None:
            return None
        try:
            items.append((_plain(match[1]), _plain(match[2])))
        except (SyntaxError, ValueError):  # an invalid escape
            return None
        at = match.end()
    if at != end or text[-1] != _CLOSES[text[0]]:
        return None
    if text[0] == "{":
        return dict(items)
    return None if any(key is not None for key, _ in items) else [value for _, value in items]


def _plain(token: str | None) -> object:
    if token is None or token.isdecimal():
        return token if token is None else int(token)
    return literal_eval(token) if "\\" in token else token[1:-1]


def _in_lines(path: Path, text: str) -> tuple[str, ...]:
    lines = [line.strip() for line in text.rstrip().split("\n")]
    if "" in lines:
        number = lines.index("") + 1
        raise PreprocessingError(f"{path}: line {number} is empty; write one label per line")
    for quote in "\"'":
        bare = [line.removesuffix(",") for line in lines]
        if all(len(line) > 2 and line[0] == line[-1] == quote for line in bare):
            lines = [line[1:-1].strip() for line in bare]
    matches = [_NUMBER_FIRST.fullmatch(line) for line in lines]
    first = _in_order(None if m is None else (int(m[1]), m[2]) for m in matches)
    matches = [_NUMBER_LAST.fullmatch(line) for line in lines]
    last = _in_order(None if m is None else (int(m[2]), m[1]) for m in matches)
    # The numbers in "1 euro", "2 euro" are parts of the labels. Without them, most labels would be
    # equal.
    few = len(set(lines)) / 2
    return next((cut for cut in (first, last) if cut and len(set(cut)) > few), tuple(lines))


def _in_table(path: Path, text: str) -> tuple[str, ...] | None:
    line = text.partition("\n")[0]
    separator = max(",;\t|", key=line.count)
    try:
        read = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error as error:
        raise PreprocessingError(f"{path} cannot be read: {error}") from error
    rows = [[cell.strip() for cell in row] for row in read if any(map(str.strip, row))]
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    heads = [cell.lower() for cell in rows[0]]
    named = [i for i, head in enumerate(heads) if head in _OF_NAMES or head in LABEL_KEYS]
    headed = _of_columns(rows[1:], named)
    if named or not _OF_NUMBERS.isdisjoint(heads):
        return headed
    return _of_columns(rows, ()) or headed  # the heading may be in another language


def _of_columns(rows: Sequence[Sequence[str]], named: Sequence[int]) -> tuple[str, ...] | None:
    """Return the labels in a table, or None if the table may list images instead of labels.

    `named` has the indices of the columns that contain labels according to their headings.
    """
    columns = list(zip(*rows, strict=True))
    if len(columns) == 1:
        return columns[0]
    numbered = [column for column in columns if all(map(_is_number, column))]
    chosen = [columns[i] for i in named] or [each for each in columns if each not in numbered]
    if not chosen:
        return None
    for column in numbered:
        if ordered := _in_order(zip(map(int, column), chosen[0], strict=True)):
            return ordered
    is_apart = len(set(chosen[0])) == len(chosen[0])
    return chosen[0] if named and is_apart and not numbered else None


def labels_by_number(path: Path, key: str, names: Mapping[str, object]) -> tuple[str, ...]:
    """Return the labels of a JSON object whose keys are class numbers."""
    labels = [names.get(str(number)) for number in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        raise PreprocessingError(f"{path}: {key} must have a label for each class number from 0 on")
    return tuple(map(str, labels))


_READERS = {
    ".json": (LONGEST, _in_json),
    ".yaml": (_LONGEST_YAML, _in_yaml),
    ".yml": (_LONGEST_YAML, _in_yaml),
    ".csv": (LONGEST, _in_table),
    ".tsv": (LONGEST, _in_table),
}
