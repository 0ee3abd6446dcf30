"""Runs real workers over fake engines: python -m tests.support.servers.fake_workers --workers 2.

Prints its port once it takes requests. The exit status is 0 if everything accepted was answered.
"""

import argparse
import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np

from models import EngineError, Images, Scores
from service.engine.watchdog import Bounds
from service.hosting.repository import Repository
from service.http.server import bind
from service.processes import Options, WorkersError, prepare, run_workers, supervisor
from service.settings import Settings
from service.telemetry.logs import configure_logging
from tests.support.servers.control import Control
from tests.support.service.fakes import FakeEngine, decode_digit, fake_info, free, one_hot


def main() -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--notice-s", type=float, default=0.0)
    parser.add_argument("--drain-s", type=float, default=10.0)
    parser.add_argument("--max-queue", type=int, default=32)
    parser.add_argument("--control", type=Path, required=True, help="folder of a Control")
    parser.add_argument("--cannot-warm-up", action="store_true")
    parser.add_argument("--lenient", action="store_true", help="serve the other model then")
    parser.add_argument("--patience", type=int, default=100, help="statuses left unanswered")
    parser.add_argument("--die", action="store_true", help="workers end as they begin")
    options = parser.parse_args()
    control = Control(options.control)

    def warm_up() -> None:
        if options.cannot_warm_up:
            raise EngineError("no memory")

    def scores(images: Images) -> Scores:
        control.obey()
        return one_hot(images)

    def upside_down(images: Images) -> Scores:
        return np.ascontiguousarray(one_hot(images)[:, ::-1])

    vars(supervisor)["_MOST_UNKNOWN"] = options.patience
    configure_logging(verbose=False)
    prepare(["tests.support.service.fakes"])
    make_repository = partial(
        Repository,
        max_batch=8,
        max_queue=options.max_queue,
        max_body_bytes=100_000,
        default="fake",
        measure_s=0.0,
        bounds=Bounds(batch_s=0.0),  # tests hold a batch for as long as a busy machine needs
        strict=not options.lenient,
    )
    repository = make_repository(decode_threads=0)
    engine = FakeEngine(warm_up=warm_up, scores=scores)
    repository.add(fake_info(), [engine], free(decode_digit))
    repository.add(fake_info("other"), [FakeEngine(scores=upside_down)], free(decode_digit))
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    try:
        configure = die if options.die else partial(configure_logging, verbose=False)
        made = partial(make_repository, decode_threads=1)
        answered = run_workers(
            repository,
            listener,
            Options(
                Settings(
                    workers=options.workers,
                    access_log=False,
                    notice_s=options.notice_s,
                    drain_s=options.drain_s,
                ),
                *(None, made, configure),
            ),
            announce=lambda: print(port, flush=True),
        )
    except (EngineError, WorkersError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0 if answered else 1


def die() -> None:
    """Kill this process, as a worker that cannot live."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
