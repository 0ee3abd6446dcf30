"""A real server over a fake engine, in a process of its own: python -m tests.service.fake_server.

Prints its port once it takes requests. The exit status is 0 if everything accepted was answered.
"""

import argparse
import sys

from models import EngineError
from service.app import create_app
from service.server import bind, run_server
from tests.service.fakes import FakeEngine, make_repository


def main() -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--drain-s", type=float, default=10.0)
    parser.add_argument("--max-body-bytes", type=int, default=100_000)
    parser.add_argument("--cannot-warm-up", action="store_true")
    options = parser.parse_args()

    def warm_up() -> None:
        if options.cannot_warm_up:
            raise EngineError("no memory")

    repository = make_repository(
        FakeEngine(delay_s=options.delay_s, warm_up=warm_up),
        max_body_bytes=options.max_body_bytes,
    )
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
