"""README's first commands, in a fresh folder, while every other host is unreachable."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.serving.http_client import free_port
from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
START = [
    command.partition("  ")[0]
    for command in re.findall(r"(?m)^    (\S.*)$", README.split("## Start\n")[1].split("\n## ")[0])
]
READY = re.compile(r"Convoy serves digits at (http://\S+) on ")

# What pip installs, as far as these commands use it; it can reach this machine alone.
CONVOY = f"""#!{sys.executable}
import sys

def alone(event, given):
    if event == "socket.getaddrinfo":
        host = given[0]
    elif event == "socket.connect" and isinstance(given[1], tuple):
        host = given[1][0]
    else:
        return
    if host not in (None, "127.0.0.1", "localhost"):
        raise OSError(-2, "Name or service not known")

sys.addaudithook(alone)
sys.path.insert(0, {str(ROOT)!r})
from service.cli import main
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a clone in which pip has installed the packages."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in ("models", "service"):
        (tmp_path / name).symlink_to(ROOT / name)
    program = tmp_path / ".venv/bin/convoy"
    program.parent.mkdir(parents=True)
    program.write_text(CONVOY, encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / ".venv/serve.stamp").touch()
    return tmp_path


@contextmanager
def begun(command: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Return a command as a user types it, on any free port, with no proxy and without
    downloads."""
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CONVOY_", "MAKE")) and key not in ("MODEL", "HOST", "PORT")
    }
    environ |= {"HOME": str(folder), "PORT": str(free_port()), "no_proxy": "*"}
    process = subprocess.Popen(
        command.split(),
        cwd=folder,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


def test_the_first_commands_need_no_model_and_the_second_is_that_of_the_tests() -> None:
    serve, test, curl, *then = START
    assert (serve, test) == ("make serve", "make test")
    assert curl.startswith("curl ")
    assert then[0] == "make serve MODEL=squeezenet1.1"


def test_the_first_command_serves_and_the_readmes_curl_is_answered(folder: Path) -> None:
    serve, _, curl, *_ = START
    with begun(serve, folder) as process:
        assert process.stdout is not None
        said = next(filter(None, map(READY.search, process.stdout)))
        asked = curl.replace("http://127.0.0.1:8000", said[1]).split()
        answer = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True)
    assert '"results":[{"predictions":[{"index":7,"label":"7"' in answer.stdout


def test_a_model_whose_host_is_not_there_ends_with_what_works_now(folder: Path) -> None:
    _, _, _, command, *_ = START
    with begun(command, folder) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Name or service not known; nothing was downloaded" in said
    works = "`make serve` (the built-in model) and `make serve MODEL=path.onnx` (your own file)"
    assert f"These work now: {works}\n" in said
    assert "Traceback" not in said
