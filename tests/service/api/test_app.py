"""The HTTP interface with a fake engine, in process: every status, every bound, one error
format."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from service.api.app import create_app
from service.api.schemas import ClassifyAnswer
from service.api.v1 import takes_long
from service.hosting.pipeline import Pipeline
from service.http.body import IMAGE_TYPES
from tests.support import PATIENCE_S
from tests.support.service.client import (
    PATH,
    SCOPE,
    AppClient,
    collect,
    digits,
    error_of,
    metric,
    samples_in,
    serving,
    stream,
    until,
)
from tests.support.service.fakes import CLASSES, FakeEngine, decode_digit, make_repository

pytestmark = pytest.mark.anyio

FORM = {"content-type": "multipart/form-data; boundary=b"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "parts", "length", "is_long"),
    [
        (FORM, 16, 2**18, False),
        (FORM, 17, 1000, True),
        (FORM, 1, 2**18 + 1, True),
        (JSON, 0, 2**18, False),
        (JSON, 0, 2**18 + 1, True),
        ({"content-type": "image/png"}, 99, 2**20, False),
    ],
)
async def test_a_body_is_read_in_a_thread_above_exact_limits(
    headers: dict[str, str], parts: int, length: int, is_long: bool
) -> None:
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    pieces = [b"\r\n--b" * (parts // 2), b"\r\n--b" * (parts - parts // 2)]
    assert takes_long(encoded, pieces, length) is is_long


# --- what is answered ----------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [*IMAGE_TYPES, "IMAGE/JPEG; q=1", None])
async def test_a_body_that_is_an_image_gets_its_label(content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    async with serving() as (client, _):
        answer = await client.post(PATH, content=b"7", headers=headers)
    assert digits(answer) == [7]
    assert answer.json()["model"] == "fake"
    assert answer.json()["results"][0]["predictions"][0]["label"] == "seven"


@pytest.mark.parametrize("fields", [["file"] * 5, ["files"] * 5, ["files", "file"] * 2 + ["file"]])
async def test_the_files_of_a_form_are_answered_in_upload_order(fields: list[str]) -> None:
    files = [(field, (f"{digit}.png", digit)) for field, digit in zip(fields, "31415", strict=True)]
    async with serving() as (client, _):
        assert digits(await client.post(PATH, files=files)) == [3, 1, 4, 1, 5]


async def test_an_answer_is_what_the_schema_says_and_its_phases_add_up() -> None:
    def decode(data: bytes) -> Any:
        time.sleep(0.01)
        return decode_digit(data)

    async def slowly() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.03)
        yield b"7"

    async with serving(FakeEngine(delay_s=0.02), decode=decode) as (client, _):
        await client.post(PATH, content=slowly())
        answer = (await client.post(PATH, content=slowly())).json()
        total_s = await metric(client, "convoy_request_duration_seconds_sum")
        phases = ("receive", "decode", "queue", "compute", "respond")
        sums = [
            await metric(client, f'convoy_phase_duration_seconds_sum{{phase="{phase}"}}')
            for phase in phases
        ]
    TypeAdapter(ClassifyAnswer).validate_python(answer, strict=True)
    timing = answer["timing_ms"]
    assert timing["receive"] >= 30
    assert timing["decode"] >= 10
    assert timing["compute"] >= 20
    assert sum(timing[phase] for phase in phases) == pytest.approx(timing["total"], abs=1e-9)
    assert 0.12 <= sum(sums) == pytest.approx(total_s)


async def test_the_wait_for_the_batch_before_is_told() -> None:
    async with serving(FakeEngine(delay_s=0.03, max_batch=1)) as (client, _):
        files = [("file", ("x", b"1"))] * 3
        began = time.perf_counter()
        timing = (await client.post(PATH, files=files)).json()["timing_ms"]
        took_ms = (time.perf_counter() - began) * 1e3
    assert timing["queue"] >= 60
    assert timing["compute"] >= 30
    assert timing["total"] <= took_ms + 0.01  # each wait is counted once


async def test_an_answer_ranks_five_classes_unless_asked_otherwise() -> None:
    async with serving() as (client, _):
        for query, count in {"": 5, "?top_k=1": 1, f"?top_k={CLASSES}": CLASSES}.items():
            answer = await client.post(PATH + query, content=b"2")
            (result,) = answer.json()["results"]
            predictions = result["predictions"]
            assert len(predictions) == count
            assert predictions[0]["index"] == 2
            # The others are equal, so they come by index.
            others = [p["index"] for p in predictions[1:]]
            assert others == [i for i in range(CLASSES) if i != 2][: count - 1]
        assert sum(p["probability"] for p in predictions) == pytest.approx(1, abs=1e-5)


async def test_requests_in_parallel_travel_together_and_each_gets_its_own_answer() -> None:
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    async with serving(engine) as (client, pipeline):
        sent = [n % CLASSES for n in range(33)]
        answers = [
            asyncio.create_task(client.post(PATH, content=str(digit).encode())) for digit in sent
        ]
        await until(lambda: pipeline.admission.images == len(sent))
        await until(lambda: len(engine.batches) == 1)
        gate.set()
        assert [digits(answer) for answer in await asyncio.gather(*answers)] == [[d] for d in sent]
        assert sum(engine.batches) == 33
        assert max(engine.batches) == 8
        assert await metric(client, 'convoy_batch_size_bucket{le="8.0"}') == len(engine.batches)
        assert await metric(client, "convoy_images_total") == 33


async def test_neither_decoding_nor_the_engine_runs_on_the_event_loop() -> None:
    decoders = set()

    def decode(data: bytes) -> Any:
        decoders.add(threading.get_ident())
        return decode_digit(data)

    engine = FakeEngine()
    async with serving(engine, decode=decode) as (client, _):
        await asyncio.gather(*[client.post(PATH, content=b"1") for _ in range(20)])
    assert len(engine.threads) == 1
    assert not (decoders | engine.threads) & {threading.get_ident()}
    assert not decoders & engine.threads


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", ["0", "-1", "11", "x", "", "1.5", "1e1", "%EF%BC%91", "1" * 1000])
async def test_a_top_k_outside_1_to_classes_is_refused_with_the_range(top_k: str) -> None:
    async with serving() as (client, _):
        answer = await client.post(f"{PATH}?top_k={top_k}", content=b"1")
        assert "from 1 to 10" in error_of(answer, 422)
        assert len(answer.content) < 200


async def test_a_query_without_end_is_refused_unread() -> None:
    async with serving() as (client, _):
        answer = await client.post(f"{PATH}?{'top_k=1&' * 1000}", content=b"1")
        assert "the query has 8000 bytes" in error_of(answer, 422)


async def test_a_misspelt_parameter_is_refused_with_the_right_one() -> None:
    async with serving() as (client, _):
        assert "top_k" in error_of(await client.post(f"{PATH}?topk=3", content=b"1"), 422)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",  # what `curl --data-binary` says
        "binary/octet-stream",  # what S3 says
        *("image/jpg", "image/pjpeg", "image/*", "image/gif"),
    ],
)
async def test_a_type_that_says_little_is_no_reason_to_refuse(content_type: str) -> None:
    async with serving() as (client, _):
        answer = await client.post(PATH, content=b"7", headers={"content-type": content_type})
        assert digits(answer) == [7]


async def test_images_may_be_base64_in_json() -> None:
    async with serving() as (client, _):
        for images, expected in (
            ("Nw==", [7]),
            (["Nw==", "data:image/png;base64,Mw=="], [7, 3]),
        ):
            answer = await client.post(PATH, json={"input": images, "model": "fake"})
            assert digits(answer) == expected
        answer = await client.post(f"{PATH}?top_k=1", json={"input": "Nw=="})
        assert len(answer.json()["results"][0]["predictions"]) == 1


@pytest.mark.parametrize(
    ("status", "says", "headers", "body"),
    [
        (400, "empty", {}, b""),
        (400, "empty", {"content-type": "image/png"}, b""),
        (400, "no digit", {"content-type": "image/png"}, b"GIF89a"),
        (415, "image/jpeg, image/png, image/webp", {"content-type": "text/plain"}, b"1"),
        (415, "field 'file'", {"content-type": "text/plain"}, b"1"),
        (400, "unknown field `image`; `input` must be one", JSON, b'{"image": "Nw=="}'),
        (
            400,
            "`input` must be one image or a list of images",
            JSON,
            b'{"instances": [{"b64": "Nw=="}]}',
        ),
        (400, "addresses are not fetched", JSON, b'{"input": "https://example.org/cat.jpg"}'),
        (
            404,
            "this address serves the model 'fake', but `model` in the JSON is 'other'",
            JSON,
            b'{"input": "Nw==", "model": "other"}',
        ),
        (415, "as it is", {"content-type": "image/png", "content-encoding": "gzip"}, b"1"),
        (400, "boundary", {"content-type": "multipart/form-data"}, b"1"),
        (400, "malformed", {"content-type": "multipart/form-data; boundary=" + "b" * 300}, b"1"),
        (400, "malformed", FORM, b"this is no form"),
        (400, "no file", FORM, b"--b--\r\n"),
        (400, "ends early", FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n1'),
        (
            400,
            "'a.png' is empty",
            FORM,
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
            b"\r\n--b--\r\n",
        ),
        (
            422,
            "unknown form field 'photo'; send images in the field 'file'",
            FORM,
            b'--b\r\nContent-Disposition: form-data; name="photo"\r\n\r\n1\r\n--b--\r\n',
        ),
        (422, "'file'", FORM, b"--b\r\nX-Nothing: 1\r\n\r\n1\r\n--b--\r\n"),
    ],
)
async def test_bad_input_is_refused_saying_what_to_do_and_the_next_request_is_answered(
    status: int, says: str, headers: dict[str, str], body: bytes
) -> None:
    async with serving() as (client, _):
        answer = await client.post(PATH, content=body, headers=headers)
        assert says in error_of(answer, status)
        assert digits(await client.post(PATH, content=b"4")) == [4]
        assert await metric(client, f'convoy_requests_total{{status="{status}"}}') == 1


async def test_a_form_is_read_the_same_however_it_is_cut_into_chunks() -> None:
    async with serving() as (client, _):
        request = client.build_request(
            "POST", PATH, files=[("file", ("digit.png", digit * 30)) for digit in (b"3", b"1")]
        )
        body = b"".join([chunk async for chunk in request.stream])  # type: ignore[union-attr]  # async
        for size in (1, 2, 7, 64):
            pieces = [body[i : i + size] for i in range(0, len(body), size)]
            answer = await client.post(
                PATH,
                content=stream(pieces),
                headers={"content-type": request.headers["content-type"]},
            )
            assert digits(answer) == [3, 1]


async def test_a_bad_image_among_several_is_named_and_fails_them_all() -> None:
    async with serving() as (client, _):
        files = [("file", (f"{n}", data)) for n, data in enumerate([b"1", b"bad", b"2", b"worse"])]
        message = error_of(await client.post(PATH, files=files), 400)
        assert message.startswith("image 2 of 4: ")
        assert await metric(client, "convoy_images_total") == 0


async def test_more_images_than_may_ever_wait_are_refused() -> None:
    async with serving(max_queue=8) as (client, _):
        files = [("file", ("x", b"1"))] * 9
        assert "8 images" in error_of(await client.post(PATH, files=files), 413)
        assert digits(await client.post(PATH, files=files[:8])) == [1] * 8


async def test_a_body_over_the_limit_is_refused_from_its_header_before_it_is_read() -> None:
    async with serving(max_body_bytes=1000) as (client, _):
        sent: list[Any] = []

        async def receive() -> Any:
            # Only to linger: the answer is out, all of it.
            assert sent[0]["status"] == 413
            assert (b"connection", b"close") in sent[0]["headers"]
            assert b"at most 1000 bytes" in sent[1]["body"]
            assert sent[1]["more_body"]
            return {"type": "http.disconnect"}

        scope = {**SCOPE, "headers": [(b"content-length", b"100001")]}
        await client.app(scope, receive, collect(sent))
        assert not sent[-1]["more_body"]
        assert digits(await client.post(PATH, content=b"5" * 1000)) == [5]


async def test_json_in_an_unknown_compression_is_refused_before_it_is_read() -> None:
    async with serving() as (client, _):
        sent: list[Any] = []

        async def receive() -> Any:
            assert sent[0]["status"] == 415  # the client is not told to continue
            return {"type": "http.disconnect"}

        headers = [(b"content-type", b"application/json"), (b"content-encoding", b"br")]
        headers += [(b"content-length", b"1000000"), (b"expect", b"100-continue")]
        await client.app({**SCOPE, "headers": headers}, receive, collect(sent))
        assert b"unsupported Content-Encoding 'br'; use gzip or deflate" in sent[1]["body"]


async def test_a_body_that_grows_over_the_limit_is_refused_at_that_point() -> None:
    kept = []

    def chunks(pipeline: Pipeline) -> Iterable[bytes]:
        for _ in range(50):
            yield b"1" * 100
            kept.append(pipeline.admission.room.taken)

    async with serving(max_body_bytes=1000) as (client, pipeline):
        answer = await client.post(PATH, content=stream(chunks(pipeline)))
        assert "at most 1000 bytes" in error_of(answer, 413)
        assert answer.headers["connection"] == "close"
    assert max(kept) <= 1000


@pytest.mark.parametrize("status", [404, 405])
async def test_what_the_router_refuses_has_the_one_error_shape(status: int) -> None:
    async with serving() as (client, _):
        if status == 404:
            assert PATH in error_of(await client.get("/v1/clasify"), 404)
        else:
            answer = await client.get(PATH)
            assert "POST" in error_of(answer, 405)
            assert answer.headers["allow"] == "POST"


async def test_head_is_for_whatever_get_is_for() -> None:
    async with serving() as (client, _):
        for path in (
            "/",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2",
            "/v2/models/fake",
            "/metrics",
        ):
            assert (await client.head(path)).status_code == 200, path
        assert (await client.head("/nowhere")).status_code == 404
        refused = await client.head(PATH)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert all("head" not in methods for methods in paths.values())


async def test_only_options_asks_for_what_browsers_may_send() -> None:
    """A probe would take the answer to a preflight for a ready server."""
    asked = {"access-control-request-method": "POST"}
    async with serving() as (client, _):
        assert (await client.options(PATH, headers=asked)).status_code == 204
        for method, path, status in (
            ("GET", "/v2/health/ready", 200),
            ("HEAD", "/v2/health/ready", 200),
            ("PUT", PATH, 405),
            ("GET", "/nowhere", 404),
        ):
            assert (await client.request(method, path, headers=asked)).status_code == status


async def test_calls_take_short_queries_and_no_cookies() -> None:
    """FastAPI would read both on the event loop: each kilobyte takes up to a millisecond."""
    seen = []

    async def count(request: Request) -> Response:
        seen.append((request.cookies, request.headers["cookies"]))
        return Response()

    app = create_app(make_repository())
    app.add_route("/count", count)
    async with AppClient(app) as client:
        for method in ("GET", "POST"):
            refused = await client.request(method, "/v2/models/fake?" + "a" * 1025)
            assert "1025 bytes; at most 1024 are allowed" in error_of(refused, 422)
        headers = {"cookie": "a=b", "cookies": "c=d"}
        assert (await client.get("/count?" + "a" * 1024, headers=headers)).status_code == 200
    assert seen == [({}, "c=d")]


async def test_a_file_is_sent_whole_whatever_range_is_asked_for() -> None:
    async with serving() as (client, _):
        whole = await client.get("/page/page.js")
        for asked in ("bytes=0-1", "bytes=99999999-", "bytes=a", "bytes=0-1,4-5"):
            answer = await client.get("/page/page.js", headers={"range": asked})
            assert (answer.status_code, answer.content) == (200, whole.content)


async def test_what_fastapi_refuses_and_what_crashes_has_the_one_error_shape() -> None:
    repository = make_repository()
    app = create_app(repository)

    async def crash() -> None:
        raise RuntimeError("secret")

    async def count(n: int) -> int:
        return n

    app.router.route_class = APIRoute
    app.add_api_route("/crash", crash)
    app.add_api_route("/count", count)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        assert "query.n" in error_of(await client.get("/count?n=x"), 422)
        assert "secret" not in error_of(await client.get("/crash"), 500)
    await repository.close(PATIENCE_S)


# --- what documents itself -----------------------------------------------------------------------


async def test_the_openapi_document_tells_bodies_parameters_and_errors() -> None:
    async with serving() as (client, _):
        answer = await client.get("/openapi.json")
        assert (await client.get("/docs")).status_code == 200
    document = answer.json()
    named = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert {"ClassifyAnswer", "ErrorAnswer", "InferAnswer"} <= named
    assert named <= document["components"]["schemas"].keys()
    operation = document["paths"][PATH]["post"]
    content = operation["requestBody"]["content"]
    assert set(content) == {*IMAGE_TYPES, "multipart/form-data", "application/json"}
    assert set(content["multipart/form-data"]["schema"]["properties"]) == {
        "file",
        "files",
        "image",
        "images",
    }
    top_k, threshold, explain, explain_as, timeout, priority = operation["parameters"]
    assert (threshold["in"], threshold["name"]) == ("query", "threshold")
    assert threshold["schema"].items() >= {"minimum": 0, "maximum": 1}.items()
    assert (explain["name"], explain_as["schema"]["default"]) == ("explain", "numbers")
    assert (timeout["name"], priority["name"]) == ("X-Timeout-Ms", "X-Priority")
    expected = {"type": "integer", "minimum": 1, "maximum": CLASSES, "default": 5}
    assert expected.items() <= top_k["schema"].items()
    assert set(operation["responses"]) == {
        *("200", "400", "403", "404", "408", "413", "415", "422", "429", "500", "503", "504")
    }
    for status, response in operation["responses"].items():
        name = "ClassifyAnswer" if status == "200" else "ErrorAnswer"
        schema = response["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}


async def test_batch_sizes_are_counted_one_bucket_a_size() -> None:
    async with serving(FakeEngine(max_batch=3)) as (client, _):
        text = (await client.get("/metrics")).text
    samples = samples_in(text)
    buckets = [labels["le"] for name, labels, _ in samples if name == "convoy_batch_size_bucket"]
    assert buckets == ["1.0", "2.0", "3.0", "+Inf"]
