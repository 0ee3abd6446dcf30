"""Runs `convoy` as if it had found that one thread computes a model as fast as several threads. So
its batches run in processes. Measurements on a busy machine might find otherwise.

The processes obey the `Control` whose folder an environment variable names.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from service.cli import main as convoy
from service.engine.job_processes import JobParent
from service.engine.supervised_engine import JobResult, do_job
from tests.support.servers.control import Control

CONTROL = "TEST_CONTROL"

_fork = JobParent.fork


def main() -> None:
    """Run the command line."""
    folder = os.environ.get(CONTROL)
    with patch.object(JobParent, "fork", _fork_first):
        if folder is None:
            convoy()
        else:
            with patch("service.engine.job_processes.do_job", _after(Control(Path(folder)).obey)):
                convoy()


def _after(first: Callable[[], None]) -> Callable[..., JobResult]:
    def do_both(*args: Any) -> JobResult:
        first()
        return do_job(*args)

    return do_both


def _fork_first() -> JobParent | None:
    parent = _fork()  # before the library is imported, as without this
    engine = import_module("models.engines.onnxruntime_engine").OnnxRuntimeEngine
    engine._is_as_fast_alone = lambda *_: True
    return parent
