"""Small requests that would stop a server that believes their declared sizes."""

import select
import signal
import socket
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from PIL import Image

from tests.service.whole.faults.fault import Counted, Faults, collector
from tests.service.whole.faults.rig import Rig, head, parse_answers, post
from tests.support.images.files import encode, noise
from tests.support.servers.control import until

ATTACKS: Faults = {}
fault = collector(ATTACKS)

_SIDE = 3000


@fault(
    "small files need much memory to decode",
    "a late answer, or 503 with Retry-After; other clients are answered",
    "--decode-bytes",
    "250000000",
)
def _(rig: Rig) -> Counted:
    large = encode(Image.new("RGBA", (_SIDE, _SIDE), (0, 0, 0, 255)), "WebP", lossless=True)
    assert len(large) < 2000
    before = rig.resident_bytes()
    peak = before
    with ThreadPoolExecutor(6) as pool:
        asked = rig.many(pool, [large] * 6)
        while not all(each.done() for each in asked):
            assert rig.classify(7) == (200, 7)
            peak = max(peak, rig.resident_bytes())
            time.sleep(0.01)
    counted = Counter(status for status, _ in (each.result() for each in asked))
    assert counted.keys() <= {200, 503}
    assert counted[200] >= 2
    assert peak - before < 300e6  # one at a time: two take 312 MB
    answered = counted[200] + rig.counted()["200"] - counted[200]
    return {"200": answered, "503": counted[503]}


@fault("an image needs more memory to decode than the budget", "413", "--decode-bytes", "50000000")
def _(rig: Rig) -> Counted:
    large = encode(Image.new("RGB", (_SIDE, _SIDE)), "WebP", lossless=True)
    status, message = rig.classify(large)
    assert (status, "MB of memory" in message) == (413, True)
    return {"413": 1}


@fault("a JPEG has too many scans for its pixels", "413")
def _(rig: Rig) -> Counted:
    data = encode(Image.new("L", (5000, 5000)), "JPEG", progressive=True, quality=1)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff\xda", start + 1)
    status, _ = rig.classify(data[:start] + data[start : start + 20] * 30 + data[start:end])
    assert status == 413
    return {"413": 1}


@fault("a JPEG claims more pixels than its bytes can hold", "400")
def _(rig: Rig) -> Counted:
    lying = bytearray(encode(noise(320, 240), "JPEG"))
    frame = lying.index(b"\xff\xc0")
    lying[frame + 5 : frame + 9] = struct.pack(">HH", 4900, 5000)
    status, message = rig.classify(bytes(lying))
    assert (status, "5000×4900 pixels need" in message) == (400, True)
    return {"400": 1}


@fault(
    "one address opens all connections",
    "the connections that have been silent longest are closed; other clients are answered",
    "--max-connections",
    "64",
    "--per-address",
    "32",
)
def _(rig: Rig) -> Counted:
    silent = [rig.raw() for _ in range(200)]
    until(lambda: sum(map(_is_closed, silent)) >= 200 - 32)
    time.sleep(0.3)
    for number in range(10):
        assert rig.classify(number) == (200, number)
    assert rig.descriptors() < 100
    for each in silent:
        each.close()
    return {"200": 10}


def _is_closed(connection: socket.socket) -> bool:
    closed = select.poll()
    closed.register(connection, select.POLLIN)
    return bool(closed.poll(0))


@fault("a client exceeds its rate", "429 with Retry-After", "--rate", "20")
def _(rig: Rig) -> Counted:
    time.sleep(1)
    started = time.monotonic()
    answers = Counter[int]()
    while not answers[429]:  # a server that stands still for seconds may have a new token for each
        with closing(rig.raw(post(b"1") * 90)) as connection:
            received = b""
            while received.count(b"HTTP/1.1 ") < 90:
                received += connection.recv(65_536)
        answers.update(status for status, _ in parse_answers(received))
    assert answers.keys() == {200, 429}
    assert 20 <= answers[200] <= 21 + 20 * (time.monotonic() - started)
    time.sleep(1)  # for what is asked afterwards
    return {"200": answers[200]}


@fault("a request has no Host header or two, or an unknown Transfer-Encoding", "400")
def _(rig: Rig) -> Counted:
    for wrong in (
        b"POST /v1/classify HTTP/1.1\r\nContent-Length: 1\r\n\r\n7",
        post(b"7", "Host: another"),
        head("Transfer-Encoding: gzip, chunked") + b"1\r\n7\r\n0\r\n\r\n",
        b"POST /v1/classify HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n7\r\n0\r\n\r\n",
    ):
        (answer,) = rig.answers(wrong)
        assert answer[0] == 400
    return {}


@fault("a request has another HTTP version", "505")
def _(rig: Rig) -> Counted:
    for version in ("0.9", "1.2", "2.0", "3.7"):
        (answer,) = rig.answers(f"GET /v2 HTTP/{version}\r\nHost: convoy\r\n\r\n".encode())
        assert answer[0] == 505
    return {}


@fault("a request has 70 kB of headers, or 200 headers", "431")
def _(rig: Rig) -> Counted:
    for wrong in ("X: " + "y" * 70_000, "\r\n".join(["X: y"] * 200)):
        (answer,) = rig.answers(head(wrong))
        assert answer[0] == 431
    return {}


@fault("SIGHUP without a key file", "the answer")
def _(rig: Rig) -> Counted:
    with rig.others():
        rig.process.send_signal(signal.SIGHUP)
    return {"200": 8}
