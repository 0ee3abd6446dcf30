"""Requests that violate HTTP, or the protocol of their body."""

import gzip
import json
import zlib

from tests.service.whole.faults.fault import Counted, Faults, collector
from tests.service.whole.faults.rig import INFER_PATH, Rig, head, post
from tests.support.servers.control import processor_s

MESSAGES: Faults = {}
fault = collector(MESSAGES)

LIMIT = 100_000  # --max-body-bytes of the fake server

# Lists within lists, and strings among them, that once took a second for each 100 kB.
_TENSOR = '{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,1,1,1],"data":%s}]}'
_NESTED = [
    (_TENSOR % data).encode()
    for data in (
        "[" + "[" * 190 + "]" * 190 + ',"' + "a" * 90_000 + '"]',
        "[" + ",".join(["[" * 100 + "]" * 100] * 400) + "]",
        "[" + ",".join(["[]"] * 30_000) + "]",
    )
]


def _refused(rig: Rig, *pieces: bytes, status: int, half_close: bool = False) -> None:
    """Check that the only answer is an error."""
    (answer,) = rig.answers(*pieces, half_close=half_close)
    assert answer[0] == status, answer


@fault("a body is shorter than its Content-Length", "nothing; the connection is closed")
def _(rig: Rig) -> Counted:
    assert rig.answers(head(length=10) + b"77", half_close=True) == []
    return {"499": 1}


@fault("a body is longer than its Content-Length", "the answer, then 400")
def _(rig: Rig) -> Counted:
    good, bad = rig.answers(head(length=1) + b"7 and more\r\n\r\n")
    assert (good, bad[0]) == ((200, 7), 400)
    return {"200": 1}


@fault(
    "noise or invalid chunks follow a request that is being computed",
    "the answer, then 400",
)
def _(rig: Rig) -> Counted:
    slow = post(b"engine is slow")
    for noise in (b"noise\r\n\r\n", head("Transfer-Encoding: chunked") + b"zz\r\n7\r\n"):
        good, bad = rig.answers(slow + noise)
        assert (good, bad[0]) == ((200, 0), 400)
    return {"200": 2}


@fault("chunks are invalid", "400, or nothing; the connection is closed")
def _(rig: Rig) -> Counted:
    for garbage in (b"zz\r\n7\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"2\r\n7777\r\n"):
        answers = rig.answers(head("Transfer-Encoding: chunked") + garbage)
        assert [status for status, _ in answers] in ([400], [])
    return {"any": 4}


@fault("the headers do not end", "431")
def _(rig: Rig) -> Counted:
    _refused(rig, b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 66_000, status=431)
    return {}


@fault("Content-Length is invalid or sent twice", "400")
def _(rig: Rig) -> Counted:
    for told in ("-1", "1e3", "9" * 40, "1\r\nContent-Length: 2"):
        _refused(rig, head(f"Content-Length: {told}") + b"7", status=400)
    return {}


@fault("a request has Content-Length and Transfer-Encoding", "400")
def _(rig: Rig) -> Counted:
    _refused(rig, head("Transfer-Encoding: chunked", length=1) + b"1\r\n7\r\n0\r\n\r\n", status=400)
    return {}


@fault("TLS, HTTP/2 or noise instead of HTTP/1.1", "400, or 505 for HTTP/2")
def _(rig: Rig) -> Counted:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2
    for noise in (hello, bytes(500), b"\xff\xd8\xff\xe0" * 99):
        _refused(rig, noise, status=400)
    _refused(rig, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", status=505)
    return {}


@fault("a client that expects 100 Continue announces a body that is too long", "413 at once")
def _(rig: Rig) -> Counted:
    _refused(rig, head("Expect: 100-continue", length=LIMIT + 1), status=413, half_close=True)
    return {"413": 1}


@fault("a body has exactly the allowed length, or one byte more", "the answer, or 413")
def _(rig: Rig) -> Counted:
    assert rig.classify(b"7" * LIMIT) == (200, 7)
    assert rig.classify(b"7" * (LIMIT + 1))[0] == 413
    return {"200": 1, "413": 1}


@fault("a body of unknown length does not end", "413")
def _(rig: Rig) -> Counted:
    chunk = b"10000\r\n" + b"7" * 65_536 + b"\r\n"
    _refused(rig, head("Transfer-Encoding: chunked") + chunk * 2, status=413, half_close=True)
    return {"413": 1}


@fault("a form ends early, or has no file", "400")
def _(rig: Rig) -> Counted:
    kind = "Content-Type: multipart/form-data; boundary=b"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n7'
    for body in (b"--b--\r\n", part, part[:20], b"nothing like it"):
        _refused(rig, post(body, kind, "Connection: close"), status=400)
    return {"400": 4}


@fault("one of several images cannot be decoded", "400, which names the image")
def _(rig: Rig) -> Counted:
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n{}\r\n'
    body = "".join(part.format(picture) for picture in ("1", "2", "broken", "4")) + "--b--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    status, answer = rig.exchange("POST", "/v1/classify", body.encode(), kind)
    assert (status, answer["error"][:17]) == (400, "image 3 of 4: the")
    return {"400": 1}


@fault("JSON is nested too deeply", "400 or 413")
def _(rig: Rig) -> Counted:
    for bomb in (b"[" * 90_000, b'{"inputs":' * 9_000, b'{"inputs":' + b"[" * 90_000, *_NESTED):
        used_s = processor_s(rig.process.pid)
        status, _ = rig.exchange("POST", INFER_PATH, bomb)
        assert status in (400, 413)
        assert processor_s(rig.process.pid) - used_s < 1
    return {"any": 3 + len(_NESTED)}


@fault("a binary tensor has the wrong size", "400")
def _(rig: Rig) -> Counted:
    for size in (0, 2, 10**6, 10**18):
        tensor = {
            "name": "image",
            "datatype": "UINT8",
            "shape": [1, 1, 1, 1],
            "parameters": {"binary_data_size": size},
        }
        body = json.dumps({"inputs": [tensor]}).encode()
        for length in (len(body), len(body) + 5, 10**9):
            told = {"Inference-Header-Content-Length": str(length)}
            assert rig.exchange("POST", INFER_PATH, body + b"7", told)[0] == 400
    return {"400": 12}


@fault("a compressed body is a bomb or truncated", "413 or 400")
def _(rig: Rig) -> Counted:
    bombs = (
        (gzip.compress(bytes(20_000_000)), "gzip", 413),
        (zlib.compress(bytes(20_000_000)), "deflate", 413),
        (gzip.compress(b'{"inputs": []}')[:-9], "gzip", 400),
        (b"no gzip", "gzip", 400),
    )
    for body, coding, status in bombs:
        told = {"Content-Encoding": coding}
        assert rig.exchange("POST", INFER_PATH, body, told)[0] == status
    return {"413": 2, "400": 2}


@fault("a query, deadline or priority is invalid", "422")
def _(rig: Rig) -> Counted:
    for told in ({"X-Timeout-Ms": "-1"}, {"X-Timeout-Ms": "nan"}, {"X-Priority": "first"}):
        assert rig.classify(7, **told)[0] == 422
    assert rig.exchange("POST", "/v1/classify?top_k=" + "9" * 5000, b"7")[0] == 422
    return {"422": 4}
