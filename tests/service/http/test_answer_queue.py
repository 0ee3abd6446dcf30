"""The queue of a connection's requests."""

from service.fair_queue import ANYONE
from service.http.answer_queue import AnswerQueue, QueuedRequest
from service.telemetry.record import RequestRecord


def test_short_parts_of_a_body_are_joined_while_its_request_waits() -> None:
    record = RequestRecord(b"1", "127.0.0.1", b"POST", b"/", b"", {}, ANYONE)
    queued = QueuedRequest(record, keep_alive=True)
    for number in range(1000):
        AnswerQueue.pass_on(AnswerQueue.__new__(AnswerQueue), queued, b"%02d" % (number % 100))
    assert b"".join(queued.chunks) == 10 * b"".join(b"%02d" % number for number in range(100))
    assert len(queued.chunks) == 1
