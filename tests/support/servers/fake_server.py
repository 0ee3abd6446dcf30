"""Runs a real server with a fake engine: python -m tests.support.servers.fake_server.

Prints its port when it accepts requests. The exit status is 0 if all accepted requests were
answered.
"""

import argparse
import contextlib
import itertools
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from models import EngineError, Images, Scores
from service.api.app import create_app
from service.edge.connections import KEPT_S
from service.engine.watchdog import Bounds
from service.http import connection, server
from service.http.server import bind, run_server
from service.settings import LogFormat, Settings
from service.telemetry.logs import configure_logging
from tests.service.whole.faults.pictures import FaultyScores, prepare_faulty
from tests.support import PATIENCE_S
from tests.support.servers.control import Control
from tests.support.servers.listening import PATIENT
from tests.support.service.fakes import FakeEngine, decode_digit, free, make_repository, one_hot


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--control", type=Path, help="folder of a Control")
    parser.add_argument("--notice-s", type=float, default=0.0)
    parser.add_argument("--kept-s", type=float, default=KEPT_S)
    parser.add_argument("--drain-s", type=float, default=PATIENCE_S)
    parser.add_argument("--max-body-bytes", type=int, default=100_000)
    parser.add_argument("--max-queue", type=int, default=32)
    parser.add_argument("--cannot-warm-up", action="store_true")
    parser.add_argument("--faults", action="store_true", help="some pictures bring about faults")
    parser.add_argument("--unsteady-clock", action="store_true", help="time.time() jumps days")
    parser.add_argument("--engine-timeout-s", type=float, help="and another engine follows")
    parser.add_argument("--decode-timeout-s", type=float, default=PATIENCE_S)
    parser.add_argument("--decodes", action="store_true", help="in the jobs that run images")
    parser.add_argument("--decode-bytes", type=int, default=10**9)
    parser.add_argument("--max-connections", type=int, default=1024)
    parser.add_argument("--per-address", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--log", choices=["read", "full", "closed"], default="read")
    options = parser.parse_args(arguments)
    if options.faults:
        configure_logging(verbose=False, log_format=LogFormat.TEXT)
        spoil_log(options.log)

    control = Control(options.control) if options.control else None

    def warm_up() -> None:
        if options.cannot_warm_up:
            raise EngineError("no memory")

    def engine() -> FakeEngine:
        faulty = FaultyScores()

        def scores(images: Images) -> Scores:
            if control:
                control.obey()
            return faulty(images) if options.faults else one_hot(images)

        return FakeEngine(delay_s=options.delay_s, warm_up=warm_up, scores=scores)

    repository = make_repository(
        engine(),
        prepare=prepare_faulty if options.faults else free(decode_digit),
        decode_bytes=options.decode_bytes,
        max_body_bytes=options.max_body_bytes,
        max_queue=options.max_queue,
        bounds=Bounds(options.decode_timeout_s if options.decodes else options.engine_timeout_s),
        decodes=options.decodes,
        reopen=engine if options.engine_timeout_s else None,
        others=[engine() for _ in range(options.engines - 1)],
        decode_s=options.decode_timeout_s,
    )
    if options.unsteady_clock:
        steady, days = time.time, itertools.cycle((0, 400, -400))
        time.time = lambda: steady() + 86_400 * next(days)
    vars(connection)["KEPT_S"] = options.kept_s
    vars(server)["Limits"] = partial(replace, PATIENT)
    listener = bind("127.0.0.1", options.port)
    port = listener.getsockname()[1]
    app = create_app(repository)
    answered = run_server(
        app,
        app.endpoints,
        repository,
        listener,
        Settings(
            max_connections=options.max_connections,
            max_connections_per_address=options.per_address or options.max_connections,
            max_rate=options.rate,
            access_log=False,
            notice_s=options.notice_s,
            drain_s=options.drain_s,
        ),
        keys=None,
        announce=lambda: print(port, flush=True),
    )
    return 0 if answered else 1


def spoil_log(how: str) -> None:
    """Replace standard error by a pipe that cannot be written. The pipe is full and not read, or it
    is closed."""
    if how == "read":
        return
    reading, writing = os.pipe()
    if how == "closed":
        os.close(reading)
    else:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
    os.dup2(writing, sys.stderr.fileno())


if __name__ == "__main__":
    sys.exit(main())
