"""Traces: the spans of requests, their parents, and their destination."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service.api.app import create_app
from service.telemetry import tracing
from service.telemetry.logs import configure_logging
from service.telemetry.tracing import Traces
from tests.service.whole.test_edge_process import serving
from tests.support import PATIENCE_S
from tests.support.command_line import Run
from tests.support.servers.control import until
from tests.support.servers.listening import get, listening, post
from tests.support.service.fakes import FakeEngine, make_repository

PHASES = ["receive", "decode", "queue", "compute", "respond"]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def spans_of(
    *requests: bytes, direct: bool = True, failing: bool = False
) -> list[ReadableSpan]:
    """Return the spans of requests that were sent one after another."""
    exporter = InMemorySpanExporter()
    engine = FakeEngine(delay_s=0.002)
    repository = make_repository(engine)
    await repository.warm_up()
    engine.failing = failing
    app = create_app(repository)
    endpoints = app.endpoints if direct else {}
    traces = Traces(SimpleSpanProcessor(exporter))
    async with listening(app, endpoints=endpoints, ended=traces) as server:
        for request in requests:
            await server.ask(request)
    await repository.close(PATIENCE_S)
    return list(exporter.get_finished_spans())


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.anyio
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "asgi"])
async def test_a_request_is_a_span_with_its_phases_within_end_to_end(direct: bool) -> None:
    *phases, whole = await spans_of(post(b"7", "X-Request-Id: mine"), direct=direct)
    assert [span.name for span in phases] == PHASES
    assert (whole.name, whole.kind) == ("POST /v1/classify", SpanKind.SERVER)
    assert whole.parent is None
    attributes = attributes_of(whole)
    assert attributes["convoy.request_id"] == "mine"
    assert attributes["convoy.model"] == "fake"
    assert attributes["convoy.images"] == 1
    assert attributes["http.response.status_code"] == 200
    assert attributes["client.address"] == "127.0.0.1"
    assert whole.resource.attributes["service.name"] == "convoy"
    moment = whole.start_time
    for phase in phases:
        assert phase.parent is not None
        assert phase.parent.span_id == whole.context.span_id
        assert phase.start_time == moment
        moment = phase.end_time
    assert moment is not None
    assert whole.end_time is not None
    assert whole.start_time is not None
    assert whole.start_time < moment <= whole.end_time
    (compute,) = [span for span in phases if span.name == "compute"]
    assert (compute.end_time or 0) - (compute.start_time or 0) >= 2_000_000


@pytest.mark.anyio
async def test_a_trace_that_a_client_began_goes_on() -> None:
    *phases, whole = await spans_of(post(b"7", f"traceparent: 00-{TRACE}-{PARENT}-01"))
    assert {f"{span.context.trace_id:032x}" for span in [whole, *phases]} == {TRACE}
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT


@pytest.mark.anyio
async def test_what_a_client_does_not_want_sampled_is_not_and_nonsense_is_a_new_trace() -> None:
    assert await spans_of(post(b"7", f"traceparent: 00-{TRACE}-{PARENT}-00")) == []
    *_, whole = await spans_of(post(b"7", "traceparent: \xff-nonsense"))
    assert whole.parent is None


@pytest.mark.anyio
async def test_a_long_state_of_a_client_is_neither_parsed_nor_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older versions of OpenTelemetry have no limit of their own."""
    parsed: list[dict[str, str]] = []
    extract = tracing._PROPAGATOR.extract

    def watched(carrier: dict[str, str]) -> Any:
        parsed.append(carrier)
        return extract(carrier)

    monkeypatch.setattr(tracing._PROPAGATOR, "extract", watched)
    parent, states = f"00-{TRACE}-{PARENT}-01", [f"a={'b' * length}" for length in (100, 1000)]
    for state in states:
        *_, whole = await spans_of(post(b"7", f"traceparent: {parent}", f"tracestate: {state}"))
        assert f"{whole.context.trace_id:032x}" == TRACE
    assert parsed == [{"traceparent": parent, "tracestate": states[0]}, {"traceparent": parent}]


@pytest.mark.anyio
async def test_a_request_without_scores_is_a_span_alone_whose_name_is_one_of_few() -> None:
    missing, refused = await spans_of(get("/a/path?secret=1"), post(b"x"))
    assert (missing.name, refused.name) == ("GET", "POST")
    assert attributes_of(missing)["url.path"] == "/a/path"
    assert "secret" not in str(attributes_of(missing))
    assert [span.status.status_code for span in (missing, refused)] == [StatusCode.UNSET] * 2
    (failed,) = await spans_of(post(b"7"), failing=True)
    assert failed.status.status_code is StatusCode.ERROR


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Yield a collector of traces on a loopback port: its address, and the traces that it
    received."""
    sent: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            sent.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


def test_a_server_sends_its_traces_where_opentelemetry_says(
    collector: tuple[str, list[ExportTraceServiceRequest]],
) -> None:
    address, sent = collector
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "pictures",
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # only leaving makes it send
    }
    with serving("--otel", environment=variables) as server:
        assert server.ask("GET", "/v2/health/live")[0] == 200
        server.stop()
    until(lambda: bool(sent))
    (resource,) = sent[0].resource_spans
    names = {value.key: value.value.string_value for value in resource.resource.attributes}
    assert names["service.name"] == "pictures"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["GET"]


def test_where_it_is_not_installed_the_flag_says_so(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "service.telemetry.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    status, _, error = convoy("serve", "--port", "0", "--otel")
    assert status == 2
    assert error.startswith("Error: --otel: OpenTelemetry is not installed; run ")
    assert error.endswith("/bin/pip install -c constraints.txt -e '.[otel]'\n")


@pytest.mark.anyio
async def test_a_long_path_is_cut_and_an_invalid_parent_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    configure_logging()
    state = ",".join(f"a{number}=b" for number in range(40))
    headers = f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: {state}"
    path = "/" + "a" * 5000
    (span,) = await spans_of(f"GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n".encode())
    assert attributes_of(span)["url.path"] == path[:200]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
