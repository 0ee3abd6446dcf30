"""Requests that the OpenAPI document allows, and requests that it does not allow, get the
documented answers."""

import base64
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks

from service.http.body import IMAGE_TYPES
from tests.support import PATIENCE_S
from tests.support.images.damage import damaged
from tests.support.servers.several_models import SAMPLES, convoy_serve

_IMAGES = [sample.read_bytes() for sample in SAMPLES]
_PIXELS = [0, 255] * 512  # of digits: 32×32×1


def check_errors(_: CheckContext, response: Response, __: Case[Any]) -> None:
    """Check that an error has the common format and is not a server error."""
    assert response.status_code != 500, response.text
    if response.status_code >= 400:
        error = response.json()
        assert list(error) == ["error"], error
        assert isinstance(error["error"], str)
        assert error["error"]


_CHECKS = [
    check_errors,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def _bodies() -> st.SearchStrategy[bytes]:
    """Draw the content of the field for images, most often a single image."""
    return st.sampled_from(_IMAGES) | damaged() | st.binary(max_size=100)


def _tensors() -> st.SearchStrategy[dict[str, Any]]:
    """Draw valid inputs, because the schema alone cannot generate them."""
    files = st.lists(
        _bodies().map(lambda data: base64.b64encode(data).decode()), min_size=1, max_size=9
    ).map(lambda files: {"datatype": "BYTES", "shape": [len(files)], "data": files})
    pixels = st.integers(1, 9).map(
        lambda n: {"datatype": "UINT8", "shape": [n, 32, 32, 1], "data": _PIXELS * n}
    )
    planes = st.integers(1, 9).map(
        lambda n: {"datatype": "FP32", "shape": [n, 1, 32, 32], "data": _PIXELS * n}
    )
    return (files | pixels | planes).map(lambda tensor: {"name": "image", **tensor})


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    """Return the document of a running server."""
    for media_type in IMAGE_TYPES:
        schemathesis.openapi.media_type(media_type, _bodies())
    schemathesis.openapi.format("binary", _bodies())
    config = SchemathesisConfig.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", "504"]}}}
    )
    with convoy_serve() as port:
        url = f"http://127.0.0.1:{port}/openapi.json"
        yield schemathesis.openapi.from_url(url, config=config)


# Each operation's, where the long suite has 300: to draw them is most of what these tests cost.
EXAMPLES = 5

_MOSTLY = st.sampled_from((True, True, True, False))


def ask(api: Any, mode: GenerationMode, examples: int) -> dict[str, Counter[int]]:
    """Send `examples` valid or invalid requests (`mode`) to each operation. Return the counts of
    the statuses by operation."""
    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    with requests.Session() as session:
        for result in api.get_all_operations():
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
                continue  # there is nothing about it that could be wrong

            @settings(
                max_examples=examples,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(operation.as_strategy(generation_mode=mode), _MOSTLY, st.data())
            def one(case: Case[Any], known: bool, data: st.DataObject) -> None:
                if known:
                    case.path_parameters |= {
                        name: value
                        for name, value in (("model", "digits"), ("version", "1"))
                        if name in case.path_parameters
                    }
                body: Any = case.body
                right = known and mode is GenerationMode.POSITIVE
                if right and isinstance(body, dict) and "inputs" in body:
                    body["inputs"] = [data.draw(_tensors())]
                if right and isinstance(body, dict) and "input" in body:
                    file = base64.b64encode(data.draw(_bodies())).decode()
                    input_: Any = data.draw(st.sampled_from([file, [file]]))
                    case.body = {"input": input_}
                response = case.call(session=session)
                statuses[case.operation.label][response.status_code] += 1
                case.validate_response(response, checks=_CHECKS)

            one()
    return statuses


def check_allowed(api: Any, examples: int) -> None:
    statuses = ask(api, GenerationMode.POSITIVE, examples)
    assert len(statuses) == 24
    for label, seen in statuses.items():
        assert seen[200], (label, seen)
    for path in ("/v1/classify", "/v2/models/{model}/infer"):
        assert len(statuses[f"POST {path}"]) > 2, statuses


def check_not_allowed(api: Any, examples: int) -> None:
    statuses = ask(api, GenerationMode.NEGATIVE, examples)
    assert {"POST /v1/classify", "POST /v2/models/{model}/infer"} <= statuses.keys()
    for label, seen in statuses.items():
        assert any(400 <= status < 500 for status in seen), (label, seen)


def test_what_the_document_allows_is_answered_as_it_says(api: Any) -> None:
    check_allowed(api, EXAMPLES)


def test_what_the_document_does_not_allow_is_refused_as_it_says(api: Any) -> None:
    check_not_allowed(api, EXAMPLES)


@pytest.mark.slow
def test_much_of_what_the_document_allows_is_answered_as_it_says(api: Any) -> None:
    check_allowed(api, 300)


@pytest.mark.slow
def test_much_of_what_the_document_does_not_allow_is_refused_as_it_says(api: Any) -> None:
    check_not_allowed(api, 300)


def test_a_method_that_is_not_for_a_path_is_refused_with_those_that_are(api: Any) -> None:
    for result in api.get_all_operations():
        operation = result.ok()
        url = operation.base_url.rstrip("/") + operation.path.format(model="digits", version=1)
        response = requests.delete(url, timeout=PATIENCE_S)
        assert response.status_code == 405, (operation.label, response.text)
        assert operation.method.upper() in response.headers["allow"]
        assert list(response.json()) == ["error"]
