"""Runs `convoy`, and keeps the process that reads and tests models. So this process imports the
libraries only once. As in busy_server.py, the wait for idle cores is short."""

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
