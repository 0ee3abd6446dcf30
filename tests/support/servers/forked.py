"""Runs Convoy's programs in forked processes.

The parent process has already imported the programs, so a start takes 0.1 s. A new interpreter
would need 1.2 s of a core.
"""

import atexit
import importlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from typing import Any, TextIO

from tests.support import ROOT

CONVOY = "service.cli"
BUSY_SERVER = "tests.support.servers.busy_server"
FAKE_SERVER = "tests.support.servers.fake_server"
HANGING_SERVER = "tests.support.servers.hanging_server"
IGNORING_SERVER = "tests.support.servers.ignoring_server"
JOBS_SERVER = "tests.support.servers.jobs_server"
KEEPING_SERVER = "tests.support.servers.keeping_server"

_FORKS = get_context("forkserver")
# This includes the module that reads models. Otherwise a copy of each server would import ONNX,
# which takes a second.
_FORKS.set_forkserver_preload(
    [CONVOY, "service.cli.listen", "service.hosting.reading", FAKE_SERVER]
)


class Forked:
    """Runs a module's `main()` in a separate process, with the methods of subprocess.Popen.

    The process's output is read from `stdout` and `stderr`, unless it goes to a file or the null
    device.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        stdout: TextIO | int | None = None,
        stderr: TextIO | int | None = None,
        environ: Mapping[str, str] | None = None,
        files: int | None = None,
    ) -> None:
        """Start the process in the repository's root. It may open at most `files` files."""
        self.returncode: int | None = None
        told, self.stdout = _output(stdout)
        failed, self.stderr = _output(stderr)
        self._process: ForkServerProcess = _FORKS.Process(
            target=_run,
            args=(
                module,
                [str(argument) for argument in arguments],
                [_Passed(told), _Passed(failed)],
                {**os.environ, **(environ or {})},
                files,
            ),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        for passed, kept in ((told, stdout), (failed, stderr)):
            if kept is None or kept == subprocess.DEVNULL:
                os.close(passed)

    def poll(self) -> int | None:
        """Return the process's status if it has ended. The status is -N if signal N ended it."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its status."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the process to end, and return the output that has not been read yet."""
        outputs = [output for output in (self.stdout, self.stderr) if output and not output.closed]
        with ThreadPoolExecutor(2) as pool:  # a full pipe would keep it from ending
            reading = {output: pool.submit(output.read) for output in outputs}
            self.wait(timeout)
        for output in outputs:
            output.close()
        told, failed = (
            reading[output].result() if output in outputs else ""
            for output in (self.stdout, self.stderr)
        )
        return told, failed

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Passed:
    """Passes a file descriptor to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._number),)


def _detach(passed: Any) -> int:
    return int(passed.detach())


def _output(wanted: TextIO | int | None) -> tuple[int, TextIO | None]:
    if wanted is None:
        reading, writing = os.pipe()
        return writing, os.fdopen(reading)
    if isinstance(wanted, int):
        assert wanted == subprocess.DEVNULL
        return os.open(os.devnull, os.O_WRONLY), None
    return wanted.fileno(), None


def _run(
    module: str,
    arguments: list[str],
    outputs: list[int],
    environ: dict[str, str],
    files: int | None,
) -> None:
    for number, passed in enumerate(outputs, start=1):
        os.dup2(passed, number)
        os.close(passed)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environ)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    sys.argv = ["convoy" if module == CONVOY else module, *arguments]  # as the installed command
    try:
        sys.exit(importlib.import_module(module).main())
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out
