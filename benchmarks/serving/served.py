"""Starts a `convoy serve` for benchmarks that send it requests over HTTP."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rows import ROOT

CONVOY = (sys.executable, "-c", "from service.cli import main; main()")


@contextmanager
def served_on_cpu(model: Path, preset: str | None, options: Sequence[str] = ()) -> Iterator[str]:
    """Serve as `served` does, on the CPU, with this thread's cores."""
    with served(model, preset, ["--device", "cpu", *options]) as url:
        yield url


@contextmanager
def served(
    model: Path, preset: str | None, options: Sequence[str], program: Sequence[str] = CONVOY
) -> Iterator[str]:
    """Yield the address of a server that logs no requests. Raises RuntimeError if it does not
    start.
    """
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
