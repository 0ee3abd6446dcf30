"""The profiles for other load generators: what can be tested without them."""

import os
import subprocess
from pathlib import Path

import pytest

PROFILES = Path(__file__).parent.parent.parent / "deploy" / "loadtest"


@pytest.fixture
def path_with_hey(tmp_path: Path) -> str:
    """A PATH on which `hey` prints what it was called with."""
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
