"""Logs without waiting: lines are handed to a thread that writes them, and dropped if it cannot.

A pipe that nobody reads, or a disk that is slow, never holds up the event loop. Of a request there
is one line, with what `RequestRecord` knows of it: no picture, no name of a file, no query, no key.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from enum import StrEnum
from functools import cache
from json.encoder import encode_basestring_ascii as quoted

from service.telemetry.record import RequestRecord

# Lines gather for this long, unless they are this many or somebody should see one at once.
_GATHER_S = 0.2
_GATHERED_LINES = 500

# About a megabyte: what waits when nobody reads the log.
_MOST_LINES = 5000

# What a pipe takes whole, even where several processes write to it (PIPE_BUF, on Linux).
_ATOMIC_BYTES = 4096

# At shutdown, for whoever reads the log.
_FLUSH_S = 1.0

# Of a path; a longer one is nobody's but an attacker's.
_PATH_CHARACTERS = 200

STANDARD_ERROR = 2


class LogFormat(StrEnum):
    """What a line of the log is."""

    TEXT = "text"
    JSON = "json"


# A request's line, what is added where it has scores, and its end. All are formatted by %, which
# takes half the time of f-strings; times are whole microseconds, for the same reason.
_ACCESS = {
    LogFormat.TEXT: (
        "%s.%03dZ INFO convoy.access: %s %s %s %s %d in=%d out=%d us=%d",
        " model=%s images=%d batch=%d receive=%d decode=%d queue=%d compute=%d respond=%d",
        "",
    ),
    LogFormat.JSON: (
        '{"time":"%s.%03dZ","level":"INFO","logger":"convoy.access","id":%s,"client":%s,'
        '"method":"%s","path":%s,"status":%d,"bytes_in":%d,"bytes_out":%d,"us":%d',
        ',"model":%s,"images":%d,"batch":%d,"receive_us":%d,"decode_us":%d,"queue_us":%d,'
        '"compute_us":%d,"respond_us":%d',
        "}",
    ),
}


class LineWriter:
    """Writes lines to a file descriptor, from a thread of its own, many at once."""

    def __init__(
        self,
        log_format: LogFormat = LogFormat.TEXT,
        descriptor: int = STANDARD_ERROR,
        *,
        most_lines: int = _MOST_LINES,
        gather_s: float = _GATHER_S,
    ) -> None:
        self.format = log_format
        self._descriptor = descriptor
        self._most = most_lines
        self._gather_s = gather_s
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()
        self._dropped = 0
        self._wake = threading.Event()  # there is something to write
        self._hurry = threading.Event()  # and it should be written now
        self._closed = False
        # A daemon: a pipe that nobody reads must not keep the process from leaving.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str, *, now: bool = False) -> None:
        """Have a line written, given without its newline; from any thread."""
        waiting = len(self._lines)
        if waiting >= self._most:
            self._drop(1)
            return
        self._lines.append(line)
        # Only after it is there: the thread clears the event before it takes what is there.
        if not self._wake.is_set():
            self._wake.set()
        if now or waiting == _GATHERED_LINES:
            self._hurry.set()

    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Write what is there, as far as somebody reads it in the time."""
        self._closed = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    def _run(self) -> None:
        while not self._closed or self._lines:
            self._wake.wait()
            self._hurry.wait(self._gather_s)
            self._wake.clear()
            self._hurry.clear()
            self._write_all()

    def _write_all(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._lines.append(_notice(self.format, dropped))
        lines = self._lines
        piece = b""
        while lines:
            line = lines.popleft().encode("utf-8", "backslashreplace") + b"\n"
            if len(piece) + len(line) > _ATOMIC_BYTES:
                self._put(piece)
                piece = b""
            piece += line
        self._put(piece)

    def _put(self, piece: bytes) -> None:
        try:
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        except OSError:  # whoever read it is gone, and there is nowhere else to say so
            self._drop(piece.count(b"\n"))


class LineHandler(logging.Handler):
    """What the code says with `logging`, as lines."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(_formatter(writer.format))

    def emit(self, record: logging.LogRecord) -> None:
        """Have it written now: it is rare, and somebody may be waiting for it."""
        self._writer.write(self.format(record), now=True)

    def close(self) -> None:
        """At exit: write what is there."""
        self._writer.close()
        super().close()


class TextFormatter(logging.Formatter):
    """One line a record, and its traceback below."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(TextFormatter):
    """One object a record; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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


def _formatter(log_format: LogFormat) -> logging.Formatter:
    return TextFormatter() if log_format is LogFormat.TEXT else JsonFormatter()


def _notice(log_format: LogFormat, dropped: int) -> str:
    """The line that says that there should be others."""
    message = "%d lines were dropped: nobody read the log fast enough"
    record = logging.LogRecord("convoy", logging.WARNING, "", 0, message, (dropped,), None)
    return _formatter(log_format).format(record)


class AccessLog:
    """One line for every request that was answered, or whose client left."""

    def __init__(self, writer: LineWriter) -> None:
        self._write = writer.write
        self._line, self._scored, self._end = _ACCESS[writer.format]
        self._second = 0
        self._time = ""  # of that second, to be formatted once for all of its requests

    def __call__(self, record: RequestRecord) -> None:
        """Write the line."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._time = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        phases = record.phases
        path = record.path.decode("latin-1")
        line = self._line % (
            self._time,
            (now - second) * 1000,
            quoted(record.id.decode()),
            quoted(record.client),
            record.method.decode(),
            quoted(path if len(path) <= _PATH_CHARACTERS else path[:_PATH_CHARACTERS] + "..."),
            record.status,
            record.bytes_in,
            record.bytes_out,
            (record.ended - record.started) * 1e6,
        )
        if phases is not None:
            line += self._scored % (
                quoted(record.model),
                record.images,
                record.batch,
                *phases[1:],  # without the whole
            )
        self._write(line + self._end)


@cache
def line_writer(log_format: LogFormat) -> LineWriter:
    """The process's one writer to standard error: all its lines stay whole and in order."""
    return LineWriter(log_format)
