"""The command line in a separate process: the start, the completion of a shell, and a server."""

import http.client
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import PATIENCE_S
from tests.support.servers.control import until
from tests.support.servers.forked import CONVOY, IGNORING_SERVER, Forked


def test_the_version_is_printed_without_what_a_model_needs() -> None:
    look = (
        "import sys\nfrom service.cli import main\nsys.argv = ['convoy', '--version']\n"
        "try: main()\nfinally: print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    modules = found.stdout.splitlines()[1].split()
    assert not {"asyncio", "fastapi", "numpy", "onnx"} & set(modules)
    assert len(modules) < 300  # 198; each costs about a millisecond


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_flags_and_their_values(shell: str) -> None:
    script = _complete(shell, f"source_{shell}", "")
    assert "_CONVOY_COMPLETE" in script
    assert {"demo", "loadtest"} <= set(
        re.findall(r"\w+", _complete(shell, f"complete_{shell}", ""))
    )
    assert "--device" in _complete(shell, f"complete_{shell}", "serve --dev")
    values = _complete(shell, f"complete_{shell}", "serve --device c")
    assert re.search(r"\bcuda\b", values)
    assert not re.search(r"\bauto\b", values)
    assert "caffe" in _complete(shell, f"complete_{shell}", "serve --preset caf")
    for command in ("serve", "pull", "check"):
        assert "squeezenet1.1" in _complete(shell, f"complete_{shell}", f"{command} squee")


def _complete(shell: str, instruction: str, line: str) -> str:
    """Return the shell's completions for a line after `convoy ` with an incomplete last word."""
    words = ["convoy", *line.split(" ")]
    instruction, _, kind = instruction.partition("_")
    asked = {
        "_CONVOY_COMPLETE": f"{instruction}_{kind}",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
    }
    done = Forked(CONVOY, stderr=subprocess.DEVNULL, environ=asked)
    return done.communicate()[0]


def test_a_demo_opens_the_page_in_a_browser(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    process = Forked(
        CONVOY,
        "demo",
        "--port",
        "0",
        environ={"BROWSER": f"{browser} %s"},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address
        until(opened.exists)
        assert opened.read_text() == f"{address[0]}/\n"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line_and_status_1() -> None:
    with Path("/dev/full").open("w") as full:
        done = Forked(CONVOY, "inspect", "digits", stdout=full)
        _, error = done.communicate(60)
    assert done.returncode == 1
    assert error.splitlines()[0] == "Error: [Errno 28] No space left on device"


def test_serve_says_where_it_serves_and_the_line_to_try_works() -> None:
    process = Forked(CONVOY, "serve", "--port", "0", "--threads", "1", stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        serving, trying = process.stdout.readline(), process.stdout.readline()
        found = re.match(r"Convoy serves digits at http://127\.0\.0\.1:(\d+) on cpu", serving)
        assert found, serving
        port = int(found[1])
        assert f"Open http://127.0.0.1:{port}/ in a browser" in serving
        curl = re.fullmatch(rf"  curl -F file=@(\S+) http://127\.0\.0\.1:{port}(/\S+)\n", trying)
        assert curl, trying
        picture = Path(curl[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        began = time.monotonic()
        connection.request("POST", curl[2], picture.read_bytes())
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        assert answer["results"][0]["predictions"][0]["label"] == picture.name[0]
        assert answer["timing_ms"]["total"] <= (time.monotonic() - began) * 1e3
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_server_starts_even_if_its_caller_ignored_processes_that_end() -> None:
    options = ("serve", "--port", "0", "--device", "cpu")
    server = Forked(IGNORING_SERVER, *options, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("Convoy serves digits")
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.communicate()
