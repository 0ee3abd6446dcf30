"""Other load generators: their profiles and, if one is installed, its command on the page."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.servers.several_models import convoy_serve

PROFILES = Path(__file__).parent.parent.parent / "deploy" / "loadtest"
PAGE = (PROFILES / "README.md").read_text(encoding="utf-8")

# What each prints where all was answered, and where something was not.
TOOLS = {
    "ab": (r"Failed requests: +0\n", r"Non-2xx"),
    "wrk": (r"not classified: 0\n", r"Non-2xx|(connect|read|write) [1-9]"),
    "hey": (r"\[200\]\s+\d+ responses", r"\[[^2]\d\d\]\s+\d+ responses|Error distribution"),
    "k6": (r"checks_succeeded\.*: 100\.00%", r"checks_failed\.*: (?!0\.00%)"),
    "autocannon": (r"\d+ requests in", r"non 2xx|\d+ errors"),
    "oha": (r"\[200\] \d+ responses", r"\[[^2]\d\d\] \d+ responses|Error distribution"),
    "locust": (r"POST +/v1/classify +\d+ +0\(0\.00%\)", r"Error report"),
}


def line_of(tool: str) -> str:
    """Return the command of the page that runs a tool, which may continue on a second line."""
    lines = re.findall(r"(?m)^    \$ ((?:.*\\\n)*.*)$", PAGE)
    (line,) = [line for line in lines if re.match(rf"(deploy/loadtest/)?{tool}\b(?!\.lua)", line)]
    return str(line)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_load_generators_line_of_the_page_reports_no_failure(tool: str) -> None:
    line = line_of(tool)
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    with convoy_serve("digits", "--device", "cpu") as port:
        address = f"127.0.0.1:{port}"
        environ = {**os.environ, "URL": f"http://{address}"}
        done = subprocess.run(
            line.replace("127.0.0.1:8000", address),
            shell=True,
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    told = done.stdout + done.stderr
    well, badly = TOOLS[tool]
    assert done.returncode == 0, told
    assert re.search(well, told), told
    assert not re.search(badly, told), told


@pytest.fixture
def path_with_hey(tmp_path: Path) -> str:
    """Return a PATH on which `hey` prints its arguments."""
    hey = tmp_path / "hey"
    hey.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    hey.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def test_hey_sends_an_image_of_any_kind(path_with_hey: str) -> None:
    image = "a b.jpg"
    run = subprocess.run(
        [PROFILES / "hey.sh", "http://127.0.0.1:8000/", image, "-c", "8"],
        env={"PATH": path_with_hey},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [
        *("-m", "POST", "-T", "application/octet-stream", "-D", image, "-c", "8"),
        "http://127.0.0.1:8000/v1/classify",
    ]


def test_hey_without_an_image_tells_how_it_is_used(path_with_hey: str) -> None:
    run = subprocess.run(
        [PROFILES / "hey.sh", "http://127.0.0.1:8000"],
        env={"PATH": path_with_hey},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "URL IMAGE" in run.stderr
