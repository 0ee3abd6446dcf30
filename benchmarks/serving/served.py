"""Starts `convoy serve` for benchmarks that send it requests."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.rows import ROOT

CONVOY = (sys.executable, "-c", "from service.cli import main; main()")


@contextmanager
def served_on_cpu(model: Path, preset: str | None, options: Sequence[str] = ()) -> Iterator[str]:
    """Serve like `served`, on the CPU, with the cores that this thread may use."""
    with served(model, preset, ["--device", "cpu", *options]) as url:
        yield url


@contextmanager
def served(
    model: Path, preset: str | None, options: Sequence[str], program: Sequence[str] = CONVOY
) -> Iterator[str]:
    """Yield the address of a server without request logs. Raises RuntimeError if it does not
    start."""
    command = [*program, "serve", str(model), "--port", "0", "--no-access-log"]
    command += [*(["--preset", preset] if preset else []), *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"at (http://\S+) on", process.stdout.readline())
            if found is None:
                raise RuntimeError("the server does not start")
            yield found[1]
        finally:
            process.terminate()


@contextmanager
def logged(
    options: Sequence[str], log: IO[str]
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Yield a running `convoy serve`, its address, and its gRPC address if it has one.

    It writes to `log`, and is killed if it still runs at the end. Raises SystemExit where it does
    not start.
    """
    command = [*CONVOY, "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r" at (http://\S+)(?: and by gRPC at (\S+))?", line)
        if found is None:
            process.wait()
            raise SystemExit(f"convoy serve does not say where it is\n{last_lines(log)}")
        yield process, found[1], found[2] or ""
    finally:
        process.kill()
        process.communicate()


def last_lines(log: IO[str]) -> str:
    """Return the end of a log."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
    return "".join(log.readlines()[-20:])
