"""Reads the query parameters for class activation maps, and creates the maps."""

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models import Maps
from service.api.schemas import ClassMap
from service.engine.ranking import ScoreRow, top_k
from service.errors import EngineFailedError, InvalidParameterError
from service.hosting.model_info import ModelInfo
from service.images.view import View, overlay

EXPLAIN, EXPLAIN_AS = "explain", "explain_as"

QUERY: Mapping[str, tuple[dict[str, Any], str]] = {
    EXPLAIN: (
        {
            "type": "string",
            "description": "the class whose map to return: 1 for the likeliest class, a label, or"
            " class:N for the class with the number N; may be repeated",
        },
        "",
    ),
    EXPLAIN_AS: (
        {
            "type": "string",
            "enum": ["numbers", "overlay"],
            "description": "the values of the map, or a PNG to lay over the image",
        },
        "numbers",
    ),
}

MOST_MAPS = 8
"""The most maps per request: creating a PNG takes milliseconds, and blocks the event loop."""

# The most bytes of a map without its values but with a long label, and of a map's PNG.
_MAP_BYTES, _OVERLAY_BYTES = 2048, 2**20

_LIKELIEST = "1"
_BY_NUMBER = "class:"

# The most classes with the same label that an error names.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class MapRequest:
    """The classes for which a request asks for class activation maps. Each image of the request
    gets one map per class."""

    classes: Sequence[int | None]  # None: the likeliest
    as_overlay: bool
    views: list[View] = field(default_factory=list)  # of each image, once they are prepared


def maps_of(info: ModelInfo) -> Maps:
    """Return the model's `Maps`, which compute its class activation maps. Raises
    InvalidParameterError if the model has no maps."""
    if isinstance(info.maps, Maps):
        return info.maps
    raise InvalidParameterError(f"the model '{info.name}' has no maps: {info.maps.reason}")


def classes_by_label(info: ModelInfo) -> Mapping[str, Sequence[int]]:
    """Return a mapping from each label to the classes with this label. It is empty if the model has
    no maps."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(info.labels if isinstance(info.maps, Maps) else ()):
        found[label].append(index)
    return dict(found)


def read_explain(
    query: Mapping[str, Sequence[str]],
    info: ModelInfo,
    classes: int,
    labelled: Mapping[str, Sequence[int]],
) -> MapRequest | None:
    """Return the maps that a query asks for, or None if it asks for no maps. `labelled` maps each
    label to the classes with this label.

    Raises InvalidParameterError for an invalid query, or if a query asks for maps of a model
    without maps.
    """
    kind = query.get(EXPLAIN_AS, ["numbers"])[-1]
    if kind not in ("numbers", "overlay"):
        raise InvalidParameterError(f"{EXPLAIN_AS} must be numbers or overlay; got {kind[:20]!r}")
    asked = query.get(EXPLAIN, [])
    if not asked:
        if EXPLAIN_AS in query:
            raise InvalidParameterError(f"{EXPLAIN_AS} needs {EXPLAIN}, such as {EXPLAIN}=1")
        return None
    maps_of(info)
    found = dict.fromkeys(_class(wanted, labelled, classes) for wanted in asked)
    return MapRequest(list(found), kind == "overlay")


def check_number(explained: MapRequest, images: int) -> None:
    """Raise InvalidParameterError if a request asks for too many maps."""
    if (count := images * len(explained.classes)) > MOST_MAPS:
        raise InvalidParameterError(
            f"the request asks for {count} maps, one per image and class; at most {MOST_MAPS} are"
            " allowed"
        )


def map_bytes(asked: MapRequest, rows: Sequence[ScoreRow], info: ModelInfo) -> int:
    """Return an upper limit on the bytes of all maps in an answer, plus the bytes of the features
    from which the maps are computed."""
    features = rows[0].inner[maps_of(info).features.name]
    # A number takes up to 24 characters; a pixel of an overlay takes four bytes, in base64.
    values = _OVERLAY_BYTES if asked.as_overlay else 24 * features[0].size
    return len(rows) * (features.nbytes + len(asked.classes) * (values + _MAP_BYTES))


def explain(row: ScoreRow, view: View, asked: MapRequest, info: ModelInfo) -> list[ClassMap]:
    """Return the maps of one image, one per requested class. Raises EngineFailedError if a map
    contains NaN or infinity."""
    maps = maps_of(info)
    classes = [_likeliest(row, info) if index is None else index for index in asked.classes]
    found = maps.of(row.inner[maps.features.name], classes)
    if not np.isfinite(found).all():
        raise EngineFailedError(
            "the model computed a map with a number that is not finite; "
            "check the image, the model and its preprocessing"
        )
    results = []
    for index, values in zip(classes, found, strict=True):
        result = ClassMap(
            index=index,
            label=info.labels[index] if index < len(info.labels) else str(index),
            size=list(view.size),
            box=[round(edge, 2) for edge in view.box],
            bias=float(maps.beside[index]),
        )
        if asked.as_overlay:
            png = base64.b64encode(overlay(values, view)).decode()
            result["overlay"] = f"data:image/png;base64,{png}"
        else:
            result["values"] = values.tolist()
        results.append(result)
    return results


def _likeliest(row: ScoreRow, info: ModelInfo) -> int:
    return top_k(row, 1, info.output, info.labels)[0]["index"]


def _class(asked: str, labelled: Mapping[str, Sequence[int]], classes: int) -> int | None:
    """Return the number of the class that a query parameter names, or None for the likeliest class.
    Raises InvalidParameterError."""
    if asked == _LIKELIEST:
        return None
    number = asked.removeprefix(_BY_NUMBER)
    if number != asked:
        if number.isascii() and number.isdigit() and len(number) < 10 and int(number) < classes:
            return int(number)
        raise InvalidParameterError(
            f"in {EXPLAIN}={_BY_NUMBER}N, N must be a whole number below {classes}; got"
            f" {number[:20]!r}"
        )
    found = labelled.get(asked, ())
    if len(found) == 1:
        return found[0]
    if found:
        which = " or ".join(f"{_BY_NUMBER}{index}" for index in found[:_SHOWN])
        raise InvalidParameterError(
            f"{len(found)} classes are labelled {asked[:40]!r}; to choose one of them, send"
            f" {EXPLAIN}={which}"
        )
    raise InvalidParameterError(
        f"no class is labelled {asked[:40]!r}; {EXPLAIN} must be 1 for the likeliest class, a label"
        f" that /v1/models lists, or {_BY_NUMBER}N for the class with the number N"
    )
