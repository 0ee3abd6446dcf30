"""Traces by OpenTelemetry, which is installed by the extra `otel` and imported nowhere else.

A request is a span, and each of its phases one within. They are made once it has ended, of times
that were taken anyway: so nothing is done while anybody waits. What the spans are sampled by and
where they are sent is set by OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT above all.
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

_PROPAGATOR = TraceContextTextMapPropagator()
_CARRIED = ("traceparent", "tracestate")


class Traces:
    """Makes the spans of every request that ended; they are sent from a thread, in batches."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        """By default they are sent by OTLP over HTTP."""
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "convoy"}))
        # Not the process's: whatever else is instrumented in it makes no spans of its own.
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("convoy")

    def __call__(self, record: RequestRecord) -> None:
        """Make a request's spans, beginning where its head was complete."""
        end = time.time_ns()
        start = end - int((record.ended - record.started) * 1e9)
        method = record.method.decode()
        path = record.path.decode("latin-1")
        carrier = {
            name: record.headers[name.encode()].decode("latin-1")
            for name in _CARRIED
            if name.encode() in record.headers
        }
        span = self._tracer.start_span(
            # A path that nobody knows is no name: there is no end of them.
            f"{method} {path}" if record.phases is not None else method,
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            start_time=start,
            attributes={
                "http.request.method": method,
                "http.response.status_code": record.status,
                "http.request.body.size": record.bytes_in,
                "http.response.body.size": record.bytes_out,
                "url.path": path,
                "client.address": record.client,
                "convoy.request_id": record.id.decode(),
            },
        )
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if record.phases is not None and span.is_recording():
            span.set_attribute("convoy.model", record.model)
            span.set_attribute("convoy.images", record.images)
            span.set_attribute("convoy.batch_size", record.batch)
            within = set_span_in_context(span)
            moment = start
            for name in PHASES:
                phase = self._tracer.start_span(name, within, start_time=moment)
                moment += getattr(record.phases, name) * 1000
                phase.end(moment)
        span.end(end)
