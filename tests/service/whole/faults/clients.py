"""Clients that leave, stall, or misbehave."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tests.service.whole.faults.fault import ANY, Counted, Faults, collector
from tests.service.whole.faults.rig import Rig, head, parse_answers, post, read_all, reset

CLIENTS: Faults = {}
fault = collector(CLIENTS)

SLOW = b"engine is slow"


@fault("a client connects and disconnects", "nothing")
def _(rig: Rig) -> Counted:
    for leave in (reset, lambda connection: connection.close()):
        leave(rig.raw())
    return {}


@fault("a client disconnects in the middle of the headers", "nothing")
def _(rig: Rig) -> Counted:
    whole = head(length=1)
    for length in (1, 5, len(whole) // 2, len(whole) - 1):
        reset(rig.raw(whole[:length]))
        rig.raw(whole[:length]).close()
    return {}


@fault("a client disconnects in the middle of a body", "nothing")
def _(rig: Rig) -> Counted:
    reset(rig.stranger(head(length=50_000), b"7" * 20_000))
    rig.stranger(head("Transfer-Encoding: chunked"), b"5\r\n77777\r\n").close()
    return {"499": 2}


@fault("a client disconnects while its image is queued", "nothing")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(1) as pool:
        with rig.control.holding():
            busy = pool.submit(rig.classify, 0)
            rig.control.until_held()
            queued = rig.stranger(post(b"5"))
            rig.wait_inside(2)
            reset(queued)
            rig.wait_inside(1)
        assert busy.result() == (200, 0)
    return {"200": 1, "499": 1}


@fault("a client disconnects while its image is computed", "nothing")
def _(rig: Rig) -> Counted:
    with rig.control.holding():
        running = rig.stranger(post(b"7"))
        rig.control.until_held()
        reset(running)
        rig.wait_inside(0)
    assert rig.classify(4) == (200, 4)
    return {"200": 1, "499": 1}


@fault("a client disconnects without reading its answer", "nothing")
def _(rig: Rig) -> Counted:
    for _ in range(20):
        reset(rig.stranger(post(b"5")))
    return {ANY: 20}


@fault("a client half-closes after sending its request", "the answer")
def _(rig: Rig) -> Counted:
    answers = rig.answers(post(SLOW), half_close=True)
    assert answers == [(200, 0)]
    return {"200": 1}


@fault("a client pipelines requests", "every answer, in order")
def _(rig: Rig) -> Counted:
    digits = [3, 1, 4, 1, 5, 9, 2, 6]
    last = post(b"5", "Connection: close")
    answers = rig.answers(b"".join(post(str(digit).encode()) for digit in digits) + last)
    assert answers == [(200, digit) for digit in (*digits, 5)]
    return {"200": len(digits) + 1}


@fault("a client pipelines requests and disconnects", "nothing")
def _(rig: Rig) -> Counted:
    with rig.control.holding():
        connection = rig.stranger(post(b"7") + post(b"1") * 5)
        rig.control.until_held()
        reset(connection)
    return {ANY: 1}  # the others are never begun


@fault("300 clients disconnect at the same time", "nothing; other clients are answered")
def _(rig: Rig) -> Counted:
    leaving = [rig.stranger(head(length=9), b"1234") for _ in range(300)]
    with rig.others():
        for connection in leaving:
            reset(connection)
    return {"200": 8, "499": 300}


@fault("headers arrive slowly on 100 connections", "a late answer; other clients are answered")
def _(rig: Rig) -> Counted:
    slow = [rig.raw(head(length=1)[:10]) for _ in range(100)]
    with rig.others():
        pass
    for connection in slow:
        connection.sendall(head(length=1)[10:] + b"7")
        connection.shutdown(1)
    for connection in slow:
        connection.close()
    return {"200": 8, ANY: 100}


@fault("a body arrives byte by byte", "a late answer; other clients are answered")
def _(rig: Rig) -> Counted:
    with closing(rig.raw(head("Connection: close", length=30))) as slow:
        with rig.others():
            for byte in b"7" * 30:
                slow.sendall(bytes([byte]))
                time.sleep(0.005)  # or the kernel would send them together
        assert parse_answers(read_all(slow)) == [(200, 7)]
    return {"200": 9}


@fault("a client does not read its answers", "nothing; other clients are answered")
def _(rig: Rig) -> Counted:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: convoy\r\n\r\n"
    with closing(rig.raw(ask * 300)), rig.others():
        pass
    return {"200": 8}
