"""Reads labels, the largest batch, a deadline and a priority from Triton's `config.pbtxt`."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from models.errors import PreprocessingError
from models.readers.labels import read_label_file
from models.readers.reading import (
    LARGEST_BATCH,
    LOWEST_PRIORITY,
    Keys,
    Reading,
    named_by,
    read_text,
)

NAME = "config.pbtxt"

Message = dict[str, list[Any]]

# Fields that are read, or that only repeat facts in the model file.
_KNOWN = {
    "name",
    "platform",
    "backend",
    "input",
    "output",
    "max_batch_size",
    "dynamic_batching",
}
_KNOWN_OF_TENSOR = {"name", "data_type", "format", "dims", "label_filename"}
_KNOWN_OF_BATCHING = {"default_queue_policy", "priority_levels", "default_priority_level"}
_POLICY = "default_timeout_microseconds"

_TOKEN = re.compile(
    r"""(?: \s+ | \#[^\n]* )*
    (?: ( "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | [\w.+-]+ | [][{}<>:;,] ) | $ )""",
    re.VERBOSE,
)
_CLOSES = {"{": "}", "<": ">"}


def read_triton(path: Path) -> Reading | None:
    """Read a configuration in protobuf's text format. The result also lists the entries that are
    not used."""
    tokens = _tokens(path, read_text(path))
    try:
        config = _message(tokens, "")
    except (StopIteration, ValueError, RecursionError) as error:
        raise PreprocessingError(
            f"{path} cannot be read: it is not in protobuf's text format, or is truncated"
        ) from error
    outputs = _messages(path, config, "output")
    names = [str(name) for output in outputs for name in output.get("label_filename", [])]
    batching = (_messages(path, config, "dynamic_batching") or [{}])[-1]
    policy = (_messages(path, batching, "default_queue_policy") or [{}])[-1]
    delays = _last(policy, "timeout_action") in ("DELAY", "1")
    known = set() if delays else {_POLICY, "timeout_action"}
    tensors = [*_messages(path, config, "input"), *outputs]
    ignored = [
        *(name for name in config if name not in _KNOWN),
        *dict.fromkeys(name for one in tensors for name in one if name not in _KNOWN_OF_TENSOR),
        *(name for name in batching if name not in _KNOWN_OF_BATCHING),
        *(name for name in policy if name not in known),
    ]
    return Reading(
        path,
        labels=partial(_labels, path, names[0]) if names else None,
        serving=_serving(path, config, batching, {} if delays else policy),
        ignored=(*ignored, *_beyond(path, config, batching)),
    )


def _beyond(path: Path, config: Message, batching: Message) -> Iterator[str]:
    for message, name, most in (
        (config, "max_batch_size", LARGEST_BATCH),
        (batching, "priority_levels", LOWEST_PRIORITY),
    ):
        if (_whole(path, message, name) or 0) > most:
            yield f"{name} above {most}"


def _labels(path: Path, name: str) -> tuple[str, ...]:
    return read_label_file(named_by(path, name), str(path))


def _serving(path: Path, config: Message, batching: Message, policy: Message) -> Keys:
    keys: Keys = {}
    if (size := _whole(path, config, "max_batch_size")) is not None:
        keys["max_batch"] = min(max(size, 1), LARGEST_BATCH)  # 0: no batches
    if timeout := _whole(path, policy, _POLICY):
        keys["timeout_ms"] = timeout / 1e3
    if level := _whole(path, batching, "default_priority_level"):
        keys["priority"] = min(level, LOWEST_PRIORITY)
    return keys


def _last(message: Message, name: str) -> Any:
    values = message.get(name)
    return values[-1] if values else None


def _messages(path: Path, message: Message, name: str) -> list[Message]:
    values = message.get(name, [])
    if not all(isinstance(value, dict) for value in values):
        raise PreprocessingError(f"{path}: {name} must have fields in braces")
    return values


def _whole(path: Path, message: Message, name: str) -> int | None:
    value = _last(message, name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.isdecimal() or len(value) > 18:
        raise PreprocessingError(
            f"{path}: {name} = {value!r} is not allowed; it must be a whole number"
        )
    return int(value)


def _tokens(path: Path, text: str) -> Iterator[str]:
    at = 0
    while (match := _TOKEN.match(text, at)) is not None:
        if match[1] is None:
            yield ""
            return
        yield match[1]
        at = match.end()
    line = text.count("\n", 0, at) + 1
    raise PreprocessingError(f"{path} cannot be read: line {line} is not in protobuf's text format")


def _message(tokens: Iterator[str], end: str) -> Message:
    """Parse a message up to the token `end`, and return the values of each field.

    `end` is a closing bracket, or "" for the end of the file.
    """
    fields: Message = defaultdict(list)
    for name in tokens:
        if name == end:
            return dict(fields)
        if name in (",", ";"):
            continue
        if not name[:1].isalpha():
            raise ValueError
        value = next(tokens)
        fields[name] += _values(next(tokens) if value == ":" else value, tokens)
    raise ValueError


def _values(first: str, tokens: Iterator[str]) -> list[Any]:
    if first in _CLOSES:
        return [_message(tokens, _CLOSES[first])]
    if first == "[":
        values: list[Any] = []
        while (word := next(tokens)) != "]":
            values += [] if word == "," else _values(word, tokens)
        return values
    return [first[1:-1] if first[:1] in ("'", '"') else first]
