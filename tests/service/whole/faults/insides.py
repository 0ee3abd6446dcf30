"""Engines and decoders that fail in different ways, and queues that are full."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.service.whole.faults.fault import ANY, Counted, Faults, Inject, collector
from tests.service.whole.faults.rig import Rig
from tests.support.servers.control import until

INSIDES: Faults = {}
fault = collector(INSIDES)


def _fails(picture: bytes) -> Inject:
    """Return an injection: an image's request must be answered with 500, and each concurrent
    request exactly once."""

    def inject(rig: Rig) -> Counted:
        status, message = rig.classify(picture)
        assert status == 500, message
        with ThreadPoolExecutor(9) as pool:
            pictures = [picture, *(str(digit).encode() for digit in range(8))]
            failed, *others = [request.result() for request in rig.many(pool, pictures)]
        assert failed[0] == 500
        # The whole batch fails; no request gets the answer of another.
        for digit, (status, answer) in enumerate(others):
            assert (status, answer) == (200, digit) or status == 500
        return {ANY: 10}

    return inject


for _name, _seen in (
    ("decoder raises", "500"),
    ("decoder raises SystemExit", "500"),
    ("decoder raises StopIteration", "500"),
    ("decoder raises KeyboardInterrupt", "500"),
    ("decoder is out of memory", "500"),
    ("decoder raises RecursionError", "500"),
    ("engine raises", "500 for the whole batch"),
    ("engine raises another error", "500 for the whole batch"),
    ("engine is out of memory", "500 for the whole batch"),
    ("engine raises SystemExit", "500 for the whole batch"),
    ("engine raises StopIteration", "500 for the whole batch"),
    ("engine returns too few scores", "500 for the whole batch"),
    ("engine returns another number of classes", "500 for the whole batch"),
    ("engine returns None", "500 for the whole batch"),
    ("engine returns NaN", "500 for the whole batch"),
):
    fault(f"the {_name}", _seen)(_fails(_name.encode()))


@fault("the engine is slow", "a late answer")
def _(rig: Rig) -> Counted:
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        with rig.control.holding():
            slow = pool.submit(rig.classify, 0)
            rig.control.until_held()
            stack.enter_context(rig.others())
            rig.wait_inside(9)
        assert slow.result() == (200, 0)
    return {"200": 9}


@fault("the decoder is slow", "a late answer; other clients are answered")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(rig.classify, b"decoder is slow")
        rig.wait_until_inside(slow)
        with rig.others():
            pass
        assert slow.result() == (200, 0)
    return {"200": 9}


@fault(
    "more images arrive than the queue holds",
    "429 with Retry-After, or the answer",
    "--max-queue",
    "8",
)
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(60) as pool:
        with rig.control.holding():
            busy = pool.submit(rig.classify, 0)
            rig.control.until_held()
            burst = rig.many(pool, [b"%d" % (n % 10) for n in range(60)])
            until(lambda: any(request.done() for request in burst))
        statuses = []
        for n, request in enumerate(burst):
            status, answer = request.result()
            assert status == 429 or (status, answer) == (200, n % 10)
            statuses.append(status)
        assert busy.result() == (200, 0)
    assert 0 < statuses.count(429) < 60
    return {"200": statuses.count(200) + 1, "429": statuses.count(429)}


@fault("a deadline passes while the request is queued", "504")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(1) as pool:
        with rig.control.holding():
            busy = pool.submit(rig.classify, 0)
            rig.control.until_held()
            assert rig.classify(5, X_Timeout_Ms="50")[0] == 504
        assert busy.result() == (200, 0)
    return {"200": 1, "504": 1}


@fault("metrics, health and the page are read while every batch fails", "the answer")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(8) as pool:
        failing = rig.many(pool, [b"engine raises", b"decoder raises", b"engine is slow", b"x"] * 4)
        for _ in range(5):
            for path in ("/metrics", "/v2/health/live", "/v2/health/ready", "/v2/models/stats"):
                assert rig.exchange("GET", path)[0] == 200
        assert {request.result()[0] for request in failing} <= {200, 400, 500}
    return {ANY: 16}


@fault(
    "the engine hangs",
    "500; queued requests get 503; later answers, as soon as a new engine is ready",
    *("--engine-timeout-s", "2.5"),
)
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(4) as pool:
        hung = pool.submit(rig.classify, b"engine hangs")
        rig.wait_until_inside(hung)
        waiting = rig.many(pool, [b"1", b"2", b"3"])
        assert hung.result()[0] == 500
        assert {request.result()[0] for request in waiting} <= {500, 503}
    until(lambda: rig.exchange("GET", "/v2/health/ready")[0] == 200)
    return {"500": 1, ANY: 3}


@fault(
    "the engine breaks and returns only NaN from then on",
    "500, then 503; later answers, as soon as a new engine is ready",
    *("--engine-timeout-s", "60"),
)
def _(rig: Rig) -> Counted:
    statuses = [rig.classify(b"engine breaks")[0]]

    def answers() -> bool:
        statuses.append(rig.classify(1)[0])
        return statuses[-1] == 200

    until(answers)
    assert statuses.count(500) >= 5
    assert set(statuses) <= {200, 500, 503}
    return {ANY: len(statuses)}


@fault(
    "one of two engines hangs",
    "500 for the engine's batch; other requests are answered, and the server stays ready",
    *("--engines", "2", "--engine-timeout-s", "2.5"),
)
def _(rig: Rig) -> Counted:
    answered = 0
    with ThreadPoolExecutor(1) as pool:
        hung = pool.submit(rig.classify, b"engine hangs")
        rig.wait_until_inside(hung)
        while not hung.done():
            with rig.others():
                assert rig.exchange("GET", "/v2/health/ready")[0] == 200
            answered += 8
            time.sleep(0.1)  # and the engine hangs for seconds
        assert hung.result()[0] == 500
    assert answered
    return {"500": 1, "200": answered}


@fault("the decoder hangs", "500; other clients are answered", "--decode-timeout-s", "2.5")
def _(rig: Rig) -> Counted:
    with ThreadPoolExecutor(3) as pool:
        hung = rig.many(pool, [b"decoder hangs"] * 3)  # more than there are threads
        assert [request.result()[0] for request in hung] == [500] * 3
    with rig.others():
        pass
    return {"500": 3, "200": 8}
