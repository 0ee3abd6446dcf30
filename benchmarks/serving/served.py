"""Starts `convoy serve` for benchmarks that send requests to it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from benchmarks.rows import ROOT

CONVOY = (sys.executable, "-c", "from service.cli import main; main()")


@contextmanager
def logged(
    options: Sequence[str], log: IO[str], program: Sequence[str] = CONVOY
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Yield a running `convoy serve`, its address, and its gRPC address if it has one.

    The server writes to `log`, and is terminated at the end of the block. Raises SystemExit if the
    server does not start.
    """
    command = [*program, "serve", "--port", "0", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r" at (http://\S+)(?: and over gRPC at (\S+))?", line)
        if found is None:
            process.wait()
            raise SystemExit(f"convoy serve did not start; its last lines:\n{last_lines(log)}")
        yield process, found[1], found[2] or ""
    finally:
        end(process)
        process.communicate()


def end(process: "subprocess.Popen[str]") -> int:
    """End the process with SIGTERM, or with SIGKILL after a minute, and return its exit status."""
    process.terminate()
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def last_lines(log: IO[str]) -> str:
    """Return the last lines of a log."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
    return "".join(log.readlines()[-20:])
