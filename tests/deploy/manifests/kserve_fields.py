"""Checks KServe's resources with the models of its SDK, which are generated from its published
schemas.

    PYTHON kserve_fields.py < RESOURCES.json

It runs with a separate Python, like tests/support/service/kserve_calls.py, and imports nothing from
Convoy. It prints every field that a model does not have, or that has another type.
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import kserve.models
import kubernetes.client

KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
_SIMPLE: dict[str, Any] = {"str": str, "int": int, "bool": bool, "object": object}


def wrong(value: Any, kind: str, place: str) -> Iterator[str]:
    """Yield the errors in a value of this type, in the wording of the models."""
    inner = re.fullmatch(r"([Ll]ist|[Dd]ict)[\[(](?:str, )?(.*)[\])]", kind)
    if inner and inner[1].lower() == "list":
        if not isinstance(value, list):
            yield f"{place}: no list"
            return
        for number, each in enumerate(value):
            yield from wrong(each, inner[2], f"{place}[{number}]")
    elif inner:
        for key, each in value.items():
            yield from wrong(each, inner[2], f"{place}.{key}")
    elif kind in _SIMPLE:
        if not isinstance(value, _SIMPLE[kind]) or (kind == "int" and value is True):
            yield f"{place}: {value!r} is no {kind}"
    else:
        model = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind)
        names = {name: field for field, name in model.attribute_map.items()}
        for key, each in value.items():
            if key not in names:
                yield f"{place}.{key}: {kind} has no such field"
            else:
                yield from wrong(each, model.openapi_types[names[key]], f"{place}.{key}")


for resource in json.load(sys.stdin):
    for line in wrong(resource, KINDS[resource["kind"]], resource["kind"]):
        print(line)
