"""Writes log lines in a thread, so that logging never blocks the event loop. If too many lines wait
to be written, new lines are dropped and counted.

Each request is logged as one line with fields of `RequestRecord`, without images, file names,
queries or API keys. docs/decisions/logging.md explains why QueueHandler is not used.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from functools import cache
from json.encoder import encode_basestring_ascii as quoted

from typing_extensions import override

from service.settings import LogFormat, LogLevel
from service.telemetry.record import RequestRecord

_GATHER_S = 0.2  # between writes
_MOST_LINES = 5000  # about a megabyte
_ATOMIC_BYTES = 4096  # PIPE_BUF on Linux: writes of several processes do not mix
_FLUSH_S = 1.0  # at shutdown
_PATH_CHARACTERS = 200
_TIME = "%Y-%m-%dT%H:%M:%S"

STANDARD_ERROR = 2


PROBES = frozenset(
    (
        *(b"/healthz", b"/v2/health/live", b"/v2/health/ready"),
        *(b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"),
        b"/inference.GRPCInferenceService/ServerLive",
        b"/inference.GRPCInferenceService/ServerReady",
    )
)
"""Paths of health checks by load balancers, over HTTP and gRPC. They need no key."""

# The paths that probes and scrapes request, and the endings of their paths for one model.
_QUIET = PROBES | {b"/metrics"}
_QUIET_ENDS = (b"/ready", b"/ModelReady", b"/traffic")


# A request's line, its part about scores, and its end. The % operator takes half the time of
# f-strings, and so do whole microseconds instead of fractions.
_ACCESS = {
    LogFormat.TEXT: (
        "%s.%03dZ %s convoy.access: %s %s %s %s %d in=%d out=%d us=%d",
        " model=%s images=%d batch=%d receive=%d decode=%d queue=%d compute=%d respond=%d",
        "",
    ),
    LogFormat.JSON: (
        '{"time":"%s.%03dZ","level":"%s","logger":"convoy.access","id":%s,"client":%s,'
        '"method":"%s","path":%s,"status":%d,"bytes_in":%d,"bytes_out":%d,"us":%d',
        ',"model":%s,"images":%d,"batch":%d,"receive_us":%d,"decode_us":%d,"queue_us":%d,'
        '"compute_us":%d,"respond_us":%d',
        "}",
    ),
}


class TextFormatter(logging.Formatter):
    """Formats a record as one line, followed by its traceback."""

    converter = staticmethod(time.gmtime)
    default_time_format = _TIME
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(TextFormatter):
    """Formats a record as one JSON object. The traceback is one of its fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if hasattr(record, "request_id"):
            fields["id"] = record.request_id
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class LineWriter(logging.Handler):
    """Writes lines and log records to a file descriptor in a separate thread."""

    def __init__(
        self,
        log_format: LogFormat = LogFormat.TEXT,
        descriptor: int = STANDARD_ERROR,
        *,
        most_lines: int = _MOST_LINES,
        gather_s: float = _GATHER_S,
    ) -> None:
        super().__init__()
        self.log_format = log_format
        self.setFormatter(TextFormatter() if log_format is LogFormat.TEXT else JsonFormatter())
        self._descriptor = descriptor
        self._most = most_lines
        self._gather_s = gather_s
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._counting = threading.Lock()
        self._hurry = threading.Event()  # write now
        self._ending = False
        # A daemon: a blocked write must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line without a newline for the next write. Any thread may call this method."""
        if len(self._lines) < self._most:
            self._lines.append(line)
        else:
            self._drop(1)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record and wake the writing thread."""
        self.write(self.format(record))
        self._hurry.set()

    @override
    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Write all queued lines, but wait for at most `timeout_s` seconds."""
        self._ending = True
        self._hurry.set()
        if self._thread.is_alive():  # it may not have started, if the system allows no more threads
            self._thread.join(timeout_s)
        super().close()

    def _drop(self, lines: int) -> None:
        with self._counting:
            self._dropped += lines

    def _run(self) -> None:
        last = False
        while not last:
            self._hurry.wait(self._gather_s)
            self._hurry.clear()
            last = self._ending  # read before the lines, so that no line is left behind
            self._write_all()

    def _write_all(self) -> None:
        """Write all queued lines, in blocks that a pipe accepts atomically. Also report how many
        lines were dropped."""
        with self._counting:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text = "%d lines were dropped: the log was not read fast enough"
            record = logging.LogRecord("convoy", logging.WARNING, "", 0, text, (dropped,), None)
            self._lines.append(self.format(record))
        piece = b""
        while self._lines:
            line = self._lines.popleft().encode("utf-8", "backslashreplace") + b"\n"
            if len(piece) + len(line) > _ATOMIC_BYTES:
                self._put(piece)
                piece = b""
            piece += line
        self._put(piece)

    def _put(self, piece: bytes) -> None:
        try:
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        except OSError:  # the reader is gone
            self._drop(piece.count(b"\n"))


class AccessLog:
    """Writes one line per request, also if the client disconnected before the answer."""

    def __init__(self, writer: LineWriter, level: LogLevel = LogLevel.INFO) -> None:
        self._write = writer.write
        self._quietly = level is LogLevel.DEBUG  # frequent requests such as probes are also written
        self._line, self._scored, self._end = _ACCESS[writer.log_format]
        self._second = 0
        self._time = ""  # of that second: formatted once for all of its requests

    def __call__(self, record: RequestRecord) -> None:
        """Write the line of a request. Health checks and other frequent requests are written only
        at the level debug."""
        quiet = _is_quiet(record)
        if quiet and not self._quietly:
            return
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._time = second, time.strftime(_TIME, time.gmtime(second))
        path = record.path.decode("latin-1")
        line = self._line % (
            self._time,
            (now - second) * 1000,
            "DEBUG" if quiet else "INFO",
            quoted(record.id.decode()),
            quoted(record.client),
            record.method.decode(),
            quoted(path if len(path) <= _PATH_CHARACTERS else path[:_PATH_CHARACTERS] + "..."),
            record.status,
            record.bytes_in,
            record.bytes_out,
            (record.ended - record.started) * 1e6,
        )
        if record.phases is not None:
            line += self._scored % (
                quoted(record.model),
                record.images,
                record.batch,
                *record.phases[1:],  # without the total
            )
        self._write(line + self._end)


def _is_quiet(record: RequestRecord) -> bool:
    """Return whether a request succeeded and is a health check, a request for metrics, or a
    periodic request of the web page."""
    path = record.path
    return record.status < 400 and (path in _QUIET or path.endswith(_QUIET_ENDS))


@cache
def line_writer(log_format: LogFormat) -> LineWriter:
    """Return the process's only writer to standard error, which keeps lines whole and in order."""
    return LineWriter(log_format)


def configure_logging(
    *,
    verbose: bool = False,
    log_format: LogFormat | None = None,
    level: LogLevel = LogLevel.INFO,
) -> None:
    """Log Convoy's messages and other libraries' warnings to standard error. If `verbose`, also log
    uvicorn's messages.

    If a format is given, a thread writes the lines, so that a slow reader never blocks a server.
    """
    handler: logging.Handler
    if log_format is None:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter())
    else:
        handler = line_writer(log_format)
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, level.number))
    logging.getLogger("convoy").setLevel(level.number)
    # Malformed requests are answered and counted, not logged.
    for library in ("python_multipart", "opentelemetry.trace"):
        logging.getLogger(library).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if verbose else logging.ERROR)
