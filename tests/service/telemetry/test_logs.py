"""A thread writes log lines. Lines that are not read are dropped and counted. Written lines can be
parsed."""

import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.fair_queue import ANYONE
from service.settings import LogFormat, LogLevel
from service.telemetry.counts import phases_of
from service.telemetry.logs import AccessLog, LineWriter
from service.telemetry.record import RequestRecord
from tests.support import PATIENCE_S


class Pipe:
    """A pipe that the test reads."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def close(self) -> None:
        os.close(self.writer)
        os.close(self.reader)

    def lines(self) -> list[str]:
        """Return all written lines. Nothing can be written afterwards."""
        os.close(self.writer)
        text = b""
        while piece := os.read(self.reader, 65536):
            text += piece
        self.writer = os.dup(self.reader)
        return text.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def entry(**fields: Any) -> RequestRecord:
    made = RequestRecord(b"id-1", "127.0.0.1", b"POST", b"/v1/classify", b"secret=1", {}, ANYONE)
    made.status, made.bytes_in, made.bytes_out = 200, 12, 345
    made.ended = made.started + 0.0012345
    for name, value in fields.items():
        setattr(made, name, value)
    return made


SCORED = {
    "model": "digits",
    "images": 2,
    "batch": 8,
    "phases": phases_of(15e-4, receive=1e-4, decode=2e-4, queue=3e-4, compute=4e-4),
}


def logged(pipe: Pipe, log_format: LogFormat, *entries: RequestRecord) -> list[str]:
    writer = LineWriter(log_format, pipe.writer)
    log = AccessLog(writer)
    for one in entries:
        log(one)
    writer.close()
    return pipe.lines()


def test_a_request_is_one_line_of_text(pipe: Pipe) -> None:
    plain, scored = logged(pipe, LogFormat.TEXT, entry(), entry(**SCORED))
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    begin = (
        rf'{time} INFO convoy.access: "id-1" "127.0.0.1" POST "/v1/classify" '
        "200 in=12 out=345 us=1234"
    )
    assert re.fullmatch(begin, plain)
    assert re.fullmatch(
        begin
        + ' model="digits" images=2 batch=8'
        + " receive=100 decode=200 queue=300 compute=400 respond=500",
        scored,
    )


@pytest.mark.parametrize(
    ("path", "status", "level"),
    [
        (b"/healthz", 200, "DEBUG"),
        (b"/metrics", 200, "DEBUG"),
        (b"/v2/models/digits/ready", 200, "DEBUG"),
        (b"/grpc.health.v1.Health/Check", 200, "DEBUG"),
        (b"/healthz", 503, "INFO"),  # a probe that fails is worth a line
        (b"/v1/models", 200, "INFO"),
    ],
)
def test_what_is_asked_over_and_over_is_logged_for_debugging_alone(
    pipe: Pipe, path: bytes, status: int, level: str
) -> None:
    writer = LineWriter(LogFormat.TEXT, pipe.writer)
    usual, all_of_it = AccessLog(writer), AccessLog(writer, LogLevel.DEBUG)
    for log in (usual, all_of_it):
        log(entry(path=path, status=status))
    writer.close()
    lines = pipe.lines()
    assert len(lines) == (1 if level == "DEBUG" else 2)
    assert all(f" {level} convoy.access: " in line for line in lines)


def test_a_request_is_one_object_of_json(pipe: Pipe) -> None:
    plain, scored = map(json.loads, logged(pipe, LogFormat.JSON, entry(), entry(**SCORED)))
    time = plain.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    fields = {
        "level": "INFO",
        "logger": "convoy.access",
        "id": "id-1",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/classify",
        "status": 200,
        "bytes_in": 12,
        "bytes_out": 345,
        "us": 1234,
    }
    assert plain == fields
    del scored["time"]
    phases = {"receive": 100, "decode": 200, "queue": 300, "compute": 400, "respond": 500}
    times = {f"{name}_us": value for name, value in phases.items()}
    assert scored == {**fields, "model": "digits", "images": 2, "batch": 8, **times}


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_what_a_client_sends_cannot_break_a_line(pipe: Pipe, log_format: LogFormat) -> None:
    bad = entry(path=b'/"}\n\x1b[31m\x9b\\' + b"a" * 5000, model='"\n')
    (line,) = logged(pipe, log_format, bad)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 600
    if log_format is LogFormat.JSON:
        assert json.loads(line)["path"].startswith('/"}\n\x1b[31m\x9b\\a')


def test_lines_gather_but_records_are_written_at_once(pipe: Pipe) -> None:
    writer = LineWriter(LogFormat.TEXT, pipe.writer, gather_s=3600)
    writer.write("first")
    writer.handle(logging.LogRecord("convoy", logging.INFO, "", 0, "second", None, None))
    first, second, end = os.read(pipe.reader, 100).decode().split("\n")
    assert (first, end) == ("first", "")
    assert second.endswith("INFO convoy: second")


def test_lines_are_written_when_they_have_gathered(pipe: Pipe) -> None:
    writer = LineWriter(LogFormat.TEXT, pipe.writer, gather_s=0.01)
    for line in ("first", "second"):
        writer.write(line)
        assert os.read(pipe.reader, 100).decode() == f"{line}\n"


def test_pieces_are_whole_lines_that_a_pipe_takes_at_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []

    def write(_: int, data: bytes) -> int:
        pieces.append(data)
        return len(data)

    monkeypatch.setattr("service.telemetry.logs.os.write", write)
    writer = LineWriter(LogFormat.TEXT, pipe.writer)
    for n in range(1000):
        writer.write(f"{n} " + "x" * (n % 100))
    writer.close()
    assert all(piece.endswith(b"\n") and len(piece) <= 4096 for piece in pieces)
    assert [int(line.split()[0]) for line in b"".join(pieces).splitlines()] == list(range(1000))


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_full_pipe_blocks_no_writer_and_dropped_lines_are_counted(
    pipe: Pipe, log_format: LogFormat
) -> None:
    writer = LineWriter(log_format, pipe.writer, most_lines=100)
    lines = 5000
    for n in range(lines):
        writer.write(f"{n:4} " + "x" * 95)
    # What blocked would do so for ever: these are 500 kB into a pipe that takes 64.
    writer.close(timeout_s=0.05)
    read: list[str] = []
    reading = threading.Thread(target=lambda: read.extend(_read_lines(pipe, writer)))
    reading.start()
    reading.join(PATIENCE_S)
    assert not reading.is_alive()
    said = [line for line in read if "dropped" in line]
    kept = [line for line in read if line not in said]
    assert [int(line[:4]) for line in kept] == sorted({int(line[:4]) for line in kept})
    numbers = [re.search(r"(\d+) lines were dropped", line) for line in said]
    assert sum(int(number[1]) for number in numbers if number) == lines - len(kept)
    if log_format is LogFormat.JSON:
        assert {json.loads(line)["level"] for line in said} == {"WARNING"}


def _read_lines(pipe: Pipe, writer: LineWriter) -> list[str]:
    def end() -> None:
        writer.close(PATIENCE_S)
        os.close(pipe.writer)

    text = os.read(pipe.reader, 65536)
    ended = threading.Thread(target=end)
    ended.start()
    while piece := os.read(pipe.reader, 65536):
        text += piece
    ended.join()
    pipe.writer = os.dup(pipe.reader)
    return text.decode().splitlines()


def test_a_closed_pipe_blocks_no_writer(pipe: Pipe) -> None:
    writer = LineWriter(LogFormat.TEXT, pipe.writer)
    os.close(pipe.reader)
    writer.write("unread")
    writer.close()
    pipe.reader = os.dup(pipe.writer)
    assert not [thread for thread in threading.enumerate() if thread is writer._thread]


@contextmanager
def logging_to(pipe: Pipe, log_format: LogFormat) -> Iterator[logging.Logger]:
    logger = logging.Logger("convoy.test")
    handler = LineWriter(log_format, pipe.writer)
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_an_error_with_its_traceback_is_one_object_of_json(pipe: Pipe) -> None:
    with logging_to(pipe, LogFormat.JSON) as logger:
        try:
            raise ValueError("of 3 things\none")
        except ValueError:
            logger.exception("it went %s", "wrong", extra={"request_id": "id-1"})
        logger.info("and on")
    failed, went_on = map(json.loads, pipe.lines())
    assert (failed["level"], failed["logger"]) == ("ERROR", "convoy.test")
    assert (failed["message"], failed["id"]) == ("it went wrong", "id-1")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert "ValueError: of 3 things\none" in failed["traceback"]
    assert went_on["message"] == "and on"
    assert went_on.keys() == {"time", "level", "logger", "message"}


def test_an_error_is_a_line_of_text_with_its_traceback_below(pipe: Pipe) -> None:
    with logging_to(pipe, LogFormat.TEXT) as logger:
        logger.error("it went %s", "wrong", exc_info=(ValueError, ValueError("why"), None))
    first, *below = pipe.lines()
    assert re.fullmatch(r"\S{23}Z? ERROR convoy\.test: it went wrong", first)
    assert below[-1] == "ValueError: why"


def test_a_log_whose_thread_cannot_start_is_no_error_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made = []
    monkeypatch.setattr(LineWriter, "setFormatter", lambda self, _: made.append(self))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            LineWriter()
    (writer,) = made
    writer.close()
