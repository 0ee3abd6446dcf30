"""Runs a real server whose engine hangs if an image is a 9. Prints its port when it accepts
requests. The argument names a file: each time a test creates it, one more engine may be opened.
"""

import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from models import Batch, Results
from service.api.app import create_app
from service.engine.watchdog import Bounds
from service.http.server import bind, run_server
from service.settings import Settings
from service.telemetry.logs import configure_logging
from tests.support.service.fakes import FakeEngine, make_repository

BOUND_S = 2.5  # longer than a busy machine takes to run a batch


class HangingEngine(FakeEngine):
    """An engine that hangs if an image is a 9."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the scores, or never return."""
        if np.any(np.asarray(images) == 9):
            threading.Event().wait()
        return super().run(images, inner)


def main() -> int:
    """Serve until a signal."""
    configure_logging(verbose=False)
    allowed = Path(sys.argv[1])

    def reopen() -> FakeEngine:
        while not allowed.exists():
            time.sleep(0.005)
        allowed.unlink()
        return HangingEngine()

    repository = make_repository(HangingEngine(), bounds=Bounds(batch_s=BOUND_S), reopen=reopen)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = create_app(repository)
    answered = run_server(
        app,
        app.endpoints,
        repository,
        listener,
        Settings(access_log=False, drain_s=10),
        keys=None,
        announce=lambda: print(port, flush=True),
    )
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
