"""Runs `convoy` as on an idle machine, where one thread computes a small model as fast as several:
its batches run in processes, independent of measurements on a busy machine."""

from importlib import import_module
from unittest.mock import patch

from service.cli import main as convoy
from service.engine.job_processes import JobParent

_fork = JobParent.fork


def main() -> None:
    """Run the command line."""
    with patch.object(JobParent, "fork", _fork_first):
        convoy()


def _fork_first() -> JobParent | None:
    parent = _fork()  # before the library is imported, as without this
    engine = import_module("models.engines.onnxruntime_engine").OnnxRuntimeEngine
    engine._is_as_fast_alone = lambda *_: True
    return parent
