"""Creates traces with OpenTelemetry, which the extra `otel` installs. No other module imports
OpenTelemetry.

A request is a span with one child span per phase. The spans are created after the answer, from the
times in the request's record. OpenTelemetry's environment variables configure sampling and export,
such as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.telemetry.counts import PHASES
from service.telemetry.record import RequestRecord

# The most characters of a path in a span: thousands of spans may wait for their export.
_PATH_CHARACTERS = 200

# The most characters of a client's trace context, the length that its standard suggests. Older
# versions of OpenTelemetry parse a header of any length, and keep it in the span.
_CONTEXT_CHARACTERS = 512

_PROPAGATOR = TraceContextTextMapPropagator()


class Traces:
    """Creates spans for each request after its answer. A thread of OpenTelemetry exports them in
    batches."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        """Export spans with OTLP over HTTP, or through `processor` if it is given."""
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "convoy"}))
        # Not the global provider, so that other instrumented libraries create no spans.
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("convoy")

    def __call__(self, record: RequestRecord) -> None:
        """Create a request's spans. The first span starts when the request's headers have
        arrived."""
        end = time.time_ns()
        start = end - int((record.ended - record.started) * 1e9)
        method = record.method.decode()
        path = record.path.decode("latin-1")
        carrier = {
            name: value.decode("latin-1")
            for name in _PROPAGATOR.fields
            if 0 < len(value := record.headers.get(name.encode(), b"")) <= _CONTEXT_CHARACTERS
        }
        span = self._tracer.start_span(
            # The name has no unknown paths, because it must have few values.
            f"{method} {path}" if record.phases is not None else method,
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            start_time=start,
            attributes={
                "http.request.method": method,
                "http.response.status_code": record.status,
                "http.request.body.size": record.bytes_in,
                "http.response.body.size": record.bytes_out,
                "url.path": path[:_PATH_CHARACTERS],
                "client.address": record.client,
                "convoy.request_id": record.id.decode(),
            },
        )
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if record.phases is not None and span.is_recording():
            span.set_attributes({"convoy.model": record.model, "convoy.images": record.images})
            span.set_attribute("convoy.batch_size", record.batch)
            within = set_span_in_context(span)
            moment = start
            for name, microseconds in zip(PHASES, record.phases[1:], strict=True):
                phase = self._tracer.start_span(name, within, start_time=moment)
                moment += microseconds * 1000
                phase.end(moment)
        span.end(end)
