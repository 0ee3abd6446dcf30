"""Runs `convoy` with one process for all tests of models. This process imports the libraries only
once.

As in busy_server.py, no test of a model waits for an idle core.
"""

from unittest.mock import patch

from service.engine.process_pool import ProcessPool
from tests.support.servers import busy_server

_end = ProcessPool.end_idle


def main() -> None:
    """Run the command line."""
    with patch.object(ProcessPool, "end_idle", _end_if_closed):
        busy_server.main()


def _end_if_closed(pool: ProcessPool) -> None:
    if pool._closed:
        _end(pool)
