"""A real server over a fake engine, in a process of its own: python -m tests.service.fake_server.

Prints its port once it takes requests. The exit status is 0 if everything accepted was answered.
"""

import argparse
import itertools
import sys
import time

from models import EngineError
from service.app import create_app
from service.server import bind, run_server
from tests.service.fakes import FakeEngine, decode_digit, make_repository
from tests.service.faults.pictures import faulty_decode, faulty_scores


def main() -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--drain-s", type=float, default=10.0)
    parser.add_argument("--max-body-bytes", type=int, default=100_000)
    parser.add_argument("--max-queue", type=int, default=32)
    parser.add_argument("--cannot-warm-up", action="store_true")
    parser.add_argument("--faults", action="store_true", help="some pictures bring about faults")
    parser.add_argument("--unsteady-clock", action="store_true", help="time.time() jumps days")
    options = parser.parse_args()

    def warm_up() -> None:
        if options.cannot_warm_up:
            raise EngineError("no memory")

    repository = make_repository(
        FakeEngine(
            delay_s=options.delay_s,
            warm_up=warm_up,
            scores=faulty_scores if options.faults else None,
        ),
        faulty_decode if options.faults else decode_digit,
        max_body_bytes=options.max_body_bytes,
        max_queue=options.max_queue,
    )
    if options.unsteady_clock:
        steady, days = time.time, itertools.cycle((0, 400, -400))
        time.time = lambda: steady() + 86_400 * next(days)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    answered = run_server(
        create_app(repository),
        repository,
        listener,
        drain_s=options.drain_s,
        access_log=False,
        announce=lambda: print(port, flush=True),
    )
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
