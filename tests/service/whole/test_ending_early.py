"""SIGTERM while models are being loaded. There is no request to finish then."""

import signal
import subprocess
import sys

import pytest

from service.http.server import ended_by_sigterm
from tests.support import PATIENCE_S, ROOT

LOADING = """
import sys, threading
from service import cli
from service.hosting import opening

def load(*_):
    print("loading", flush=True)
    threading.Event().wait()

opening.open_models = load
sys.argv = ["convoy", "serve", "--port", "0"]
cli.main()
"""


def test_sigterm_while_a_model_is_loaded_ends_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.terminate()
        # By a handler: for a container's first process, the kernel's own does nothing.
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        _, error = process.communicate()
    assert "Traceback" not in error


def test_afterwards_the_signal_is_whose_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    left: list[int] = []
    monkeypatch.setattr("os._exit", left.append)
    with ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert left == [143]
    assert signal.getsignal(signal.SIGTERM) == before
